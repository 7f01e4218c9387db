"""Where a sequence of unknown length is cut into steps, and a step into portions: pure, like schedule.py.

For the same number of rows it cuts as `Schedule` does. `last` needs a look ahead, as short as can be: one item; with
drop_last a whole step; with even_batches=False one item for each portion.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Final, Generic, NamedTuple, TypeVar

from stream.errors import SourceError
from stream.peeked import Peeked
from stream.point import Bookmark

T = TypeVar("T")


class _NoRows:
    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "NO_ROWS"


NO_ROWS: Final = _NoRows()
"""Stands for the batch of a portion that has no row at a step; None may be a batch."""


class Cut(NamedTuple):
    """How steps are cut: `global_batch` items over `portions`, the last step as in schedule.py."""

    global_batch: int
    portions: int
    drop_last: bool = False
    even_batches: bool = True

    @property
    def pads(self) -> bool:
        """Whether the last step may be padded."""
        return self.even_batches and not self.drop_last and self.portions > 1


class CutStep(NamedTuple, Generic[T]):
    """One step.

    Attributes:
        portions: What each portion holds; an empty one ended a step earlier.
        real: Items of the step without padding.
        last: For each portion whether no step with an item for it follows.
        position_after: Items before the next step, without padding.
        bookmark: What the source said of itself up to there, if it says anything.
    """

    portions: list[list[T]]
    real: int
    last: list[bool]
    position_after: int
    bookmark: Bookmark | None = None


def cut_items(
    items: Iterator[T], cut: Cut, *, first: Sequence[T] = (), start: int = 0, keep: Callable[[T], T] | None = None
) -> Iterator[CutStep[T]]:
    """Cut items into steps; padding repeats `first`, by default the first items of them all, as `keep` returns them.

    `start` items are passed over: steps begin behind them, as `Schedule` has it.
    """
    padding = list(first) or (list(islice(items, min(start, cut.portions))) if start else [])
    position = start
    ahead = Peeked(islice(items, max(0, start - len(padding)) if not first else start, None))
    while ahead.has(cut.global_batch if cut.drop_last else 1):
        step = ahead.take(cut.global_batch)
        if not first:
            more = step[: cut.portions - len(padding)]
            padding += more if keep is None or not cut.pads else map(keep, more)
        position += len(step)
        yield CutStep(slices(step, padding, cut), len(step), _last(ahead, cut), position)


def cut_lists(lists: Iterator[list[T]], cut: Cut) -> Iterator[CutStep[T]]:
    """Give each portion one list, such as a batch of row numbers, whatever its length.

    The last step is recut, its items in their order, where a portion would get none or, with even_batches, where its
    lists differ in length: ranks must be able to gather it. `global_batch` has no meaning here.
    """
    ahead = Peeked(lists)
    first, position, count = list[T](), 0, cut.portions
    while ahead.has(count if cut.drop_last else 1):
        step = ahead.take(count)
        items = [item for items in step for item in items]
        first = first or items[:count]
        position += len(items)
        ends = not ahead.has(count if cut.drop_last else 1)
        uneven = len(step) < count or (cut.even_batches and len({len(items) for items in step}) > 1)
        portions = slices(items, first, cut) if ends and uneven else step
        yield CutStep(portions, len(items), _last_of_lists(ahead, cut), position)


class SplitStep(NamedTuple, Generic[T]):
    """One item that is a whole step: for each portion the numbers of its rows in it; the rest as in `CutStep`."""

    item: T
    rows: list[list[int]]
    real: int
    last: list[bool]


def split_items(items: Iterator[T], cut: Cut, size_of: Callable[[T], int], *, first: int = 0) -> Iterator[SplitStep[T]]:
    """Split items that are whole steps of their own size, such as batches that their source made.

    Items without rows are passed over. The last one is padded with its own first rows, cyclic: rows of another batch
    need not fit beside them. `global_batch` has no meaning here; `first` is the number of the first item, for messages.

    Raises:
        SourceError: an item before the last cannot be split evenly.
    """
    ahead = Peeked((item, rows) for item in items if (rows := size_of(item)))
    number = first
    while ahead.has(1):
        [(item, size)] = ahead.take(1)
        ends = not ahead.has(1)
        fits = size % cut.portions == 0 if cut.even_batches else size >= cut.portions
        if not fits and not ends:
            problem = f"has {size} rows, which cannot be split over {cut.portions} ranks evenly"
            raise SourceError(f"batch {number} of the source", f"{problem}; only the last batch of an epoch may be odd")
        if not fits and cut.drop_last:
            return
        numbers = list(range(size))
        yield SplitStep(item, slices(numbers, numbers, cut), size, _last_of_splits(ahead, cut))
        number += 1


def slices(step: list[T], first: Sequence[T], cut: Cut) -> list[list[T]]:
    """Cut one step into portions; with even_batches it is padded with `first`, cyclic, until they are equal."""
    padding = -len(step) % cut.portions if cut.even_batches else 0
    padded = step + [first[place % len(first)] for place in range(padding)]
    share, more = divmod(len(padded), cut.portions)
    starts = [portion * share + min(portion, more) for portion in range(cut.portions + 1)]
    return [padded[start:end] for start, end in pairwise(starts)]


def _last(ahead: Peeked[T], cut: Cut) -> list[bool]:
    if cut.drop_last or cut.even_batches:
        return [not ahead.has(cut.global_batch if cut.drop_last else 1)] * cut.portions
    return [not ahead.has(portion + 1) for portion in range(cut.portions)]


def _last_of_lists(ahead: Peeked[list[T]], cut: Cut) -> list[bool]:
    if cut.drop_last or cut.even_batches:
        return [not ahead.has(cut.portions if cut.drop_last else 1)] * cut.portions
    if ahead.has(cut.portions):
        return [False] * cut.portions
    left = sum(map(len, ahead.peek(cut.portions)))
    return [left <= portion for portion in range(cut.portions)]


def _last_of_splits(ahead: Peeked[tuple[T, int]], cut: Cut) -> list[bool]:
    following = ahead.peek(1)
    is_odd_end = following and (cut.drop_last or not cut.even_batches) and not ahead.has(2)
    if not is_odd_end:
        return [not ahead.has(1)] * cut.portions
    size = following[0][1]
    if cut.drop_last:
        return [bool(size % cut.portions) if cut.even_batches else size < cut.portions] * cut.portions
    return [size <= portion for portion in range(cut.portions)]
