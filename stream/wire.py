"""A batch as one header and one buffer, and back as it was.

Invariants: types, dtypes, shapes, strides (see stream/spans.py), order of keys and the bits of every value come back;
nothing is pickled, and no code of the sender runs. The header is 8 bytes, little-endian: the bytes of the buffer, then
one msgpack message: the batch in msgpack's own words, and an extension for everything that msgpack has no word for.
Extensions below 32 are containers (stream/containers.py). Bytes of tensors and arrays, and long byte strings, stand in
the buffer as pieces; each starts at a multiple of 64 bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType
from typing import Any, TypeVar

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from stream.containers import NATIVE, Walk, build
from stream.errors import SourceError
from stream.spans import (
    Bytes,
    array_over,
    array_problem,
    array_span,
    dtype_problem,
    plain,
    reach,
    tensor_bytes,
    tensor_over,
    tensor_problem,
    tensor_span,
)

T = TypeVar("T")

ALIGNMENT = 64
"""Bytes: every piece starts at a multiple of it, which is a cache line and enough for any element."""

_TENSOR, _ARRAY, _SCALAR, _BYTES, _BYTEARRAY, _COMPLEX, _INT, _TEXT = range(32, 40)
_SIZE_BYTES = 8
_SMALL = 8  # a leaf that takes less than one over this of a batch is small
_INLINE = 512  # bytes: a longer byte string goes into the buffer
_CAREFUL: frozenset[type] = frozenset({float, bool, NoneType})
_DTYPES = {name: found for name in dir(torch) if isinstance(found := getattr(torch, name), torch.dtype)}
_NAMES = {found: str(found).removeprefix("torch.") for found in _DTYPES.values()}


class _Leaf(msgspec.Struct, array_like=True):
    """A tensor or an array: byte of the buffer where element 0 stands, strides in elements or in bytes."""

    start: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


_ENCODE = msgspec.msgpack.Encoder().encode
_LEAF = msgspec.msgpack.Decoder(_Leaf)
_RANGE = msgspec.msgpack.Decoder(tuple[int, int])


@dataclass(frozen=True, slots=True)
class Packed:
    """A batch ready to be written.

    Attributes:
        header: All but the pieces.
        size: Bytes of the buffer.
        pieces: Where in the buffer each piece starts, a multiple of 64, and its bytes, uint8 ``[n]``, C-contiguous.
            They share memory with the batch, so it must not change before they are written.
    """

    header: bytes
    size: int
    pieces: list[tuple[int, Bytes]]


def pack(batch: object) -> Packed:
    """A batch as header and pieces; nothing is copied but what is small or has gaps.

    Carried are tensors and numpy arrays of every dtype and layout, numpy scalars, text, bytes, numbers, None, and
    lists, tuples, dicts, sets, named tuples, dataclasses and mappings with a ``data`` of these. Tensors come back
    without gradients and subclass, on the CPU; an array is writable. May be called by any thread.

    Raises:
        SourceError: A part cannot be carried; the error names its place, its type and what to do.
    """
    try:
        return _packed(_Writer(), batch)
    except (UnicodeEncodeError, OverflowError):  # text with half a surrogate pair, a number beyond 64 bits: both rare
        return _packed(_Writer(_CAREFUL), batch)


def write(packed: Packed, buffer: Bytes) -> None:
    """Copy the pieces into a buffer, uint8 ``[packed.size]`` or longer; the GIL is free while bytes are copied.

    Raises:
        ValueError: The buffer is too short.
    """
    _check_size(buffer, packed.size)
    for start, piece in packed.pieces:
        np.copyto(buffer[start : start + piece.size], piece)


def unpack(header: bytes | memoryview, buffer: Bytes, *, empty: Callable[[int], torch.Tensor] | None = None) -> Any:  # noqa: ANN401 - whatever was packed
    """The batch that was packed.

    Args:
        header: As :func:`pack` made it.
        buffer: uint8 ``[size]`` or longer, as :func:`write` left it.
        empty: Gives new memory, uint8 ``[n]`` on the CPU. It is called once, for the size of the buffer, and every
            large tensor and array of the batch is a view of what it gave. None: they are views of ``buffer`` itself,
            which its owner hands over and which must be writable. What takes less than an eighth of the batch has
            memory of its own.

    Raises:
        SourceError: A class of the batch cannot be found in this process.
        ValueError: The buffer is too short or not writable.
    """
    size = int.from_bytes(header[:_SIZE_BYTES], "little")
    _check_size(buffer, size)
    if empty is None:
        if size and not buffer.flags.writeable:
            raise ValueError("the buffer is read-only, so no batch can be laid over it; pass empty=")
        memory = torch.from_numpy(buffer) if size else torch.empty(0, dtype=torch.uint8)
    else:
        memory = empty(size)
        np.copyto(memory.numpy(), buffer[:size])
    return msgspec.msgpack.decode(memoryview(header)[_SIZE_BYTES:], ext_hook=_Reader(memory).hook)


def copied(value: T) -> T:
    """A value with memory of its own throughout, or itself where it cannot be carried."""
    try:
        packed = pack(value)
        buffer = np.empty(packed.size, dtype=np.uint8)
        write(packed, buffer)
        copy: T = unpack(packed.header, buffer)
    except SourceError:
        return value
    return copy


def _packed(writer: "_Writer", batch: object) -> Packed:
    message = _ENCODE(writer.value(batch))
    return Packed(writer.size.to_bytes(_SIZE_BYTES, "little") + message, writer.size, writer.pieces)


def _check_size(buffer: Bytes, size: int) -> None:
    if buffer.size < size:
        raise ValueError(f"a buffer of {buffer.size} bytes is too short for a batch of {size} bytes")


class _Writer(Walk):
    """Turns values into what msgpack can say, and puts their bytes aside as pieces."""

    leaves = {  # noqa: RUF012 - a table, never changed
        torch.Tensor: "tensor",
        list: "on_list",
        dict: "on_dict",
        bytes: "on_bytes",
        str: "on_text",
        int: "on_int",
        np.ndarray: "array",
        bytearray: "on_bytearray",
        complex: "on_complex",
    }

    def __init__(self, native: frozenset[type] = NATIVE) -> None:
        super().__init__(native)
        self.pieces: list[tuple[int, Bytes]] = []
        self.size = 0

    def piece(self, data: Bytes) -> int:
        start = self.size + -self.size % ALIGNMENT
        if data.size:
            self.pieces.append((start, data))
            self.size = start + data.size
        return start

    def tensor(self, tensor: torch.Tensor) -> object:
        if problem := tensor_problem(tensor):
            self.refuse(problem)
        tensor = plain(tensor)
        data, strides = tensor_span(tensor)
        leaf = _Leaf(self.piece(data.numpy()), _NAMES[tensor.dtype], tuple(tensor.shape), strides)
        return msgspec.msgpack.Ext(_TENSOR, _ENCODE(leaf))

    def array(self, array: NDArray[np.generic]) -> object:
        if problem := array_problem(array):
            self.refuse(problem)
        data, first, strides = array_span(array)
        leaf = _Leaf(self.piece(data) + first, array.dtype.str, array.shape, strides)
        return msgspec.msgpack.Ext(_ARRAY, _ENCODE(leaf))

    def scalar(self, scalar: np.generic) -> object:
        if problem := dtype_problem(scalar.dtype):
            self.refuse(problem)
        return msgspec.msgpack.Ext(_SCALAR, _ENCODE((scalar.dtype.str, scalar.tobytes())))

    def on_list(self, values: list[object]) -> object:
        return self.each(range(len(values)), values)

    def on_dict(self, table: dict[object, object]) -> object:
        if str in self._native and set(map(type, table)) <= {str}:
            return dict(zip(table, self.each(table, table.values()), strict=True))
        return self.container(table)

    def on_bytes(self, value: bytes) -> object:
        return value if len(value) <= _INLINE else self._run(_BYTES, value)

    def on_bytearray(self, value: bytearray) -> object:
        return self._run(_BYTEARRAY, value)

    def on_complex(self, value: complex) -> object:
        return msgspec.msgpack.Ext(_COMPLEX, _ENCODE((value.real, value.imag)))

    def on_int(self, value: int) -> object:
        if -(2**63) <= value < 2**64:
            return value
        size = value.bit_length() // 8 + 1  # one bit more for the sign
        return msgspec.msgpack.Ext(_INT, value.to_bytes(size, "little", signed=True))

    def on_text(self, value: str) -> object:
        return msgspec.msgpack.Ext(_TEXT, value.encode(errors="surrogatepass"))

    def container(self, value: object) -> object:
        code, words, parts = self.parts(value)
        return msgspec.msgpack.Ext(code, _ENCODE((words, parts)))

    def _run(self, code: int, value: bytes | bytearray) -> object:
        start = self.piece(np.frombuffer(value, np.uint8))
        return msgspec.msgpack.Ext(code, _ENCODE((start, start + len(value))))


class _Reader:
    """Turns the extensions back into values; :meth:`hook` is msgspec's ``ext_hook``."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory = memory
        self._bytes: Bytes = memory.numpy()

    def hook(self, code: int, data: memoryview) -> object:
        if code < _TENSOR:
            # No decoder is kept: it would hold this method, and with it the whole buffer, until a garbage collection.
            words, parts = msgspec.msgpack.decode(data, ext_hook=self.hook)
            return build(code, words, parts)
        if code == _TENSOR:
            leaf = _LEAF.decode(data)
            dtype = _DTYPES[leaf.dtype]
            stop = leaf.start + tensor_bytes(leaf.shape, leaf.strides, dtype.itemsize)
            piece = self._memory[leaf.start : stop]
            return tensor_over(piece.clone() if self._is_small(len(piece)) else piece, dtype, leaf.shape, leaf.strides)
        if code == _ARRAY:
            leaf = _LEAF.decode(data)
            kind, start, run = np.dtype(leaf.dtype), leaf.start, self._bytes
            low, high = reach(leaf.shape, leaf.strides, kind.itemsize)
            if self._is_small(high - low):
                start, run = -low, run[start + low : start + high].copy()
            return array_over(run, start, kind, leaf.shape, leaf.strides)
        return self._plain(code, data)

    def _is_small(self, nbytes: int) -> bool:
        """Whether a leaf gets memory of its own, so that who keeps it alone does not keep the whole batch."""
        return nbytes * _SMALL < len(self._bytes)

    def _plain(self, code: int, data: memoryview) -> object:
        if code in {_BYTES, _BYTEARRAY}:
            start, stop = _RANGE.decode(data)
            run = self._bytes[start:stop].tobytes()
            return run if code == _BYTES else bytearray(run)
        if code == _SCALAR:
            dtype, value = msgspec.msgpack.decode(data)
            return np.ndarray((), dtype, buffer=value)[()]
        if code == _COMPLEX:
            return complex(*msgspec.msgpack.decode(data))
        if code == _INT:
            return int.from_bytes(data, "little", signed=True)
        if code == _TEXT:
            return str(data, "utf-8", "surrogatepass")
        raise SourceError("batch", f"has extension {code}, which is unknown; run the same version on all ranks")
