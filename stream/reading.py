"""What the reader does for a prepared loader: its steps, sliced as its user says, each with the state behind it."""

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from stream.cuts import NO_ROWS
from stream.errors import OptionError
from stream.foreign import tell_epoch
from stream.lengths import batch_size_of, is_cut_by_rows
from stream.loader_portions import LoaderPortions, Splitting
from stream.loader_state import LoaderState
from stream.portions import PortionStep
from stream.slicing import Slicing, sliced
from stream.stateful import StatefulPortions


class Reading:
    """A torch DataLoader on the reader; one pass at a time. Not thread-safe.

    With `stateful` each portion is a pair: the batch, and the packed `LoaderState` behind the step. Rows that are asked
    for by number need no state of their dataset: they are counted, and what their sampler drew is drawn again.

    Raises:
        OptionError: the batch size cannot be split over the portions.
    """

    def __init__(
        self, loader: DataLoader[Any], splitting: Splitting, *, stateful: bool = False, slicing: Slicing | None = None
    ) -> None:
        self._loader, self._splitting, self._slicing, self._is_stateful = loader, splitting, slicing, stateful
        LoaderPortions(_plain(loader), splitting)  # what cannot be split is refused, sliced or not
        if slicing is not None:  # batches come whole, padding is the slicing's
            splitting = Splitting(1, split_batches=True, drop_last=splitting.drop_last)
        self._source: StatefulPortions | None = None
        self._portions: LoaderPortions | None = None
        if stateful and isinstance(loader.dataset, IterableDataset):
            self._source = StatefulPortions(loader, splitting)
        else:
            self._portions = LoaderPortions(_plain(loader) if stateful else loader, splitting)

    def begin(self, start: LoaderState, *, skip: int) -> Generator[PortionStep, None, None]:
        """Return the steps behind `start` without the first `skip`.

        To be called in the thread that iterates; nothing is read and no process starts before the first is asked for.

        Raises:
            OptionError: `start` lies within a step, since the ranks or the batch size are others than they were.
        """
        generators = {name: generator.get_state() for name, generator in _generators(self._loader).items()}
        if start.finished:
            self._pass_over(start)
            start = LoaderState(epoch=start.epoch + 1)  # a source begins anew, and is told its epoch
        elif start.steps:
            generators |= start.generators
        made = self._begin(start, skip, generators)
        if self._slicing is not None:
            made = sliced(made, self._slicing)
        return self._noted(made, replace(start, generators=generators, steps=start.steps + skip))

    def close(self) -> None:
        """End worker processes that live on. Idempotent."""
        if self._portions is not None:
            self._portions.close()

    def _begin(
        self, start: LoaderState, skip: int, generators: dict[str, torch.Tensor]
    ) -> Generator[PortionStep, None, None]:
        batches = 1 if self._slicing is None else self._slicing.batches
        if self._source is not None:
            return self._source.begin(start, skip=skip * batches)
        if self._portions is None:
            raise TypeError("rows that are asked for by number have portions")
        if not start.steps:
            return self._portions.begin(epoch=start.epoch, skip=skip * batches)
        with _drawing_from(self._loader, generators):
            return self._portions.begin(epoch=start.epoch, skip=(self._steps_before(start) + skip) * batches)

    def _steps_before(self, start: LoaderState) -> int:
        """Return how many steps of now a state stands for: it may be of another number of ranks."""
        size = batch_size_of(self._loader)
        if size is None or not is_cut_by_rows(self._loader):
            return start.steps
        rows = size * (1 if self._splitting.split_batches else self._splitting.portions)
        steps, within = divmod(start.position, rows)
        if within:
            problem = f"lies within a step, since a step has {rows} rows now; use ranks and a batch size that fit it"
            raise OptionError("position", start.position, problem)
        return steps

    def _pass_over(self, state: LoaderState) -> None:
        """Bring generators that the sampler draws from to where they were behind a finished epoch."""
        if set(state.generators) <= {"torch"}:
            return
        with _drawing_from(self._loader, state.generators):
            tell_epoch(self._loader, state.epoch)
            sampler: Any = self._loader.batch_sampler or self._loader.sampler
            for _ in sampler:
                pass

    def _noted(self, steps: Iterable[PortionStep], start: LoaderState) -> Generator[PortionStep, None, None]:
        with closing(_each(steps)) as each:
            for number, step in enumerate(each, start=start.steps + 1):
                if not self._is_stateful:
                    yield step
                    continue
                now = replace(start, steps=number, position=step.position_after, finished=all(step.last))
                if self._source is not None:
                    source, rest = self._source.source_at(step.position_after)
                    now = replace(now, source=source, rest=rest)
                note = now.packed()
                pairs = [NO_ROWS if batch is NO_ROWS else (batch, note) for batch in step.portions]
                yield step._replace(portions=pairs)


def begun(reading: Reading, start: LoaderState, *, skip: int) -> Iterator[PortionStep]:
    """Begin to read; what fails already then is raised by the first step, since every rank has to hear of it."""
    try:
        return reading.begin(start, skip=skip)
    except Exception as exc:  # noqa: BLE001 - raised in its place
        return _raising(exc)


def _raising(error: Exception) -> Iterator[PortionStep]:
    raise error
    yield  # type: ignore[unreachable]


@contextmanager
def _drawing_from(loader: DataLoader[Any], states: dict[str, torch.Tensor]) -> Iterator[None]:
    """Set a loader's generators to some states; afterwards the global one is what it was."""
    before = torch.get_rng_state()
    for name, generator in _generators(loader).items():
        if name in states:
            generator.set_state(states[name].clone())  # as `LoaderState.unpacked`
    try:
        yield
    finally:
        torch.set_rng_state(before)


def _generators(loader: DataLoader[Any]) -> dict[str, torch.Generator]:
    """Return what a sampler may draw from, by name."""
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    found = {"torch": torch.default_generator, "sampler": getattr(sampler, "generator", None)}
    return {name: generator for name, generator in found.items() if isinstance(generator, torch.Generator)}


def _plain(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return torch's own loader with all that this one was told: its rows are asked for by number, not iterated."""
    if type(loader) is DataLoader:
        return loader
    plain: DataLoader[Any] = DataLoader.__new__(DataLoader)
    plain.__dict__.update(loader.__dict__, _iterator=None)
    return plain


def _each(steps: Iterable[PortionStep]) -> Generator[PortionStep, None, None]:
    yield from steps  # whoever closes this closes them, where they can be closed
