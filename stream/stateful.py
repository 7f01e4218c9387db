"""The portions of a torchdata StatefulDataLoader over an iterable dataset, and what that says of itself between them.

Invariants:
- rows come from it in lists as its batch size says; they are put together again before they are cut into steps, so only
  the last step is short, whatever workers end when;
- its state is taken when a list has come, and kept until a later list's boundary has been handed out: a step that ends
  within a list is told as the boundary before it and the rows since then;
- a source that says nothing of itself is read again from its beginning, and its rows are counted here: torchdata would
  do so too, but counts what it passes over twice [0.11], so that a second stop would lose rows.
"""

from collections.abc import Generator, Iterator
from contextlib import closing
from copy import deepcopy
from itertools import islice
from typing import Any, cast

import torch
from torch.utils.data import DataLoader

from stream.bookmarks import Bookmarks, says_something
from stream.cuts import Cut, cut_items
from stream.errors import OptionError
from stream.foreign import as_seen_by_one_process, end, tell_epoch
from stream.loader_portions import Splitting
from stream.loader_state import LoaderState
from stream.portions import PortionStep, batch_portions, finished
from stream.wire import copied


class StatefulPortions:
    """A StatefulDataLoader as portions; one pass at a time. Not thread-safe.

    Rows are collated in the reader, since a worker cannot know into which portions they go.

    Raises:
        OptionError: its batch size cannot be split over the portions.
    """

    def __init__(self, loader: DataLoader[Any], splitting: Splitting) -> None:
        self._loader, self._splitting = loader, splitting
        size, count = loader.batch_size, splitting.portions
        if splitting.split_batches and size is not None and size % count:
            problem = f"a batch of {size} rows cannot be split over {count} ranks evenly; use a multiple of {count}"
            raise OptionError("batch_size", size, problem)
        rows = (size or count) * (1 if splitting.split_batches else count)
        self._cut = Cut(rows, count, splitting.drop_last, splitting.even_batches)
        self._boundaries: dict[int, dict[str, Any] | None] = {}

    def begin(self, start: LoaderState, *, skip: int = 0) -> Generator[PortionStep, None, None]:
        """Return the steps behind `start` without the first `skip`; to be called as `LoaderPortions.begin` is.

        Raises:
            Exception: from the steps: what dataset or collate function raised, as itself.
        """
        reading: Any = as_seen_by_one_process(self._loader)
        # What torch refuses to assign; workers that live on would not hear of the next epoch
        reading.__dict__.update(persistent_workers=False, pin_memory=False, generator=_seeded(self._loader))
        if self._loader.batch_size is not None:
            reading.__dict__["collate_fn"] = _same
        tell_epoch(reading, start.epoch)
        reading.load_state_dict(start.source or {})
        self._boundaries = {start.position - start.rest: start.source}
        return self._steps(reading, start, skip)

    def source_at(self, position: int) -> tuple[dict[str, Any] | None, int]:
        """Return the source's state at the last boundary before a position, and the rows since; forget older ones."""
        boundary = max(place for place in self._boundaries if place <= position)
        for place in [place for place in self._boundaries if place < boundary]:
            del self._boundaries[place]
        return self._boundaries[boundary], position - boundary

    def _steps(self, reading: Any, start: LoaderState, skip: int) -> Generator[PortionStep, None, None]:  # noqa: ANN401 - untyped
        whole = self._loader.batch_size is None
        with closing(self._given(reading, start, whole=whole)) as given:
            if whole:
                passed = start.rest + skip * (1 if self._splitting.split_batches else self._cut.portions)
                made = batch_portions(
                    given, self._cut, split=self._splitting.split_batches, bookmarks=Bookmarks(passed)
                )
            else:
                collate = self._loader.collate_fn
                rows = islice(cut_items(_flat(given), self._cut, start=start.rest, keep=copied), skip, None)
                made = (finished(collate, step) for step in rows)
            with closing(made):
                for step in made:
                    yield step._replace(position_after=step.position_after + start.position - start.rest)

    def _given(self, reading: Any, start: LoaderState, *, whole: bool) -> Generator[Any, None, None]:  # noqa: ANN401 - untyped
        """Yield the lists, or batches, and note the state behind each."""
        position = start.position - start.rest
        iterator = iter(reading)
        try:
            for item in iterator:
                position += 1 if whole else len(item)
                state = reading.state_dict()
                if says_something(state):
                    self._boundaries[position] = deepcopy(state)
                yield item
        finally:
            end(iterator)


def _flat(lists: Iterator[list[Any]]) -> Iterator[Any]:
    return (row for rows in lists for row in rows)


def _same(rows: list[Any]) -> list[Any]:
    return rows


def _seeded(loader: DataLoader[Any]) -> torch.Generator:
    """Return a generator for the seeds of workers, drawn here as torch would: in the thread that iterates."""
    generator = torch.Generator()
    drawn = torch.empty((), dtype=torch.int64).random_(generator=cast("torch.Generator", loader.generator))
    generator.manual_seed(int(drawn))
    return generator
