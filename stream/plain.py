"""A batch as uint8 tensors that may be cut along dim 0, and back.

Accelerate's own dispatcher carries tensors only: it sends each tensor of a step to all ranks, and rank r of n keeps
rows ``[r * k, (r + 1) * k)`` of every one. So all else has to stand in tensors too, row by row, and each row has to
bring what is needed to understand it. A packed step holds, with dim 0 the rows of the step:

    plain      uint8 [rows, longest]: one msgpack message a row, padded: the header (the same in each row: names and
               layouts of all leaves), then the row's own values (stream/values.py)
    lengths    int64 [rows, 2]: bytes of the message; the step's rows without padding, or -1 for a fault
    tensor_i   uint8 [rows, bytes of a row]: the i-th tensor whose dim 0 is the rows (stream/layout.py)
    loose      uint8 [rows, longest]: the tensors among the row's own values; only if there are any
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, cast

import msgspec
import numpy as np
import torch

from stream.errors import SourceError
from stream.layout import Layout, from_rows, refusal, to_rows
from stream.values import ValueReader, ValueWriter, refuse

_FAULT = -1
_PLAIN, _LENGTHS, _LOOSE = "plain", "lengths", "loose"


class _Leaf(msgspec.Struct, array_like=True):
    """One leaf of the batch: a tensor over all rows, per-row values in a list or tuple, or an empty mapping."""

    path: tuple[str, ...]
    kind: Literal["tensor", "list", "tuple", "empty"]
    layout: Layout | None = None


class _Row(msgspec.Struct, array_like=True):
    """One message of ``plain``: the encoded leaves, and one value for each leaf that is a list or a tuple."""

    header: msgspec.Raw
    values: list[object]


_ENCODER = msgspec.msgpack.Encoder()
_HEADER = msgspec.msgpack.Decoder(list[_Leaf])


def pack(batch: Mapping[str, object], *, rows: int, real_rows: int) -> dict[str, torch.Tensor]:
    """A step as tensors whose dim 0 is the rows.

    Args:
        batch: Names to leaves, nested mappings allowed. A leaf is a tensor with ``shape[0] == rows``, or a list or
            tuple with one value for each row: str, bytes, int, float, bool, None, a tensor of any shape, or lists,
            tuples and dicts with str keys of these.
        rows: Rows of the step over all ranks, padding included; at least 1.
        real_rows: Rows without padding, in ``[0, rows]``.

    Returns:
        Tensors that may share memory with those of the batch.

    Raises:
        SourceError: A leaf cannot be carried; the error names it and says what to do.
        ValueError: ``rows`` or ``real_rows`` is out of its bounds.
    """
    if not 0 <= real_rows <= rows or rows < 1:
        raise ValueError(f"{real_rows} real rows of {rows} rows: a step has at least one row")
    packer = _Packer(rows)
    packer.add((), batch)
    header = msgspec.Raw(_ENCODER.encode(packer.leaves))
    messages = [_ENCODER.encode(_Row(header, packer.values_of(row))) for row in range(rows)]
    return {**_padded(messages, real_rows), **packer.tensors, **packer.loose()}


def unpack(packed: Mapping[str, torch.Tensor]) -> tuple[dict[str, object], int]:
    """The batch of some rows of a packed step, and the step's rows without padding.

    Args:
        packed: Rows ``[a, b)`` of each tensor of a packed step, a < b, on any device.

    Returns:
        The batch, with a dict for each mapping. Tensors have the values, dtype and strides of the packed ones; they
        share the memory of ``packed`` and are on its device. Everything else is as it was.

    Raises:
        SourceError: The step is a fault: the rank that reads for all ranks failed.
    """
    lengths = packed[_LENGTHS].tolist()
    plain = packed[_PLAIN].cpu().numpy()
    real_rows = int(lengths[0][1])
    if real_rows == _FAULT:
        text = plain[0, : lengths[0][0]].tobytes().decode()
        raise SourceError("the reader, on rank 0", text)
    rows = _read_rows(plain, [length for length, _ in lengths], packed.get(_LOOSE))
    columns = zip(*(row.values for row in rows), strict=True)
    tensors = (packed[f"tensor_{number}"] for number in range(len(packed)))
    batch: dict[str, object] = {}
    for leaf in _HEADER.decode(rows[0].header):
        _place(batch, leaf.path, _restore(leaf, columns, tensors))
    return batch, real_rows


def pack_fault(ranks: int, error_text: str) -> dict[str, torch.Tensor]:
    """A step of one row for each rank that makes :func:`unpack` raise SourceError with this text on every rank."""
    return _padded([error_text.encode(errors="replace")] * ranks, _FAULT)


def _padded(messages: Sequence[bytes], real_rows: int) -> dict[str, torch.Tensor]:
    plain = np.zeros((len(messages), max(map(len, messages))), dtype=np.uint8)
    for row, message in zip(plain, messages, strict=True):
        row[: len(message)] = np.frombuffer(message, dtype=np.uint8)
    lengths = torch.tensor([[len(message), real_rows] for message in messages], dtype=torch.int64)
    return {_PLAIN: torch.from_numpy(plain), _LENGTHS: lengths}


class _Packer:
    """Sorts the leaves of a batch into tensors over all rows and columns of per-row values."""

    def __init__(self, rows: int) -> None:
        self.leaves: list[_Leaf] = []
        self.tensors: dict[str, torch.Tensor] = {}
        self._columns: list[tuple[tuple[str, ...], Sequence[object]]] = []
        self._writers = [ValueWriter() for _ in range(rows)]

    def add(self, path: tuple[str, ...], leaf: object) -> None:
        if isinstance(leaf, Mapping):
            self._add_mapping(path, leaf)
        elif isinstance(leaf, torch.Tensor):
            self._add_tensor(path, leaf)
        elif isinstance(leaf, list | tuple) and type(leaf) in (list, tuple):
            self._add_column(path, leaf)
        else:
            kind = type(leaf).__name__
            refuse(
                path,
                f"is of type {kind}, which cannot be cut over ranks; pass a tensor or a list with a value for each row",
            )

    def values_of(self, row: int) -> list[object]:
        write = self._writers[row].value
        return [write((*path, row), column[row]) for path, column in self._columns]

    def loose(self) -> dict[str, torch.Tensor]:
        """The tensors among the values; complete once the values of each row were asked for."""
        if not any(writer.tensors for writer in self._writers):
            return {}
        longest = max(writer.size for writer in self._writers)
        loose = torch.zeros((len(self._writers), longest), dtype=torch.uint8)
        for row, writer in zip(loose, self._writers, strict=True):
            for start, flat in writer.tensors:
                row[start : start + len(flat)] = flat
        return {_LOOSE: loose}

    def _add_mapping(self, path: tuple[str, ...], mapping: Mapping[object, object]) -> None:
        for name, leaf in mapping.items():
            if type(name) is not str:
                refuse(path, f"has a part named {name!r:.40}; name the parts of a batch by text")
            self.add((*path, name), leaf)
        if path and not mapping:
            self.leaves.append(_Leaf(path, "empty"))

    def _add_tensor(self, path: tuple[str, ...], tensor: torch.Tensor) -> None:
        if problem := refusal(tensor):
            refuse(path, problem)
        if tensor.shape[:1] != (len(self._writers),):
            shape = tuple(tensor.shape)
            refuse(
                path, f"has shape {shape}, but dim 0 must be the {len(self._writers)} rows of the step; leave it out"
            )
        flat, layout = to_rows(tensor)
        self.tensors[f"tensor_{len(self.tensors)}"] = flat
        self.leaves.append(_Leaf(path, "tensor", layout))

    def _add_column(self, path: tuple[str, ...], column: Sequence[object]) -> None:
        if len(column) != len(self._writers):
            refuse(path, f"has {len(column)} values for {len(self._writers)} rows; pass one value for each row")
        self.leaves.append(_Leaf(path, "list" if isinstance(column, list) else "tuple"))
        self._columns.append((path, column))


def _read_rows(plain: np.typing.NDArray[np.uint8], lengths: Sequence[int], loose: torch.Tensor | None) -> list[_Row]:
    reader = ValueReader(loose)
    decoder = msgspec.msgpack.Decoder(_Row, ext_hook=reader.hook)
    rows = []
    for reader.row, (message, length) in enumerate(zip(plain, lengths, strict=True)):
        rows.append(decoder.decode(message[:length]))
    return rows


def _restore(leaf: _Leaf, columns: Iterator[tuple[object, ...]], tensors: Iterator[torch.Tensor]) -> object:
    """The next leaf out of what was packed in the same order."""
    if leaf.kind == "tensor" and leaf.layout is not None:
        return from_rows(next(tensors), leaf.layout)
    if leaf.kind == "empty":
        return {}
    return list(next(columns)) if leaf.kind == "list" else next(columns)


def _place(batch: dict[str, object], path: tuple[str, ...], leaf: object) -> None:
    """Put a leaf where its path says, making the mappings on the way."""
    *folders, name = path
    for folder in folders:
        batch = cast("dict[str, object]", batch.setdefault(folder, {}))
    batch[name] = leaf
