"""How rows of a dataset are brought into one memory: decided before anything is read."""

from dataclasses import dataclass
from typing import NamedTuple

from shards.rows import PlacedSample


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
