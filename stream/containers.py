"""What may hold the leaves of a batch, taken apart and put together again, and the walk through it.

Lists and dicts with text keys are msgpack's own words. Every other container becomes :class:`Parts`: a code, words
that msgpack knows, and its parts, keys included. Types are exact: what would come back as something else is refused.
A class is sent by name, found again by name, and must be what its code says; its ``__init__`` runs only for
mappings: they come back as ``kind(data)``, and what else they held stays behind.
"""

import importlib
import operator
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from types import NoneType
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch

from stream.errors import SourceError

TUPLE, SIZE, SET, FROZENSET, DICT, ORDERED, DEFAULT, NAMED, DATACLASS, MAPPING = range(1, 11)

NATIVE: frozenset[type] = frozenset({str, int, float, bool, NoneType})
"""Types whose values msgpack takes as they are; of str and int not all values."""

_DEEPEST = 64  # levels of containers: a list that holds itself has no end
_FACTORIES = {kind.__name__: kind for kind in (list, dict, set, tuple, int, float, complex, str, bytes, bool)}
_KEYS = (*NATIVE, bytes, complex)
_PLAIN = {tuple: TUPLE, torch.Size: SIZE, set: SET, frozenset: FROZENSET}
_TABLES = {dict: DICT, OrderedDict: ORDERED, defaultdict: DEFAULT}
_NOT_STATE = {"__dict__", "__weakref__", "__orig_class__"}


class Attribute(str):
    """A step of a path that is an attribute, not a key."""

    __slots__ = ()


class Unfit(Exception):  # noqa: N818 - it never leaves stream; the walk turns it into a SourceError with the place
    """A value cannot be carried; the text says why and what to do."""


class Parts(NamedTuple):
    """A container taken apart: its code, words for :func:`build`, and its parts with the path step to each."""

    code: int
    words: list[object]
    steps: Iterable[object]
    parts: Collection[object]


def refuse(path: Iterable[object], problem: str) -> NoReturn:
    """Say which part of a batch cannot be carried, and why.

    Raises:
        SourceError: Always.
    """
    where = "".join(f".{step}" if type(step) is Attribute else f"[{step!r:.40}]" for step in path)
    raise SourceError(f"batch{where}", problem)


def take(value: object) -> Parts:
    """Take a container apart.

    Raises:
        Unfit: It is none, or one that would not come back as itself.
    """
    kind: type = type(value)
    if kind in _PLAIN and isinstance(value, Collection):
        if isinstance(value, set | frozenset):
            _check_keys(value)
        return Parts(_PLAIN[kind], [], range(len(value)), value)
    if kind in _TABLES and isinstance(value, dict):
        words: list[object] = [_factory(value)] if isinstance(value, defaultdict) else []
        return _table(_TABLES[kind], words, value)
    return _of_class(value, kind)


def build(code: int, words: Sequence[Any], parts: list[Any]) -> object:
    """Put a container together again.

    Raises:
        SourceError: Its class cannot be found here.
    """
    if code in _PLAIN_AGAIN:
        return _PLAIN_AGAIN[code](parts)
    if code in {NAMED, DATACLASS, MAPPING}:
        return _class_again(code, words, parts)
    half = len(parts) // 2
    items = zip(parts[:half], parts[half:], strict=True)
    if code == DEFAULT:
        return defaultdict(None if words[0] is None else _FACTORIES[words[0]], items)
    return OrderedDict(items) if code == ORDERED else dict(items)


class Walk:
    """A way through a batch that knows the path to where it is; subclasses say what becomes of each value.

    `leaves` maps an exact type to the method's name that takes it; tensors, arrays and numpy scalars of any subclass go
    to ``tensor``, ``array`` and ``scalar``, all else to ``container``.
    """

    leaves: Mapping[type, str] = {}

    def __init__(self, native: frozenset[type] = NATIVE) -> None:
        self._native = native
        self._path: list[object] = []

    def value(self, value: object) -> object:
        """What becomes of one value.

        Raises:
            SourceError: It cannot be carried; the error names its place in the batch.
        """
        kind = type(value)
        if kind in self._native:
            return value
        take_it: Callable[[object], object] = getattr(self, self.leaves.get(kind) or _leaf(value))
        return take_it(value)

    def each(self, steps: Iterable[object], values: Collection[object]) -> list[object]:
        """What becomes of the parts of a container."""
        path = self._path
        if self._native.issuperset(map(type, values)):
            return list(values)
        if len(path) >= _DEEPEST:
            refuse(path[:4], f"has values more than {_DEEPEST} levels deep; flatten it")
        path.append(None)
        done = []
        for step, value in zip(steps, values, strict=True):
            path[-1] = step
            done.append(self.value(value))
        path.pop()
        return done

    def parts(self, value: object) -> tuple[int, list[object], list[object]]:
        """Code and words of a container, and what became of its parts."""
        try:
            taken = take(value)
        except Unfit as problem:
            refuse(self._path, str(problem))
        return taken.code, taken.words, self.each(taken.steps, taken.parts)

    def refuse(self, problem: str) -> NoReturn:
        """Say that the value at this place cannot be carried.

        Raises:
            SourceError: Always.
        """
        refuse(self._path, problem)


