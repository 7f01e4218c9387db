"""The portions of a torch DataLoader, made with all that its user told it but batch by batch for each rank.

Row numbers are cut into portions before anything is read or collated; an iterable dataset's rows before they are
collated. Kept are the dataset, any sampler or batch sampler, the collate function, workers with their init function,
context, time-out, prefetch factor and persistence, and the generator: from the same seeds come the same row numbers
and worker seeds as from torch alone.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, cast

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, get_worker_info

from stream.bookmarks import Bookmarks
from stream.cuts import NO_ROWS, Cut, CutStep, cut_items, cut_lists, split_items
from stream.errors import OptionError
from stream.foreign import as_seen_by_one_process, one_pass, tell_epoch
from stream.parts import Part
from stream.peeked import Peeked
from stream.portions import PortionStep, batch_portions, collated_parts, finished, grouped
from stream.wire import copied
from stream.workers import Crew, Hands, guarded


class Splitting(NamedTuple):
    """What accelerate says about the batches of a loader; see `schedule.py` for the last step.

    With `split_batches` a step is one batch of the loader, else one batch for each of the `portions`.
    """

    portions: int
    split_batches: bool
    drop_last: bool = False
    even_batches: bool = True


class LoaderPortions:
    """A DataLoader as portions; one pass at a time. Not thread-safe.

    Raises:
        OptionError: its batch size cannot be split over the portions.
    """

    def __init__(self, loader: DataLoader[Any], splitting: Splitting) -> None:
        self._loader, self._splitting = loader, splitting
        self._size = _batch_size(loader)
        count, split = splitting.portions, splitting.split_batches
        if split and self._size is not None and self._size % count:
            problem = f"a batch of {self._size} rows cannot be split over {count} ranks evenly"
            raise OptionError("batch_size", self._size, f"{problem}; use a multiple of {count}")
        rows = (self._size or count) * (1 if split else count)
        self._cut = Cut(rows, count, splitting.drop_last or loader.drop_last, splitting.even_batches)
        self._crew: Crew | None = None
        self._part: Part | None = None

    def begin(self, *, epoch: int, skip: int = 0) -> Generator[PortionStep, None, None]:
        """Tell the epoch, draw from the loader's generators, and return the epoch's steps without the first `skip`.

        To be called in the thread that iterates the loader, since the global generator is that thread's to draw from;
        the steps may then be taken in another one. No process starts before the first step is asked for. What is
        skipped is neither read nor made where rows have numbers, and not collated where they have none.

        Raises:
            Exception: from the steps: what dataset, sampler or collate function raised, as itself.
        """
        loader = self._loader
        if not _is_plain(loader) or (self._is_iterable and loader.batch_sampler is None):
            return self._made_batches(epoch, skip)
        tell_epoch(loader, epoch)
        generator = torch.Generator() if self._crew is not None else _drawn(loader)
        if self._is_iterable:
            return self._rows(epoch, skip, generator)
        steps = Peeked(self._numbered_steps())
        steps.has(1)  # a sampler draws its seed when it is asked first
        return self._numbers(_each(steps), epoch, skip, generator)

    def __len__(self) -> int:
        """Return the number of steps of an epoch.

        Raises:
            TypeError: the loader does not tell its length, or it has an iteration of its own.
        """
        cut, splitting = self._cut, self._splitting
        if self._rows_sampler is not None:
            items, share = len(self._rows_sampler), cut.global_batch
        elif not self._is_iterable and _is_plain(self._loader):
            items, share = len(self._loader), 1 if splitting.split_batches else cut.portions
        else:
            raise TypeError(
                f"a {type(self._loader).__name__} over a {type(self._loader.dataset).__name__} has no length"
            )
        return items // share if cut.drop_last else -(-items // share)

    def close(self) -> None:
        """End persistent workers. Idempotent."""
        crew, self._crew = self._crew, None
        if crew is not None:
            crew.close()

    @property
    def _rows_sampler(self) -> Any:  # noqa: ANN401 - any iterable of row numbers
        """What steps are cut out of row by row, as torch's own batch sampler would but for the last; else None."""
        batches: Any = self._loader.batch_sampler
        is_torchs = type(batches) is BatchSampler and not self._is_iterable and _is_plain(self._loader)
        return batches.sampler if is_torchs and (self._cut.drop_last or not batches.drop_last) else None

    @property
    def _is_iterable(self) -> bool:
        return isinstance(self._loader.dataset, IterableDataset)

    def _made_batches(self, epoch: int, skip: int) -> Generator[PortionStep, None, None]:
        cut = self._cut
        start = skip if self._splitting.split_batches else skip * cut.portions
        batches = one_pass(self._loader, epoch=epoch)
        return batch_portions(batches, cut, split=self._splitting.split_batches, bookmarks=Bookmarks(start))

    def _rows(self, epoch: int, skip: int, generator: torch.Generator) -> Generator[PortionStep, None, None]:
        loader, cut = self._loader, self._cut
        dataset = as_seen_by_one_process(cast("IterableDataset[Any]", loader.dataset))
        if not loader.num_workers:
            return _rows_here(dataset, cut, loader.collate_fn, skip=skip)
        if self._part is None:
            self._part = Part(loader.dataset, partial(_iterated, dataset), loader.collate_fn, cut)
        self._part.tell(epoch, skip=skip * cut.portions)
        return collated_parts(self._crew_of(self._part, generator), cut, loader.collate_fn, skip=skip)

    def _numbered_steps(self) -> Iterator[CutStep[Any]]:
        loader, cut = self._loader, self._cut
        if loader.batch_sampler is None:  # each number is a batch that the dataset made
            whole = Cut(1, 1) if self._splitting.split_batches else cut._replace(global_batch=cut.portions)
            return cut_items(iter(loader.sampler), whole)
        if self._rows_sampler is not None:
            return cut_items(iter(self._rows_sampler), cut)
        lists = map(list, iter(loader.batch_sampler))
        return _split_lists(lists, cut) if self._splitting.split_batches else cut_lists(lists, cut)

    def _numbers(
        self, steps: Iterator[CutStep[Any]], epoch: int, skip: int, generator: torch.Generator
    ) -> Generator[PortionStep, None, None]:
        loader, single = self._loader, self._loader.batch_sampler is None
        crew = self._crew_of(_Fetching(loader.dataset, loader.collate_fn, single=single), generator)
        made = grouped(crew, islice(steps, skip, None), partial(_Task, epoch))
        if not (single and self._splitting.split_batches):
            return made
        batches = (portion for step in made for portion in step.portions if portion is not NO_ROWS)
        return batch_portions(batches, self._cut, split=True)

    def _crew_of(self, duty: Any, generator: torch.Generator) -> Crew:  # noqa: ANN401 - see Crew
        """Return the workers; persistent ones stay, with the duty that they began with."""
        if self._crew is not None:
            return self._crew
        loader, cut = self._loader, self._cut
        batches = cut.portions if self._splitting.split_batches else 1
        hands = Hands(
            workers=loader.num_workers,
            prefetch=(loader.prefetch_factor or 2) * batches,
            persistent=loader.persistent_workers,
            timeout_s=loader.timeout,
            init=loader.worker_init_fn,
            context=loader.multiprocessing_context,
            generator=generator,
        )
        crew = Crew(duty, hands)
        if loader.persistent_workers:
            self._crew = crew
        return crew


