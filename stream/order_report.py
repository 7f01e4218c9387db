"""What can be told of an order without training: who gets a row and when, where a key is, how well it mixes. Pure.

Rows and positions are those of stream/order.py, steps and padding those of stream/schedule.py. Where keys are asked
for, the caller passes `read`, which gives the indexes of some shards; nothing here opens a file.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from shards.index import ShardIndex
from stream.order import Order
from stream.permutation import Integers
from stream.schedule import Schedule

ReadIndexes: TypeAlias = Callable[[Sequence[int]], Iterable[ShardIndex]]
"""Gives the indexes of the shards with these numbers, in their order."""

SAMPLED = 1_000_000
"""The most positions at which the quality of an order is measured."""
_AT_ONCE = 4096  # positions; Order.rows_at looks at all it is given once for each window among them


class Portion(NamedTuple):
    """What one rank gets at a step: `positions`, int64, of which the first `real` are no padding."""

    positions: Integers
    real: int


class Sighting(NamedTuple):
    """One time that a rank gets a row.

    Attributes:
        step: Counted from the beginning of the epoch if it is `seen`, else from the position where the rest begins.
        rank: Who gets it.
        padding: Whether it only fills up the last step.
        seen: Whether it lies before the position where the rest begins.
    """

    step: int
    rank: int
    padding: bool
    seen: bool


@dataclass(frozen=True, kw_only=True)
class Dealing:
    """How the positions of an epoch are dealt out from position `start` on. The other fields are those of `Schedule`.

    Raises:
        OptionError: at the first use: as `Schedule`.
    """

    rows: int
    global_batch: int
    ranks: int
    drop_last: bool
    even_batches: bool = True
    start: int = 0

    @cached_property
    def rest(self) -> Schedule:
        """The steps from `start` on."""
        return self._schedule(start=self.start, drop_last=self.drop_last)

    def portions(self, step: int) -> list[Portion]:
        """Return what each rank gets at a step counted from `start`, by rank.

        Raises:
            IndexError: there is no such step.
        """
        return _portions(self.rest, step)

    def sightings(self, position: int) -> list[Sighting]:
        """Return every time that the row at a position is dealt out, in time's order; none where `drop_last` drops it.

        What lies before `start` is told as if the epoch had begun with the same batch and ranks.

        Raises:
            IndexError: `position` is not in [0, rows).
        """
        if not 0 <= position < self.rows:
            raise IndexError(f"position {position} is not within the {self.rows} rows of the epoch")
        found: list[Sighting] = []
        if position < self.start:  # it was delivered, so no tail was dropped with it
            before = self._schedule(start=0, drop_last=False)
            own = _sightings(before, position // self.global_batch, position, seen=True)
            found += [sighting for sighting in own if not sighting.padding]
        steps = {(position - self.start) // self.global_batch} if position >= self.start else set[int]()
        if position < self.ranks:  # padding is less than a row for each rank, from position 0 on
            steps.add(self.rest.steps - 1)
        for step in sorted(steps):
            if 0 <= step < self.rest.steps:
                found += _sightings(self.rest, step, position, seen=False)
        return found

    def _schedule(self, *, start: int, drop_last: bool) -> Schedule:
        return Schedule(
            self.rows,
            global_batch=self.global_batch,
            ranks=self.ranks,
            drop_last=drop_last,
            even_batches=self.even_batches,
            start=start,
        )


def _portions(schedule: Schedule, step: int) -> list[Portion]:
    left, found = schedule.real_rows(step), list[Portion]()
    for positions in schedule.portions(step):
        found.append(Portion(positions, min(left, len(positions))))
        left -= found[-1].real
    return found


def _sightings(schedule: Schedule, step: int, position: int, *, seen: bool) -> list[Sighting]:
    return [
        Sighting(step, rank, place >= portion.real, seen)
        for rank, portion in enumerate(_portions(schedule, step))
        for place in np.flatnonzero(portion.positions == position).tolist()
    ]


def first_rows(shard_rows: Sequence[int]) -> Integers:
    """Return the global row at which each shard begins and, last, the number of all rows: int64."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(shard_rows, dtype=np.int64)])


def labels_of(rows: Integers, shard_rows: Sequence[int], read: ReadIndexes, *, each_caption: bool) -> list[str]:
    """Return the key of each row; where each caption is a row, `key/number`, the number counted from 0 in its sample.

    Reads one index for each shard that the rows are of.
    """
    starts = first_rows(shard_rows)
    of_shard = np.searchsorted(starts, rows, side="right") - 1
    hit, labels = np.unique(of_shard), [""] * len(rows)
    for shard, index in zip(hit.tolist(), read(hit.tolist()), strict=True):
        for place in np.flatnonzero(of_shard == shard).tolist():
            within = int(rows[place] - starts[shard])
            sample, caption = index.caption_row(within) if each_caption else (within, None)
            labels[place] = index.key(sample) if caption is None else f"{index.key(sample)}/{caption}"
    return labels