def _leaf(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(value, np.ndarray):
        return "array"
    return "scalar" if isinstance(value, np.generic) else "container"


def _table(code: int, words: list[object], table: Mapping[object, object]) -> Parts:
    keys = list(table)
    _check_keys(keys)
    return Parts(code, words, keys + keys, keys + list(table.values()))


def _check_keys(keys: Collection[object]) -> None:
    for key in keys:
        if type(key) in (tuple, frozenset) and isinstance(key, Collection):
            _check_keys(key)
        elif type(key) not in _KEYS and not isinstance(key, np.generic):
            raise Unfit(f"has the key {key!r:.40}; keys must be text, numbers, bytes, None or tuples of these")


def _factory(table: defaultdict[object, object]) -> str | None:
    made = table.default_factory
    if made is not None and (type(made) is not type or made not in _FACTORIES.values()):
        raise Unfit(
            f"is a defaultdict of {made!r:.60}; only a built-in type can be carried as factory; pass dict(value)"
        )
    return None if made is None else made.__name__


def _of_class(value: object, kind: type) -> Parts:
    if isinstance(value, tuple) and hasattr(kind, "_fields") and not getattr(value, "__dict__", None):
        return Parts(NAMED, _words(kind), map(Attribute, kind._fields), value)
    if is_dataclass(kind):
        names = _state_names(value, kind)
        return Parts(
            DATACLASS, [*_words(kind), *names], map(Attribute, names), [getattr(value, name) for name in names]
        )
    data = getattr(value, "data", None) if isinstance(value, Mapping) else None
    if type(data) is dict and not isinstance(value, dict) and _takes_a_dict(kind):
        return _table(MAPPING, _words(kind), data)
    raise Unfit(f"is of type {_name(kind)}, which would not arrive as itself{_advice(value)}")


def _state_names(value: object, kind: type) -> list[str]:
    """The names of all that a dataclass holds: its fields, slots and other attributes, as far as they are set."""
    try:
        object.__new__(kind)
    except TypeError:
        raise Unfit(f"is of type {_name(kind)}, which is more than its fields{_advice(value)}") from None
    names = [field.name for field in fields(kind)]
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    names += list(getattr(value, "__dict__", ()))
    return [name for name in dict.fromkeys(names) if name not in _NOT_STATE and hasattr(value, name)]


@lru_cache(maxsize=256)
def _takes_a_dict(kind: type) -> bool:
    try:
        kind({})
    except Exception:  # noqa: BLE001 - a user's class may raise anything; whatever it is, the answer is no
        return False
    return True


@lru_cache(maxsize=256)
def _place(kind: type) -> tuple[str, str]:
    if "<locals>" in kind.__qualname__:
        raise Unfit(f"is of the local class {_name(kind)}, which no other rank can find; define it in a module")
    try:
        found = _find(kind.__module__, kind.__qualname__)
    except (ImportError, AttributeError, ValueError):
        found = None
    if found is not kind:
        raise Unfit(f"is of class {_name(kind)}, which is not found under this name; define it in a module")
    return kind.__module__, kind.__qualname__


def _words(kind: type) -> list[object]:
    return list(_place(kind))


def _find(module: str, name: str) -> object:
    return operator.attrgetter(name)(importlib.import_module(module))


def _class_again(code: int, words: Sequence[Any], parts: list[Any]) -> object:
    module, name, *names = words
    try:
        kind = _find(module, name)
    except (ImportError, AttributeError) as error:
        raise SourceError("batch", f"has a {module}.{name}, which this rank cannot find: {error}") from error
    if code == NAMED and isinstance(kind, type) and issubclass(kind, tuple):
        return tuple.__new__(kind, parts)
    if code == DATACLASS and isinstance(kind, type) and is_dataclass(kind):
        made = object.__new__(kind)
        for attribute, value in zip(names, parts, strict=True):
            object.__setattr__(made, attribute, value)  # frozen classes forbid their own
        return made
    if code == MAPPING and isinstance(kind, type) and issubclass(kind, Mapping):
        return kind(build(DICT, [], parts))  # type: ignore[call-arg]  # the sender tried that its class takes a dict
    raise SourceError("batch", f"has a {module}.{name}, which is another class on this rank; run the same code on all")


def _name(kind: type) -> str:
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _advice(value: object) -> str:
    """What to do about a type that cannot be carried."""
    if isinstance(value, Enum):
        return "; pass value.value"
    if isinstance(value, Mapping):
        return "; pass dict(value)"
    plain = next((kind for kind in (str, bytes, int, float, list, tuple, set) if isinstance(value, kind)), None)
    if plain is not None:
        return f"; pass {plain.__name__}(value)"
    if isinstance(value, memoryview):
        return "; pass bytes(value)"
    return "; pass tensors, arrays, text, bytes, numbers, or lists, tuples and dicts of these"


_PLAIN_AGAIN: dict[int, Callable[[list[Any]], object]] = {code: kind for kind, code in _PLAIN.items()}
