"""The ways to bring encoded images and captions into memory, made alike so that one loop measures each.

    copy            one process copies the parts of a step, one after another, from memory that it holds
    preadv          one process reads them from the shards, one preadv a sample, its places known beforehand
    ours            the reader plans, reads and sends each rank's portion; each rank opens views of it
    ours-verified   the same, and each rank compares the checksums of what it got

All go through the same steps in the same order. `steps` begins an epoch and yields the bytes of parts that this rank
got at each step; the two of one process yield nothing on the other ranks.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from encoded_plan import Arm, Plan
from shards.dataset import DatasetReader
from stream.options import BatchSpec
from stream.order import Order
from stream.packed import PackedSource
from stream.schedule import Schedule

TARGETS = 8  # steps that the memory holds which one process fills in turns, as many as the rings of ours
_WINDOW_SHARDS = 4

Bytes = NDArray[np.uint8]


class Steps:
    """Which rows stand at which step."""

    def __init__(self, plan: Plan, reader: DatasetReader) -> None:
        self.source = PackedSource(reader, spec=BatchSpec(batch_size=plan.rows))
        sizes = self.source.shard_rows()
        self.order = Order(sizes, shuffle="window", seed=0, epoch=0, window_shards=_WINDOW_SHARDS)
        self.schedule = Schedule(sum(sizes), global_batch=plan.rows, ranks=plan.ranks, drop_last=True)

    def rows(self) -> Iterator[list[int]]:
        """Yield the global rows of each step."""
        for step in range(self.schedule.steps):
            yield self.order.rows_at(self.schedule.positions(step)).tolist()


class Piece(NamedTuple):
    """The parts of one sample: where they begin and end in their shard, and how many bytes of that are parts."""

    shard: int
    start: int
    end: int
    size: int


def pieces(steps: Steps, reader: DatasetReader) -> list[list[Piece]]:
    """Return the samples of each step."""
    return [[_piece(reader, row, steps.source.suffixes) for row in rows] for rows in steps.rows()]


def _piece(reader: DatasetReader, row: int, suffixes: tuple[str, ...]) -> Piece:
    shard, in_shard = reader.manifest.locate(row)
    index = reader.index(shard)
    spans = [index.span(in_shard, suffix) for suffix in suffixes if suffix in index.suffixes]
    found = [(start, start + size) for start, size in spans if start]
    size = sum(end - start for start, end in found)
    return Piece(shard, min(start for start, _ in found), max(end for _, end in found), size)


class Bringer(Protocol):
    """One way; see the top of this file."""

    def steps(self) -> Iterator[int]:
        """Begin an epoch; yield the bytes of parts of each step."""

    def received_bytes(self) -> int:
        """Return how many bytes came from elsewhere so far."""

    def close(self) -> None:
        """Give back what is held."""


class Alone:
    """What one process does by itself: `bring(piece, memory)` brings the bytes of one sample into memory."""

    def __init__(self, plan: list[list[Piece]], bring: Callable[[Piece, Bytes], object], held: ExitStack) -> None:
        self._plan, self._bring, self._held = plan, bring, held
        longest = max(sum(piece.end - piece.start for piece in step) for step in plan)
        self._targets = [np.ones(longest, dtype=np.uint8) for _ in range(TARGETS)]

    def steps(self) -> Iterator[int]:
        """Bring one step after another, each into the next target."""
        for number, step in enumerate(self._plan):
            target, at = self._targets[number % TARGETS], 0
            for piece in step:
                length = piece.end - piece.start
                self._bring(piece, target[at : at + length])
                at += length
            yield sum(piece.size for piece in step)

    def received_bytes(self) -> int:
        """Return 0: nothing is sent."""
        return 0

    def close(self) -> None:
        """Close the files, if any are open."""
        self._held.close()


def copier(plan: list[list[Piece]], reader: DatasetReader) -> Alone:
    """Return who copies: all samples are in memory, each by itself."""
    files = [Path(path).read_bytes() for path in _paths(reader)]
    held = {
        piece: np.frombuffer(files[piece.shard][piece.start : piece.end], np.uint8) for step in plan for piece in step
    }
    return Alone(plan, lambda piece, out: np.copyto(out, held[piece]), ExitStack())


def puller(plan: list[list[Piece]], reader: DatasetReader) -> Alone:
    """Return who reads."""
    held, files = ExitStack(), list[int]()
    for path in _paths(reader):
        files.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        held.callback(os.close, files[-1])
    return Alone(plan, lambda piece, out: os.preadv(files[piece.shard], [out.data], piece.start), held)


def _paths(reader: DatasetReader) -> list[str]:
    return [f"{reader.url}/{info.url}" for info in reader.manifest.shardlist]


def bringer(arm: Arm, plan: Plan, steps: Steps, *, rank: int) -> Bringer | None:
    """Return one way; None where it has nothing to do on this rank."""
    if arm in {"ours", "ours-verified"}:
        from encoded_ours import Ours  # noqa: PLC0415 - what one process does alone needs none of it

        return Ours(plan, steps, rank=rank, verify=arm == "ours-verified")
    if rank:
        return None
    reader = steps.source.reader
    return (copier if arm == "copy" else puller)(pieces(steps, reader), reader)
