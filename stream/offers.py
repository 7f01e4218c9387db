"""What the reader offers: one step after another as portions that know their size and fill memory when they are told.

Nothing is copied or read here: an offer is a header and a promise to fill, so that a step may wait for memory while
the next one is already being planned.
"""

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from stream.cuts import NO_ROWS
from stream.owning import Empty, owned
from stream.packed import Samples
from stream.point import Bookmark
from stream.rows import RowsPlan, plan_rows
from stream.schedule import Schedule, Slot, slots
from stream.substitute import RowOrder
from stream.wire import Packed, pack, write

if TYPE_CHECKING:
    from stream.portions import PortionStep

_STEPS_AT_ONCE = 32
"""Most steps whose rows are looked up in the order together, after fewer at first [measured: 9 us a row for steps of 32
rows by themselves, 2 us for 8 of them together, 1 us for 32]."""


class Offer(Protocol):
    """One portion.

    Attributes:
        header: What the rank needs beside the memory: for `wire.unpack` or `rows.open_rows`, as `kind` says.
        size: Bytes of memory that `fill` fills, 0 or more.
        kind: "batch": finished; "rows": encoded, for the rank to decode and collate.
        reads: What `fill` brings if that is local files as they are: (path, ranges (start, end)) each; else None.
        slow: Whether filling may have to wait, for a disk or a network, so that it belongs into a thread of its own.
    """

    @property
    def header(self) -> bytes: ...  # noqa: D102 - see the class
    @property
    def size(self) -> int: ...  # noqa: D102
    @property
    def kind(self) -> Literal["batch", "rows"]: ...  # noqa: D102
    @property
    def reads(self) -> list[tuple[str, list[tuple[int, int]]]] | None: ...  # noqa: D102
    @property
    def slow(self) -> bool: ...  # noqa: D102

    def fill(self, memory: NDArray[np.uint8]) -> None:
        """Fill uint8 ``[size]``, writable. Thread-safe; may be called several times, each with its own memory.

        Raises:
            ShardsError, FileNotFoundError: The bytes cannot be read.
        """

    def fill_at_once(self, memory: NDArray[np.uint8]) -> bool:
        """As `fill`, but only if that waits for nothing; False, and `memory` in part filled, if it would have to.

        Raises:
            ShardsError, FileNotFoundError: The bytes cannot be read.
        """

    def local(self, empty: Empty) -> object:
        """Return the batch, for the reader's own process, with storage of its own, in memory of `empty` where copied.

        Raises:
            TypeError: It is of kind "rows": no batch is made of them yet.
        """


class RowsOffer:
    """Encoded rows of our shards."""

    kind: Literal["rows"] = "rows"
    slow = True

    def __init__(self, plan: RowsPlan) -> None:
        self._plan = plan
        self.header, self.size, self.fill, self.fill_at_once = plan.header, plan.size, plan.fill, plan.fill_at_once

    @property
    def reads(self) -> list[tuple[str, list[tuple[int, int]]]] | None:
        """See `Offer`."""
        return self._plan.reads

    def local(self, empty: Empty) -> object:  # noqa: ARG002 - the protocol's signature
        """Refuse: no batch is made of rows yet."""
        raise TypeError("encoded rows are no batch yet")


class BatchOffer:
    """A finished batch. It is filled from the batch itself, which must not change until it was handed out.

    Raises:
        SourceError: It holds what cannot be carried; names where in the batch.
    """

    kind: Literal["batch"] = "batch"
    reads = None
    slow = False

    def __init__(self, batch: object) -> None:
        self._packed: Packed = pack(batch)
        self._batch = batch
        self.header, self.size = self._packed.header, self._packed.size

    def fill(self, memory: NDArray[np.uint8]) -> None:
        """Copy the batch into uint8 ``[size]``. Thread-safe."""
        write(self._packed, memory)

    def fill_at_once(self, memory: NDArray[np.uint8]) -> bool:
        """Copy the batch into uint8 ``[size]``. Thread-safe."""
        self.fill(memory)
        return True

    def local(self, empty: Empty | None = None) -> object:
        """Return the batch with tensors that own their storage, in memory of `empty` where they had to be copied."""
        return owned(self._batch, empty=empty)


class StepOffer(NamedTuple):
    """One step.

    Attributes:
        portions: One offer for each portion, by its index; None: it has no row at this step and ended one step ago.
        real_rows: Rows of the whole step without padding.
        last: For each portion whether no step with a row for it follows.
        position_after: Position in the epoch behind this step, in rows without padding.
        where: What is being read for it, for messages.
        bookmark: What the source said of itself up to `position_after`, if it says anything.
    """

    portions: list[Offer | None]
    real_rows: int
    last: list[bool]
    position_after: int
    where: str
    bookmark: Bookmark | None = None


def packed_offers(
    source: Samples, order: RowOrder, schedule: Schedule, *, portions: int, epoch: int, first_step: int = 0
) -> Generator[StepOffer, None, None]:
    """Yield the steps of an epoch, or what is left of it, as encoded rows; nothing is read but indexes at first use.

    `portions` is the number of ranks that the schedule was made for.

    Raises:
        ShardsError, FileNotFoundError: The manifest, or the index of a shard, cannot be read or trusted.
    """
    for step, found in enumerate(_slots_of_steps(order, schedule, first_step), start=first_step):
        rest = iter(found)
        parts = [list(islice(rest, len(positions))) for positions in schedule.portions(step)]
        plans = [plan_rows(source, part, epoch=epoch) if part else None for part in parts]
        real_rows = schedule.real_rows(step)
        yield StepOffer(
            portions=[None if plan is None else RowsOffer(plan) for plan in plans],
            real_rows=real_rows,
            last=[step + 1 >= schedule.steps_of(portion) for portion in range(portions)],
            position_after=found[0].position + real_rows,
            where=next(plan.where for plan in plans if plan is not None),
        )


def batch_offers(steps: "Iterable[PortionStep]") -> Generator[StepOffer, None, None]:
    """Yield steps whose portions are finished batches; closing it closes `steps`.

    Raises:
        SourceError: A batch holds what cannot be carried; names where in the batch.
    """
    with closing(_each(steps)) as each:
        for step in each:
            offers: list[Offer | None] = [None if batch is NO_ROWS else BatchOffer(batch) for batch in step.portions]
            yield StepOffer(offers, *step[1:])


def _each(steps: "Iterable[PortionStep]") -> "Generator[PortionStep, None, None]":
    yield from steps  # whoever closes this closes them, where they can be closed


def _slots_of_steps(order: RowOrder, schedule: Schedule, first_step: int) -> Iterator[list[Slot]]:
    """Yield what stands at each step, padding included."""
    start, count = first_step, 1
    while start < schedule.steps:
        steps = range(start, min(start + count, schedule.steps))
        start, count = steps.stop, min(2 * count, _STEPS_AT_ONCE)
        positions = [schedule.positions(step) for step in steps]
        found = iter(slots(order, np.concatenate(positions)))
        for of_step in positions:
            yield list(islice(found, len(of_step)))
