"""Errors on their way between processes: what was raised on one rank is raised on all.

An error comes back as its own class with its own arguments only if it is one of ours or Python's, and if the class
gives the same arguments and text once more; that is tried before it is sent. Any other is told as a RankError, in
words. Nothing is pickled, no other class is looked up, and an endless text cannot fill a message.
"""

import builtins
from collections.abc import Callable, Iterator
from types import ModuleType, TracebackType
from typing import Any

import msgspec

import shards.errors
import stream.errors
from stream.errors import RankError

_LONGEST = 16_384  # characters of a text, bytes or items of an argument
_DEEPEST = 8  # causes behind an error, levels of its arguments
_TUPLE, _LIST, _WORDS = "tuple", "list", "words"
_NOT_RAISED = (StopIteration, StopAsyncIteration, SyntaxError, BaseExceptionGroup)
"""What would end a loop in silence, or does not come back from its arguments. Nor do SystemExit and GeneratorExit."""


class Carried(msgspec.Struct, array_like=True, frozen=True):
    """An error in words that msgspec knows.

    Attributes:
        kind: Module and name of the class to raise, or None for a RankError.
        args: Its arguments; a tuple, a list and what has only words are ``[what, content]``.
        rank: Where it was raised.
        step: At which step, counted from 0 in its epoch.
        text: Class, message and place, for a RankError.
        notes: The lines that the error shows beside its message: where it was raised, what caused it.
    """

    kind: tuple[str, str] | None
    args: list[Any]
    rank: int
    step: int
    text: str
    notes: list[str]


def carried(error: BaseException, *, rank: int, step: int) -> Carried:
    """An error as a message. Never raises, whatever the error's own methods do."""
    place = _place(error.__traceback__)
    args = [_word(value, 0) for value in _arguments(error)]
    told = _told(error, place)
    kind = _same_kind(error, args)
    origin = f"on rank {rank}, at step {step}" + (f"; raised at {place}" if place else "")
    notes = [_short(note) for note in getattr(error, "__notes__", ()) if isinstance(note, str)]
    causes = [f"caused by {_told(cause, _place(cause.__traceback__))}" for cause in _causes(error)]
    return Carried(kind, args if kind else [], rank, step, told, [*notes, origin, *causes])


def raised(told: Carried) -> BaseException:
    """A new error to raise, on any rank: of the same class with the same fields and text, or a RankError."""
    kind = _KINDS.get(told.kind) if told.kind else None
    error = _made(kind, told.args) if kind else None
    if error is None:
        error = RankError(told.rank, told.step, told.text)
    for note in told.notes:
        error.add_note(note)
    return error


class _Shown:
    """What stands in for an argument that could not travel: it looks the same in a message."""

    def __init__(self, words: str) -> None:
        self._words = words

    def __repr__(self) -> str:
        return self._words

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shown) and self._words == other._words

    def __hash__(self) -> int:
        return hash(self._words)


def _kinds() -> Iterator[type[BaseException]]:
    modules: tuple[ModuleType, ...] = (stream.errors, shards.errors, builtins)
    for found in (value for module in modules for value in vars(module).values() if isinstance(value, type)):
        if issubclass(found, Exception | KeyboardInterrupt) and not issubclass(found, _NOT_RAISED):
            yield found


_KINDS = {(kind.__module__, kind.__qualname__): kind for kind in _kinds()}


def _arguments(error: BaseException) -> tuple[object, ...]:
    """What its class is to be called with; an OSError keeps some of it elsewhere than in `args`."""
    try:
        args = error.__reduce__()[1]
    except Exception:  # noqa: BLE001 - a foreign method may raise anything; the plain arguments are as good
        args = error.args
    return args if isinstance(args, tuple) else error.args


def _same_kind(error: BaseException, args: list[Any]) -> tuple[str, str] | None:
    """The class to raise, if it gives the same error once more."""
    kind = type(error)
    name = (kind.__module__, kind.__qualname__)
    if _KINDS.get(name) is not kind or len(msgspec.msgpack.encode(args)) > _LONGEST:
        return None
    again = _made(kind, args)
    same = again is not None and type(again) is kind and _text(str, again) == _text(str, error)
    return name if same else None


def _made(kind: type[BaseException], args: list[Any]) -> BaseException | None:
    try:
        return kind(*map(_value, args))
    except Exception:  # noqa: BLE001 - whatever it is, the class cannot be made of these arguments
        return None


def _word(value: object, depth: int) -> object:
    """An argument as msgspec can say it, exactly; anything else by what it shows."""
    if value is None or type(value) in (bool, float, bytes):
        return value
    if type(value) is int and -(2**63) <= value < 2**63:
        return value
    if type(value) is str and _clean(value) == value:
        return value
    if isinstance(value, tuple | list) and type(value) in (tuple, list) and depth < _DEEPEST:
        return [_TUPLE if type(value) is tuple else _LIST, [_word(item, depth + 1) for item in value]]
    return [_WORDS, _text(str if isinstance(value, str) else repr, value), isinstance(value, str)]


def _value(word: Any) -> Any:  # noqa: ANN401 - whatever an argument is
    if not isinstance(word, list):
        return word
    what, content, *is_text = word
    if what == _WORDS:
        return content if any(is_text) else _Shown(content)
    values = map(_value, content)
    return tuple(values) if what == _TUPLE else list(values)


def _told(error: BaseException, place: str) -> str:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{name}: {_text(str, error)}" + (f" (raised at {place})" if place else "")


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen = {id(error)}
    cause = error.__cause__
    while cause is not None and id(cause) not in seen and len(seen) <= _DEEPEST:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__


def _place(traceback: TracebackType | None) -> str:
    """Where an error was raised, as `folder/file.py:line in function`; nothing if it was not raised."""
    if traceback is None:
        return ""
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    file = "/".join(code.co_filename.replace("\\", "/").split("/")[-2:])
    return _clean(f"{file}:{traceback.tb_lineno} in {code.co_name}")


def _text(show: Callable[[object], str], value: object) -> str:
    try:
        return _short(show(value))
    except Exception as error:  # noqa: BLE001 - a foreign __str__ may raise anything, and its error must not hide this one
        return f"<its text cannot be had: {type(error).__name__}>"


def _short(text: str) -> str:
    text = _clean(text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


def _clean(text: str) -> str:
    """The text with a backslash for each half of a surrogate pair, which no message can hold."""
    return text.encode(errors="backslashreplace").decode()