@dataclass(frozen=True, slots=True)
class Found:
    """Where a key is: number of the shard, row in that shard, and the shard's index."""

    shard: int
    row: int
    index: ShardIndex

    def rows(self, shard_rows: Sequence[int], *, each_caption: bool) -> dict[str, int]:
        """Return the global rows of the sample by their labels, as in `labels_of`: one, or one for each caption."""
        start, key = sum(shard_rows[: self.shard]), self.index.key(self.row)
        if not each_caption:
            return {key: start + self.row}
        count = self.index.caption_count(self.row)
        first = start + self.index.caption_ends[self.row] - count
        return {f"{key}/{number}": first + number for number in range(count)}


def find_keys(
    keys: Iterable[str], samples: Sequence[int], read: ReadIndexes, scanning: Callable[[Sequence[str]], None]
) -> dict[str, Found]:
    """Return where these keys are, without those that no shard has.

    Packers write keys in rising order, but nothing promises it. So the shards are bisected first, which reads
    about log2(shards) indexes for a key; keys that are not found so are looked for in all indexes, read once for all
    of them.

    Args:
        keys: What is looked for.
        samples: Number of samples of each shard.
        read: Gives the indexes.
        scanning: Is called with the keys for which all indexes will be read, before that.
    """
    filled = [shard for shard, count in enumerate(samples) if count]
    places = {key: _bisected(key, filled, read) for key in keys}
    found = {key: place for key, place in places.items() if place is not None}
    missing = [key for key in places if key not in found]
    if missing:
        scanning(missing)
        for shard, index in zip(filled, read(filled), strict=True):
            for key in missing:
                row = _row_of(key, index)
                if row is not None:
                    found[key] = Found(shard, row, index)
            missing = [key for key in missing if key not in found]
            if not missing:
                break
    return found


def _bisected(key: str, filled: Sequence[int], read: ReadIndexes) -> Found | None:
    low, high = 0, len(filled)
    while low < high:
        middle = (low + high) // 2
        (index,) = read([filled[middle]])
        row = _row_of(key, index)
        if row is not None:
            return Found(filled[middle], row, index)
        if key < index.key(0):
            high = middle
        elif key > index.key(len(index) - 1):
            low = middle + 1
        else:
            return None
    return None


def _row_of(key: str, index: ShardIndex) -> int | None:
    if key.encode() not in index.column("key.bytes").tobytes():  # most shards are done here
        return None
    return next((row for row, other in enumerate(index.keys()) if other == key), None)


class Quality(NamedTuple):
    """How well an order mixes.

    Attributes:
        displacement: Mean of |position - row| as a share of the rows; 1/3 for an even permutation. NaN without rows.
        neighbours: Share of the pairs (row r, row r + 1) that stand at (position p, position p + 1). NaN without pairs.
    """

    displacement: float
    neighbours: float


def measure(order: Order) -> Quality:
    """Measure an order at all positions, or at `SAMPLED` evenly spread ones where it has more."""
    rows = len(order)
    count = min(rows, SAMPLED)
    if not count:
        return Quality(float("nan"), float("nan"))
    positions = np.arange(count, dtype=np.int64) * rows // count
    away, kept, pairs = 0.0, 0, 0
    for start in range(0, count, _AT_ONCE):
        some = positions[start : start + _AT_ONCE]
        here, there = order.rows_at(np.concatenate([some, np.minimum(some + 1, rows - 1)])).reshape(2, -1)
        away += float(np.abs(some - here).sum())
        kept += int((there == here + 1).sum())
        pairs += int((some + 1 < rows).sum())
    return Quality(away / count / rows, kept / pairs if pairs else float("nan"))


def memory_bytes(shards_bytes: Sequence[int], window_shards: int) -> int:
    """Return the bytes of two windows of shards of mean size: one is being read while the other is handed out."""
    count = len(shards_bytes)
    return min(2 * window_shards, count) * sum(shards_bytes) // count if count else 0


def quality_table(lines: Iterable[tuple[str, int | None, Quality, int]]) -> Iterator[str]:
    """Yield the lines of a Markdown table of (shuffle, window_shards, quality, bytes of memory)."""
    head = ("shuffle", "window_shards", "mean displacement", "neighbours kept", "memory to mix (bytes)")
    cells = [
        (shuffle, str(shards or "-"), _share(quality.displacement), _share(quality.neighbours), str(memory))
        for shuffle, shards, quality, memory in lines
    ]
    rows = [head, ("---", "---:", "---:", "---:", "---:"), *cells]
    return (f"| {' | '.join(row)} |" for row in rows)


def _share(value: float) -> str:
    return "-" if np.isnan(value) else f"{100 * value:.3g} %"
