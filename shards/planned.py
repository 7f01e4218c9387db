"""How rows of a dataset are brought into one memory: decided before anything is read, then done."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from shards.rows import PlacedPart, PlacedSample
from shards.store import Store

_log = logging.getLogger("shards")
Copy = Callable[[memoryview, memoryview], None]
"""Copies the second into the first."""


class PlanStart(NamedTuple):
    """Where a plan begins that stands behind others: byte of the memory, number of row 0, number of its first shard."""

    at: int = 0
    row: int = 0
    shard: int = 0


@dataclass(frozen=True, slots=True)
class DatasetPlan:
    """How to bring some samples into `[start, size)` of a memory of `size` bytes or more.

    `samples` are grouped by shard, the shards in the order in which the rows name them first; `urls` are those shards.
    `reads` are (name of the shard's file, reads of it (start, end)) of each of them, in the order in which what they
    bring stands in the memory.
    """

    size: int
    urls: list[str]
    samples: list[PlacedSample]
    reads: list[tuple[str, list[tuple[int, int]]]]
    start: int = 0


def assign(memory: memoryview, data: memoryview) -> None:
    """Copy by assignment, which lets no other thread run."""
    memory[:] = data


def fill(store: Store, plan: DatasetPlan, memory: memoryview, *, copy: Copy, verify: bool) -> None:
    """Bring the bytes of a plan into `memory`, see `DatasetReader.fill`."""
    if store.in_place:
        fill_in_place(store, plan, memory, wait=True)
        return
    _check_memory(plan, memory)
    reads = [(shard, *read) for shard, (_, ranges) in enumerate(plan.reads) for read in ranges]
    answers = store.read_many([(plan.reads[shard][0], start, end) for shard, start, end in reads])
    first = plan.samples[0].shard if plan.samples else 0  # they are in the order of their shards
    placed = [(p.at, s.shard - first, p, s.key) for s in plan.samples for p in s.parts if p.size]
    parts = deque(sorted(placed, key=itemgetter(0)))
    damaged: list[_Damaged] = []
    for (shard, start, end), answer in zip(reads, answers, strict=True):
        while parts and parts[0][1] == shard and parts[0][2].offset < end:  # they stand in the order of the reads
            at, _, part, key = parts.popleft()
            data = memoryview(answer)[part.offset - start : part.offset - start + part.size]
            if verify and xxh3_64_intdigest(data) != part.checksum:
                damaged.append(_Damaged(plan.reads[shard][0], key, part))
            copy(memory[at : at + part.size], data)
    if damaged:
        _fetch_again(store, damaged, memory, copy)


def fill_in_place(store: Store, plan: DatasetPlan, memory: memoryview, *, wait: bool) -> bool:
    """As `fill`, of a store that reads in place; without `wait` see `Store.read_ranges_into`."""
    _check_memory(plan, memory)
    at = plan.start
    for name, ranges in plan.reads:
        size = sum(end - start for start, end in ranges)
        if not store.read_ranges_into(name, memory[at : at + size], ranges, wait=wait):
            return False
        at += size
    return True


def tell_of_damage(url: str, parts: Sequence[str]) -> None:
    """Warn of parts of a shard that did not come as its index has them."""
    shown = ", ".join(parts[:3]) + (", ..." if len(parts) > 3 else "")  # noqa: PLR2004 - a few show the kind
    _log.warning("shard %s: %d parts differ from their checksums (%s) and are fetched again", url, len(parts), shown)


class _Damaged(NamedTuple):
    """A part that differs from its checksum, of the sample `key` in the shard `name`."""

    name: str
    key: str
    part: PlacedPart


def _fetch_again(store: Store, damaged: Sequence[_Damaged], memory: memoryview, copy: Copy) -> None:
    """Bring parts once more that came damaged: a proxy or a cable may have changed them, the store need not."""
    for shard in dict.fromkeys(one.name for one in damaged):
        tell_of_damage(store.url_of(shard), [f"{one.key}.{one.part.suffix}" for one in damaged if one.name == shard])
    wanted = [(name, part.offset, part.offset + part.size) for name, _, part in damaged]
    for (_, _, part), answer in zip(damaged, store.read_many(wanted), strict=True):
        copy(memory[part.at : part.at + part.size], memoryview(answer))


def _check_memory(plan: DatasetPlan, memory: memoryview) -> None:
    if len(memory) < plan.size:
        raise ValueError(f"a memory of {len(memory)} bytes cannot take {plan.size} bytes; give a longer one")
