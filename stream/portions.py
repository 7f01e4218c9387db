"""Portions of foreign sources: each is collated for its rank alone, and nothing is cut after it was collated.

Makers are iterators that run in the reader's thread, for one pass. They look ahead no farther than to know which step
is the last, see cuts.py. What they start (threads, worker processes) ends with them: at the end, at an error, and when
they are closed. Errors come in their places, behind the good steps.

    map_portions        rows that are asked for by their numbers
    sequence_portions   rows that come one after another
    batch_portions      batches that their source made
    loader_portions.py  a torch DataLoader with all that its user told it
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

from torch.utils.data import Dataset, IterableDataset

from stream.bookmarks import Bookmarks, bookmarked
from stream.collate import Collator, Item
from stream.columns import rows_of, sure_rows, take_rows
from stream.cuts import NO_ROWS, Cut, CutStep, cut_items, split_items
from stream.parts import Collated, Part, assemble
from stream.point import Bookmark
from stream.read_ahead import ReadAhead
from stream.schedule import Schedule, Slot, slots
from stream.sharded import Failed
from stream.sources import BatchSource, RowSource, SequenceSource
from stream.substitute import RowOrder
from stream.wire import copied
from stream.workers import Crew, Hands, guarded


class PortionStep(NamedTuple):
    """One step as finished batches.

    Attributes:
        portions: One batch for each portion; `cuts.NO_ROWS`: it has no row at this step and ended one step ago.
            Portions may be one and the same object where padding repeats a batch.
        real_rows: Rows of the whole step without padding; -1 where batches do not tell their rows.
        last: For each portion whether no step with a row for it follows.
        position_after: What was taken of the source before the next step, without padding: rows, of sources of
            batches batches.
        where: What was read for it, for messages.
        bookmark: What the source said of itself up to `position_after`, if it says anything.
    """

    portions: list[Any]
    real_rows: int
    last: list[bool]
    position_after: int
    where: str
    bookmark: Bookmark | None = None


class Pace(NamedTuple):
    """How portions are made: by `workers` processes or by threads, some `steps` ahead, within `budget_bytes`."""

    workers: int = 0
    steps: int = 2
    budget_bytes: int = 2**62

    def hands(self, portions: int) -> Hands:
        """Return the workers for steps of so many portions; each has two tasks at least, to work while one waits."""
        return Hands(workers=self.workers, prefetch=max(2, -(-self.steps * portions // max(1, self.workers))))


class EpochRows(NamedTuple):
    """The rows of an epoch, or of what is left of it, in their order; `portions` is what `schedule` calls ranks."""

    source: RowSource
    order: RowOrder
    schedule: Schedule
    portions: int
    epoch: int


def map_portions(rows: EpochRows, collator: Collator, pace: Pace) -> Generator[PortionStep, None, None]:
    """Yield the steps of a source that is read by row numbers.

    Raises:
        Exception: what the source or the collate function raised, as itself.
    """
    if pace.workers:
        yield from _mapped_by_workers(rows, collator, pace)
        return
    made = ReadAhead(
        partial(_step_of_rows, rows, collator),
        _row_steps(rows),
        depth=pace.steps,
        cost=lambda step: rows.source.cost([slot for portion in step.portions for slot in portion]),
        budget_bytes=pace.budget_bytes,
    )
    with closing(collator), made:
        yield from made


def sequence_portions(
    source: SequenceSource,
    cut: Cut,
    collator: Collator,
    pace: Pace,
    *,
    epoch: int,
    bookmarks: Bookmarks | None = None,
) -> Generator[PortionStep, None, None]:
    """Yield the steps of a source that is read row by row, from where `bookmarks` say, else from its beginning.

    Rows that were delivered before are not made, and read only behind the bookmark. With workers they are rounded down
    to whole steps, and the rows come in another order for each number of workers.

    Raises:
        Exception: what the source or the collate function raised, as itself.
    """
    marks = bookmarks or Bookmarks()
    if pace.workers:
        rows = partial(_rows_of_epoch, source)
        part = Part(source.iterable, rows, collator, cut)
        skipped = marks.rest // cut.global_batch
        part.tell(epoch, skip=skipped * cut.portions)
        with closing(collator):
            yield from collated_parts(Crew(part, pace.hands(cut.portions)), cut, collator, skip=skipped)
        return
    with closing(_each(source.rows(epoch=epoch, bookmarks=marks))) as each:
        steps = bookmarked(cut_items(each, cut, start=marks.rest, keep=copied), marks)
        made = ReadAhead(partial(finished, collator), steps, depth=pace.steps)
        with closing(collator), made:
            yield from made


def batch_portions(
    batches: Iterable[Any], cut: Cut, *, split: bool, bookmarks: Bookmarks | None = None
) -> Generator[PortionStep, None, None]:
    """Yield the steps of a source that makes its batches itself, from where `bookmarks` say, else from its beginning.

    `batches` are those behind the bookmark.

    Without `split` each portion is a batch, uncut; the last, incomplete step is padded with the epoch's first
    batches, cyclic, or with drop_last left out. With `split` each batch is a step, see `split_items`. `global_batch`
    has no meaning here.

    Raises:
        SourceError: a batch cannot be split; names the column.
        Exception: what the source raised, as itself.
    """
    marks = bookmarks or Bookmarks()
    with closing(_each(batches)) as each:
        if split:
            yield from _split_batches(each, cut, marks)
            return
        cut = cut._replace(global_batch=cut.portions)
        for step in bookmarked(cut_items(each, cut, start=marks.rest, keep=copied), marks):
            told = [rows_of(batch) for [batch] in filter(None, step.portions)][: step.real]
            real = -1 if None in told else sum(filter(None, told))
            where = f"batch {step.position_after - step.real} of the source"
            portions = [portion[0] if portion else NO_ROWS for portion in step.portions]
            yield PortionStep(portions, real, step.last, step.position_after, where, step.bookmark)


def source_batches(
    source: BatchSource, pace: Pace, *, epoch: int, bookmarks: Bookmarks | None = None
) -> Generator[Any, None, None]:
    """Yield the batches of a source for `batch_portions`; with workers those of its parts in turn."""
    if not pace.workers:
        yield from source.batches(epoch=epoch, bookmarks=bookmarks)
        return
    yield from Crew(_BatchPart(source, epoch), pace.hands(1)).run()


def finished(collate: Callable[[list[Any]], Any], step: CutStep[Any]) -> PortionStep:
    """Collate each portion of a step that a worker has not collated yet."""
    portions = [_finished(collate, portion) for portion in step.portions]
    first = next((portion[0] for portion in step.portions if portion), None)
    where = first.name if isinstance(first, Item) else f"row {step.position_after - step.real} of the source"
    return PortionStep(portions, step.real, step.last, step.position_after, where, step.bookmark)


def collated_parts(
    crew: Crew, cut: Cut, collate: Callable[[list[Any]], Any], *, skip: int
) -> Generator[PortionStep, None, None]:
    """Yield the steps out of the `Part`s of a crew, without the first `skip` steps."""
    with closing(crew.run()) as found:
        for number, step in enumerate(assemble(found, cut)):
            if number >= skip:
                yield finished(collate, step)


def grouped(
    crew: Crew, steps: Iterator[CutStep[Any]], task_of: Callable[[list[Any]], Any]
) -> Generator[PortionStep, None, None]:
    """Let a crew make each portion of some steps, and put what it made together to steps again."""
    planned: deque[CutStep[Any]] = deque()

    def tasks() -> Iterator[Any]:
        for step in steps:
            planned.append(step)
            yield from (task_of(portion) for portion in step.portions if portion)

    with closing(crew.run(tasks())) as found:
        for first in found:
            step = planned.popleft()
            made = chain([first], found)
            portions = [next(made) if portion else NO_ROWS for portion in step.portions]
            where = f"row {step.position_after - step.real} of the source"
            yield PortionStep(portions, step.real, step.last, step.position_after, where)


def _finished(collate: Callable[[list[Any]], Any], portion: list[Any]) -> Any:  # noqa: ANN401 - a batch
    if not portion:
        return NO_ROWS
    return portion[0].batch if isinstance(portion[0], Collated) else collate(portion)


def _each(items: Iterable[Any]) -> Generator[Any, None, None]:
    yield from items  # whoever closes this closes them, where they can be closed


def _rows_of_epoch(source: SequenceSource, epoch: int) -> Iterator[Any]:
    return source.rows(epoch=epoch)


def _row_steps(rows: EpochRows) -> Iterator[CutStep[Slot]]:
    """Yield what stands at each step."""
    schedule = rows.schedule
    for step in range(schedule.steps):
        portions = [slots(rows.order, positions) for positions in schedule.portions(step)]
        last = [step + 1 >= schedule.steps_of(portion) for portion in range(rows.portions)]
        real = schedule.real_rows(step)
        position = int(schedule.positions(step)[0]) + real
        yield CutStep(portions, real, last, position)


def _step_of_rows(rows: EpochRows, collator: Collator, step: CutStep[Slot]) -> PortionStep:
    """Read the rows of all portions at once, and collate each portion."""
    wanted = [slot for portion in step.portions for slot in portion]
    found = iter(rows.source.rows(wanted, epoch=rows.epoch))
    loaded = [[next(found) for _ in portion] for portion in step.portions]
    return finished(collator, step._replace(portions=loaded))


class _RowTask(NamedTuple):
    """One portion for a worker."""

    epoch: int
    slots: list[Slot]


class _RowDuty(Dataset[Any]):
    """Reads and collates portions in a worker."""

    def __init__(self, source: RowSource, collator: Collator) -> None:
        self.dataset: Any = getattr(source, "dataset", source)
        self._source, self._collator = source, collator

    def __getitem__(self, task: _RowTask) -> Any:  # noqa: ANN401 - a batch
        return guarded(lambda: self._collator(self._source.rows(task.slots, epoch=task.epoch)))


def _mapped_by_workers(rows: EpochRows, collator: Collator, pace: Pace) -> Generator[PortionStep, None, None]:
    crew = Crew(_RowDuty(rows.source, collator), pace.hands(rows.portions))
    with closing(grouped(crew, _row_steps(rows), lambda portion: _RowTask(rows.epoch, portion))) as steps:
        yield from steps


class _BatchPart(IterableDataset[Any]):
    """Gives the batches of one worker's part; an error ends it, as `Failed`."""

    def __init__(self, source: BatchSource, epoch: int) -> None:
        super().__init__()
        self.dataset: Any = source.iterable
        self._source, self._epoch = source, epoch

    def __iter__(self) -> Iterator[Any]:
        batches = self._source.batches(epoch=self._epoch)
        while (batch := guarded(partial(next, batches, _END))) is not _END:
            yield batch
            if isinstance(batch, Failed):
                return


_END = object()


def _split_batches(batches: Iterator[Any], cut: Cut, marks: Bookmarks) -> Iterator[PortionStep]:
    numbered = islice(enumerate(batches, start=marks.base), marks.rest, None)
    first = marks.base + marks.rest
    for step in split_items(numbered, cut, lambda pair: sure_rows(pair[1]), first=first):
        number, batch = step.item
        portions = [take_rows(batch, rows) if rows else NO_ROWS for rows in step.rows]
        after = number + 1
        yield PortionStep(portions, step.real, step.last, after, f"batch {number} of the source", marks.at(after))
