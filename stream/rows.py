"""Encoded rows as a portion: planned from the index by the reader, filled into one memory, opened by the rank.

The reader touches no byte of an image: it plans the reads, and local shards are read straight into the portion's
memory. Invariants:
- a sample that several rows share (caption rows, padding) is planned, read and sent once;
- the header holds all that the rank needs, so the rank opens no manifest, index or shard;
- checksums are compared by the rank, behind the last copy;
- `open_rows` gives what `Samples.rows` gives for the same slots: equal items, equal errors, the same one first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from shards.dataset import DatasetReader
from shards.joined import JoinedPlan, JoinedReader
from shards.planned import DatasetPlan
from shards.rows import PlacedSample
from shards.sample import Sample
from stream.collate import Item, blamed
from stream.packed import Picking, Samples
from stream.schedule import Slot


class _Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row of the portion: its position in the order, the place of its sample in the header, its caption if given."""

    position: int
    place: int
    caption: int | None


class _Header(msgspec.Struct, frozen=True, array_like=True):
    """What a portion's memory holds: `samples` of the shards `urls`, and the `rows` that are made of them."""

    size: int
    urls: list[str]
    samples: list[PlacedSample]
    rows: list[_Row]
    picking: Picking


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Header)


@dataclass(frozen=True, slots=True)
class RowsPlan:
    """A portion that has not been read yet.

    Attributes:
        header: For `open_rows`.
        size: Bytes of memory that it fills.
        where: Shard and key of its first row, for messages.
    """

    header: bytes
    size: int
    where: str
    _bound: "_Bound"

    @property
    def reads(self) -> list[tuple[str, list[tuple[int, int]]]] | None:
        """(Path, ranges (start, end)) of local files whose bytes, one behind the other, are the portion; else None."""
        return self._bound.local_reads()

    def fill(self, memory: NDArray[np.uint8]) -> None:
        """Read the portion into `memory`: uint8 ``[size]``, writable, C-contiguous.

        Any number of threads may fill at once; other threads run while bytes are read or copied. May be called again,
        with other memory.

        Raises:
            ValueError: The memory is too short.
            StoreError, FileNotFoundError: A shard cannot be read; the memory may be filled in part.
        """
        self._bound.fill(memory.data, copy=_copy)

    def fill_at_once(self, memory: NDArray[np.uint8]) -> bool:
        """As `fill`, but only if that waits for no disk and no network; False, and `memory` in part filled, if not."""
        return self._bound.fill_at_once(memory.data)


def plan_rows(source: Samples, slots: Sequence[Slot], *, epoch: int) -> RowsPlan:
    """Plan a portion; reads nothing but the indexes of shards that were not open yet. Thread-safe.

    Raises:
        ShardsError, FileNotFoundError: The manifest, or the index of a shard, cannot be read or trusted.
    """
    located = [source.sample_of(slot.row) for slot in slots]
    numbers = list(dict.fromkeys([number for number, _ in located]))
    bound = _bound(source.reader, numbers, source.suffixes)
    plan = bound.plan
    places = {sample.row: place for place, sample in enumerate(plan.samples)}
    rows = [
        _Row(position, places[number], caption) for (position, _), (number, caption) in zip(slots, located, strict=True)
    ]
    header = _ENCODER.encode(_Header(plan.size, plan.urls, plan.samples, rows, source.picking(epoch)))
    return RowsPlan(header, plan.size, _where(plan), bound)


def open_rows(header: bytes | memoryview, memory: NDArray[np.uint8], *, verify: bool) -> list[Item]:
    """Return the rows of a filled portion. Pure; thread-safe.

    Args:
        header: Of its `RowsPlan`.
        memory: uint8 ``[size]``, C-contiguous; the images are views of it.
        verify: Whether to compare every part with its checksum.

    Raises:
        ChecksumError: A part differs from the index.
        SourceError: A sample lacks its image or its captions.
        ValueError: The memory is too short.
        msgspec.DecodeError: That is no header of a portion.
    """
    told = _DECODER.decode(header)
    if len(memory) < told.size:
        raise ValueError(f"a memory of {len(memory)} bytes cannot hold a portion of {told.size} bytes")
    view = memory.data
    first = {row.place: row.position for row in reversed(told.rows)}
    samples = list[Sample]()
    for place, one in enumerate(told.samples):
        with blamed(first[place], blames=told.picking.blames):
            samples.append(one.open(view, url=told.urls[one.shard], verify=verify))
    items: list[Item] = []
    for row in told.rows:
        placed = told.samples[row.place]
        url, sample = told.urls[placed.shard], samples[row.place]
        items.append(told.picking.item(sample, number=placed.row, url=url, position=row.position, caption=row.caption))
    return items


class _Bound(NamedTuple):
    """A plan with what its reader does with it."""

    plan: DatasetPlan | JoinedPlan
    local_reads: Callable[[], list[tuple[str, list[tuple[int, int]]]] | None]
    fill: Callable[..., None]
    fill_at_once: Callable[[memoryview], bool]


def _bound(reader: DatasetReader | JoinedReader, rows: Sequence[int], suffixes: Sequence[str]) -> _Bound:
    if isinstance(reader, JoinedReader):
        joined = reader.plan(rows, suffixes=suffixes)
        local, fill, at_once = reader.local_reads, reader.fill, reader.fill_at_once
        return _Bound(joined, partial(local, joined), partial(fill, joined), partial(at_once, joined))
    plan = reader.plan(rows, suffixes=suffixes)
    return _Bound(
        plan, partial(reader.local_reads, plan), partial(reader.fill, plan), partial(reader.fill_at_once, plan)
    )


def _where(plan: DatasetPlan | JoinedPlan) -> str:
    return f"shard {plan.urls[0]}: {plan.samples[0].key}" if plan.samples else "no row"


def _copy(into: memoryview, data: memoryview) -> None:
    """Copy as numpy does, which lets other threads run; assigning to a memoryview does not."""
    np.copyto(np.frombuffer(into, np.uint8), np.frombuffer(data, np.uint8))
