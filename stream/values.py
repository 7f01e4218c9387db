"""The values of one row of a batch in msgpack's words, and back as they were.

str, bytes, int, float, bool, None, lists and dicts with str keys are msgpack's own. What it has no word for is an
extension: 1 a tuple (its items, encoded), 2 an integer beyond 64 bits (signed, little-endian), 3 a tensor (its place
among the row's loose bytes, which travel beside the message). Types are exact, since a subclass would not come back
as itself. Nothing is ever pickled.
"""

from collections.abc import Callable
from types import NoneType
from typing import NoReturn

import msgspec
import torch

from stream.errors import SourceError
from stream.layout import Layout, from_rows, refusal, to_rows

Path = tuple[str | int, ...]

_TUPLE, _BIG, _TENSOR = 1, 2, 3
_ALIGNMENT = 16  # bytes: the size of the largest element of a tensor
_DEEPEST = 64  # levels of lists, tuples and dicts: a list that holds itself has no end


class _Loose(msgspec.Struct, array_like=True):
    """Where a tensor stands among the loose bytes of its row."""

    start: int
    stop: int
    layout: Layout


_ENCODER = msgspec.msgpack.Encoder()
_PLACE = msgspec.msgpack.Decoder(_Loose)


def refuse(path: Path, problem: str) -> NoReturn:
    """Say which part of a batch cannot be carried, and why.

    Raises:
        SourceError: Always.
    """
    where = "".join(f"[{step!r}]" for step in path)
    raise SourceError(f"batch{where}", problem)


class ValueWriter:
    """Turns the values of one row into what msgpack can say; the tensors among them are put aside.

    Attributes:
        tensors: The loose bytes of the row: where each tensor starts, a multiple of 16, and its bytes.
        size: Number of loose bytes, a multiple of 16.
    """

    def __init__(self) -> None:
        self.tensors: list[tuple[int, torch.Tensor]] = []
        self.size = 0

    def value(self, path: Path, value: object) -> object:
        """One value for msgspec to encode.

        Raises:
            SourceError: It cannot be carried; ``path`` says where in the batch it is.
        """
        if isinstance(value, torch.Tensor):
            return self._tensor(path, value)
        if type(value) in (bool, float, bytes, NoneType):
            return value
        write = self._writers.get(type(value))
        if write is None:
            refuse(path, f"is of type {_name(value)}, which would not arrive as itself{_advice(value)}")
        if len(path) > _DEEPEST:
            refuse(path[:4], f"has values more than {_DEEPEST} levels deep; flatten it")
        return write(self, path, value)

    def _text(self, path: Path, value: str) -> str:
        try:
            value.encode()
        except UnicodeEncodeError:
            refuse(path, f"is text with half of a surrogate pair ({value!r:.40}); clean it, or pass bytes")
        return value

    def _int(self, _path: Path, value: int) -> object:
        if -(2**63) <= value < 2**64:
            return value
        size = value.bit_length() // 8 + 1  # one bit more for the sign
        return msgspec.msgpack.Ext(_BIG, value.to_bytes(size, "little", signed=True))

    def _list(self, path: Path, value: list[object]) -> list[object]:
        return [self.value((*path, number), item) for number, item in enumerate(value)]

    def _tuple(self, path: Path, value: tuple[object, ...]) -> object:
        return msgspec.msgpack.Ext(_TUPLE, _ENCODER.encode(self._list(path, list(value))))

    def _dict(self, path: Path, value: dict[object, object]) -> dict[str, object]:
        written: dict[str, object] = {}
        for key, item in value.items():
            if type(key) is not str:
                refuse(path, f"is a dict with the key {key!r:.40}; only keys that are text can be carried")
            written[self._text(path, key)] = self.value((*path, key), item)
        return written

    def _tensor(self, path: Path, tensor: torch.Tensor) -> object:
        if problem := refusal(tensor):
            refuse(path, problem)
        rows, layout = to_rows(tensor.unsqueeze(0))
        start, stop = self.size, self.size + rows.shape[1]
        self.tensors.append((start, rows[0]))
        self.size = stop + -stop % _ALIGNMENT
        return msgspec.msgpack.Ext(_TENSOR, _ENCODER.encode(_Loose(start, stop, layout)))

    # The key is the type of the value that the function takes, which no annotation can say.
    _writers: dict[type, Callable[..., object]] = {str: _text, int: _int, list: _list, tuple: _tuple, dict: _dict}  # noqa: RUF012


class ValueReader:
    """Turns the extensions back into values; :meth:`hook` is msgspec's ``ext_hook``.

    Attributes:
        row: The row that is being decoded, which the owner sets.
    """

    def __init__(self, loose: torch.Tensor | None) -> None:
        self.row = 0
        self._loose = loose

    def hook(self, code: int, data: memoryview) -> object:
        """The value of an extension.

        Raises:
            ValueError: There is no such extension; msgspec hands it on.
        """
        if code == _TUPLE:
            # No decoder is kept: it would hold this method, and with it all loose bytes, until a garbage collection.
            return tuple(msgspec.msgpack.decode(data, type=list[object], ext_hook=self.hook))
        if code == _BIG:
            return int.from_bytes(data, "little", signed=True)
        if code == _TENSOR and self._loose is not None:
            place = _PLACE.decode(data)
            return from_rows(self._loose[self.row : self.row + 1, place.start : place.stop], place.layout)[0]
        raise ValueError(f"extension {code} of a row is unknown")


def _name(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _advice(value: object) -> str:
    """What to do about a type that cannot be carried."""
    kinds = (str, bytes, int, float, list, tuple, dict)
    plain = next((kind.__name__ for kind in kinds if isinstance(value, kind)), None)
    if plain is not None:
        return f"; pass {plain}(value)"
    if isinstance(value, bytearray | memoryview):
        return "; pass bytes(value)"
    if type(value).__module__ == "numpy":
        return "; pass torch.from_numpy(value), or value.item() of a single number"
    return "; pass text, bytes, numbers, tensors, or lists, tuples and dicts of these"