class _Task(NamedTuple):
    """One portion for a worker: its row numbers."""

    epoch: int
    numbers: list[Any]


class _Fetching(Dataset[Any]):
    """Reads and collates portions by row numbers, as torch's own fetcher does; tells the dataset its epoch."""

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], *, single: bool) -> None:  # noqa: ANN401 - foreign
        self.dataset = dataset
        self._collate, self._single = collate, single
        self._told: int | None = None

    def __getitem__(self, task: _Task) -> Any:  # noqa: ANN401 - a batch
        return guarded(partial(self._fetch, task))

    def _fetch(self, task: _Task) -> Any:  # noqa: ANN401 - a batch
        if get_worker_info() is not None and self._told != task.epoch:
            self._told = task.epoch
            tell_epoch(self.dataset, task.epoch)
        if self._single:
            return self._collate(self.dataset[task.numbers[0]])
        if getattr(self.dataset, "__getitems__", None):
            return self._collate(self.dataset.__getitems__(task.numbers))
        return self._collate([self.dataset[number] for number in task.numbers])


def _batch_size(loader: DataLoader[Any]) -> int | None:
    """Return the batch size where all batches but the last have it; None where another sampler makes them."""
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        return loader.batch_size
    return loader.batch_sampler.batch_size if type(loader.batch_sampler) is BatchSampler else None


def _is_plain(loader: DataLoader[Any]) -> bool:
    """Tell whether torch itself would iterate it: a subclass may do what cannot be seen from here."""
    return type(loader).__iter__ is DataLoader.__iter__


def _drawn(loader: DataLoader[Any]) -> torch.Generator:
    """Return a generator from which the workers' seed comes out as torch would draw it here, and draw it here."""
    generator = torch.Generator()
    generator.set_state(torch.get_rng_state() if loader.generator is None else loader.generator.get_state())
    torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
    return generator


def _iterated(dataset: Any, epoch: int) -> Iterator[Any]:  # noqa: ANN401, ARG001 - foreign; it was told its epoch
    return iter(dataset)


def _rows_here(
    dataset: Any,  # noqa: ANN401 - foreign
    cut: Cut,
    collate: Callable[[Any], Any],
    *,
    skip: int,
) -> Generator[PortionStep, None, None]:
    with closing(_each(dataset)) as rows:
        for number, step in enumerate(cut_items(rows, cut, keep=copied)):
            if number >= skip:
                yield finished(collate, step)


def _each(items: Any) -> Generator[Any, None, None]:  # noqa: ANN401 - foreign
    yield from items  # whoever closes this closes them, where they can be closed


def _split_lists(lists: Iterator[list[Any]], cut: Cut) -> Iterator[CutStep[Any]]:
    position = 0
    for step in split_items(lists, cut, len):
        position += step.real
        portions = [[step.item[row] for row in rows] for rows in step.rows]
        yield CutStep(portions, step.real, step.last, position)
