"""Which positions of the order each rank gets at each step: pure arithmetic over numbers.

A step is the next ``global_batch`` positions; rank r gets slice r of it. Only the last step can be shorter:

    drop_last=True      it is left out, so less than one step is lost
    even_batches=True   it is padded with the positions 0, 1, 2, ... (cyclic in an epoch with fewer rows than ranks)
                        until it can be cut into equal slices: 5 rows, 2 ranks: 3 + 3
    even_batches=False  it is cut as it is: of k rows on n ranks the first ``k mod n`` ranks get one more;
                        a rank that would get none ends one step earlier

An epoch that is taken up in its midst begins at position ``start``: its step 0 holds ``[start, start + global_batch)``,
and padding is still made of the positions 0, 1, 2, ..., so that its last step is what it is without the interruption
where ``start`` is a whole number of steps.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from stream.errors import OptionError
from stream.permutation import Integers
from stream.substitute import RowOrder


class Slot(NamedTuple):
    """One row that a rank has to deliver.

    Attributes:
        position: Place in the epoch's order; what is random about the row is drawn from it.
        row: The global row that stands there.
    """

    position: int
    row: int


class Schedule:
    """The steps of one epoch, or of what is left of it, the same for every number of ranks. Immutable.

    Args:
        rows: Rows of the epoch, 0 or more.
        global_batch: Rows of a whole step, over all ranks.
        ranks: Number of ranks; it must divide ``global_batch``.
        drop_last: See the module.
        even_batches: See the module; without meaning when ``drop_last`` is set.
        start: Rows of the epoch that were delivered before, 0 to ``rows``; what follows counts from there.

    Attributes:
        steps: Number of steps from ``start`` on, over all ranks.
        remainder: Rows of the last step without its padding; 0 where there are no steps.

    Raises:
        OptionError: The batch cannot be split over the ranks, or a number is out of its bounds.
    """

    __slots__ = ("_even", "_global_batch", "_left", "_ranks", "_rows", "_start", "remainder", "steps")

    def __init__(
        self,
        rows: int,
        *,
        global_batch: int,
        ranks: int,
        drop_last: bool,
        even_batches: bool = True,
        start: int = 0,
    ) -> None:
        _check_numbers(rows, global_batch, ranks, start)
        self._rows = rows
        self._global_batch = global_batch
        self._ranks = ranks
        self._even = even_batches
        self._start = start
        whole, left = divmod(rows - start, global_batch)
        self._left = 0 if drop_last else left
        self.steps = whole + (self._left > 0)
        self.remainder = self.real_rows(self.steps - 1) if self.steps else 0

    def steps_of(self, rank: int) -> int:
        """The number of steps in which a rank gets at least one row."""
        self._check_rank(rank)
        idle = not self._even and 0 < self._left <= rank
        return self.steps - idle

    def real_rows(self, step: int) -> int:
        """The rows of a step without its padding.

        Raises:
            IndexError: There is no such step.
        """
        if not 0 <= step < self.steps:
            raise IndexError(f"step {step} of an epoch of {self.steps} steps")
        is_tail = self._left > 0 and step == self.steps - 1
        return self._left if is_tail else self._global_batch

    def positions(self, step: int) -> Integers:
        """The positions of a step over all ranks, padding included and last: int64.

        Raises:
            IndexError: There is no such step.
        """
        real = self.real_rows(step)
        start = self._start + step * self._global_batch
        positions = np.arange(start, start + real, dtype=np.int64)
        padding = -real % self._ranks if self._even else 0
        if not padding:
            return positions
        return np.concatenate([positions, np.arange(padding, dtype=np.int64) % self._rows])

    def portion(self, step: int, rank: int) -> Integers:
        """The positions that one rank gets at a step: int64, empty for a rank that ended one step earlier.

        Raises:
            IndexError: There is no such step or rank.
        """
        self._check_rank(rank)
        positions = self.positions(step)
        share, more = divmod(len(positions), self._ranks)
        start = rank * share + min(rank, more)
        return positions[start : start + share + (rank < more)]

    def portions(self, step: int) -> list[Integers]:
        """The positions that each rank gets at a step, by rank: `portion` of all, as views of one array.

        Raises:
            IndexError: There is no such step.
        """
        positions = self.positions(step)
        share, more = divmod(len(positions), self._ranks)
        bounds = [rank * share + min(rank, more) for rank in range(self._ranks + 1)]
        return [positions[start:end] for start, end in pairwise(bounds)]

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self._ranks:
            raise IndexError(f"rank {rank} of {self._ranks} ranks")


def slots(order: RowOrder, positions: Integers) -> list[Slot]:
    """The rows that stand at some positions, e.g. at those of a portion, each with its position."""
    return list(map(Slot, positions.tolist(), order.rows_at(positions).tolist()))


def _check_numbers(rows: int, global_batch: int, ranks: int, start: int) -> None:
    if rows < 0:
        raise OptionError("rows", rows, "must be 0 or more")
    if not 0 <= start <= rows:
        raise OptionError("start", start, f"must be one of the positions 0 to {rows} of an epoch of {rows} rows")
    if ranks < 1:
        raise OptionError("ranks", ranks, "must be 1 or more")
    if global_batch < 1:
        raise OptionError("global_batch", global_batch, "must be 1 or more")
    if global_batch % ranks:
        below = global_batch - global_batch % ranks
        near = f"{below} or {below + ranks}" if below else f"{ranks}"
        problem = (
            f"a step of {global_batch} rows cannot be split over {ranks} ranks; use a multiple of {ranks}, e.g. {near}"
        )
        raise OptionError("global_batch", global_batch, problem)
