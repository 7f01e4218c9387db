"""A sequence that several worker processes read in parts: each collates whole portions of its own rows.

Workers end at different rows. A worker that has no whole portion left sends its rest as rows, and the reader makes
the last portions out of all rests, so only the last step may be short and every row comes exactly once.

Which step is the last is known only when all workers have ended or enough portions have come. The last step:
- portions of it that a worker had collated stay as they are, and nothing is ever cut after it was collated: its other
  portions are filled up to the same size with the epoch's first rows (with even_batches=False: get what is left);
- where all of it came as rows it is cut as that of any other source.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice
from typing import Any, NamedTuple, cast

import torch
from torch.utils.data import IterableDataset

from stream.collate import Item
from stream.cuts import Cut, CutStep, cut_items, slices
from stream.foreign import tell_epoch
from stream.peeked import Peeked
from stream.wire import copied
from stream.workers import guarded

Rows = Callable[[int], Iterator[Any]]
"""The rows of an epoch; in a worker process those of its part."""


class Collated(NamedTuple):
    """A whole portion as its worker made it; None where it was to be passed over. `first`: the epoch's first rows."""

    batch: Any
    first: list[Any]


class Rest(NamedTuple):
    """The rows of a worker that were too few for another portion."""

    rows: list[Any]


class Part(IterableDataset[Any]):
    """What one worker reads: `Collated` portions of `cut`, then its `Rest`. Errors come as `Failed`."""

    def __init__(self, dataset: Any, rows: Rows, collate: Callable[[list[Any]], Any], cut: Cut) -> None:  # noqa: ANN401 - foreign
        super().__init__()
        self.dataset = dataset
        self._rows, self._collate, self._cut = rows, collate, cut
        # In memory that processes share: workers that live on hear of the next epoch by it
        self._told: torch.Tensor = torch.zeros(2, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def tell(self, epoch: int, *, skip: int) -> None:
        """Set what the next iteration delivers, in every process: its epoch without its first `skip` portions."""
        self._told[0], self._told[1] = epoch, skip

    def __iter__(self) -> Iterator[Any]:
        epoch, skip = self._told.tolist()
        info = torch.utils.data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        mine = len(range(worker, skip, workers))  # portions come from the workers in turn
        tell_epoch(self.dataset, epoch)
        ahead = Peeked(self._rows(epoch))
        for number in count():
            made = guarded(partial(self._next, ahead, is_first=number == 0, is_skipped=number < mine))
            yield made
            if not isinstance(made, Collated):
                return

    def _next(self, ahead: Peeked[Any], *, is_first: bool, is_skipped: bool) -> "Collated | Rest":
        size = self._cut.global_batch // self._cut.portions
        rows = ahead.take(size)
        if len(rows) < size:
            return Rest([_portable(row) for row in rows])
        first = [_portable(row) for row in rows[: self._cut.portions]] if is_first else []
        return Collated(None if is_skipped else self._collate(rows), first)


def _portable(row: Any) -> Any:  # noqa: ANN401 - foreign rows
    """Return a row in a form that may leave the process: a memoryview may not."""
    has_image = isinstance(row, Item) and row.image is not None
    return row._replace(image=cast("memoryview", bytes(row.image))) if has_image else row


def _arrived(row: Any) -> Any:  # noqa: ANN401 - foreign rows
    has_image = isinstance(row, Item) and row.image is not None
    return row._replace(image=memoryview(row.image)) if has_image else row


def assemble(found: Iterator["Collated | Rest"], cut: Cut) -> Iterator[CutStep[Any]]:
    """Put what the workers give together to steps; a portion of one is `[Collated]` or a list of rows."""
    yield from _Assembly(found, cut).steps()


class _Assembly:
    def __init__(self, found: Iterator["Collated | Rest"], cut: Cut) -> None:
        self._cut, self._size = cut, cut.global_batch // cut.portions
        self._rests: list[Any] = []
        self._first: list[Any] = []
        self._ahead = Peeked(self._collated(found))

    def steps(self) -> Iterator[CutStep[Any]]:
        whole, position = self._cut.portions, 0
        while self._ahead.has(whole):
            portions = [[portion] for portion in self._ahead.take(whole)]
            position += self._cut.global_batch
            yield CutStep(portions, self._cut.global_batch, self._last(), position)
        for step in _with_last(self._ends(self._ahead.take(whole))):
            position += step.real
            yield step._replace(position_after=position)

    def _collated(self, found: Iterator["Collated | Rest"]) -> Iterator[Collated]:
        for one in found:
            if isinstance(one, Rest):
                self._rests += map(_arrived, one.rows)
                continue
            self._first = self._first or [copied(_arrived(row)) for row in one.first]
            yield one

    def _last(self) -> list[bool]:
        cut, ahead = self._cut, self._ahead
        if ahead.has(1 if cut.even_batches and not cut.drop_last else cut.portions):
            return [False] * cut.portions
        following = list(islice(self._ends(ahead.peek(cut.portions)), 1))
        return [not (following and following[0].portions[portion]) for portion in range(cut.portions)]

    def _ends(self, whole: list[Collated]) -> Iterator[CutStep[Any]]:
        """Make the steps behind the last one that came whole; `whole` are portions of the first of them."""
        rows = list(self._rests)
        if whole:
            missing = (self._cut.portions - len(whole)) * self._size
            mine, rows = rows[:missing], rows[missing:]
            if len(mine) < missing and self._cut.drop_last:
                return
            portions = [[one] for one in whole] + self._filled(mine, self._cut.portions - len(whole))
            yield CutStep(portions, len(whole) * self._size + len(mine), [], 0)
        yield from cut_items(iter(rows), self._cut, first=self._first)

    def _filled(self, rows: list[Any], portions: int) -> list[list[Any]]:
        """Cut rows into portions, with even_batches of whole size."""
        padding = portions * self._size - len(rows) if self._cut.even_batches else 0
        padded = rows + [self._first[place % len(self._first)] for place in range(padding)]
        return slices(padded, (), self._cut._replace(portions=portions))


def _with_last(steps: Iterator[CutStep[Any]]) -> Iterator[CutStep[Any]]:
    ahead = Peeked(steps)
    while ahead.has(1):
        [step] = ahead.take(1)
        following = ahead.peek(1)
        last = [not (following and following[0].portions[number]) for number in range(len(step.portions))]
        yield step._replace(last=last)
