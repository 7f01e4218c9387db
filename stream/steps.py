"""The steps of one epoch as finished batches: read, collated and, for the stock dispatcher, packed.

`workers=0` loads in threads of this process (`LoadedSteps`, an IterableDataset that reads ahead); with workers torch
runs `ShardDataset`, `StepSampler` and `Finish` in worker processes. Both give the same batches.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch.utils.data import IterableDataset

from stream.bookmarks import Bookmarks, bookmarked
from stream.collate import Collator
from stream.cuts import Cut, CutStep, cut_items
from stream.plain import pack, pack_fault
from stream.point import Bookmark
from stream.read_ahead import ReadAhead
from stream.sharded import Failed, Loaded, ShardDataset, Step, StepSampler
from stream.sources import SequenceSource
from stream.workers import raisable, words_of


@dataclass(frozen=True)
class Finish:
    """Collates loaded rows; with `packed_for` ranks it packs them for the stock dispatcher, which carries tensors only.

    An error becomes a value, in the batch's place: a worker process could not raise it faithfully, and packed it
    reaches every rank.
    """

    collator: Collator
    packed_for: int | None = None

    def __call__(self, loaded: "Loaded | Failed") -> Any:  # noqa: ANN401 - a user's collate returns what it likes
        """Return the batch of these rows, or what stands for an error."""
        if isinstance(loaded, Failed):
            return self.failed(loaded.error)
        try:
            batch = self.collator(loaded.rows)
            if self.packed_for is None:
                return batch
            return pack(named(batch), rows=len(loaded.rows), real_rows=loaded.real_rows)
        except Exception as exc:  # noqa: BLE001 - raised where the batch arrives
            return self.failed(exc)

    def failed(self, error: Exception) -> Any:  # noqa: ANN401 - as __call__
        """Return what travels in the place of a batch that could not be made."""
        if self.packed_for is None:
            return Failed(raisable(error))
        return pack_fault(self.packed_for, words_of(error))

    def end_of_nothing(self) -> Iterator[Any]:
        """Yield what ends an epoch that has no steps, where one is needed: a packed step without real rows.

        The stock dispatcher knows the end only behind a step; without any it raises.
        """
        if self.packed_for is not None:
            yield pack({}, rows=self.packed_for, real_rows=0)


class Ahead(NamedTuple):
    """How far to read ahead: steps in flight, and the bytes that they may hold together."""

    steps: int
    budget_bytes: int


class Told(NamedTuple):
    """A batch of a sequence in one process, with what nothing else tells.

    Its rows, whether it is the last, and what the source said of itself behind it.
    """

    batch: Any
    real_rows: int
    last: bool
    bookmark: Bookmark | None = None


class LoadedSteps(IterableDataset[Any]):
    """Finished batches of one epoch, loaded ahead in threads. One pass; its threads end with it, or when closed."""

    def __init__(self, ahead: ReadAhead[Any, Any], finish: Finish) -> None:
        super().__init__()
        self._ahead, self._finish = ahead, finish

    def __iter__(self) -> Iterator[Any]:
        with closing(self._finish.collator), self._ahead:
            empty = True
            try:
                for batch in self._ahead:
                    empty = False
                    yield batch
            except Exception as exc:  # noqa: BLE001 - raised where the batch arrives
                empty = False
                yield self._finish.failed(exc)
            if empty:
                yield from self._finish.end_of_nothing()


def row_steps(dataset: ShardDataset, sampler: StepSampler, finish: Finish, ahead: Ahead) -> ReadAhead[Step, Any]:
    """Load the steps of a row source ahead."""
    return ReadAhead(
        lambda step: finish(dataset.__getitems__(step)),
        sampler,
        depth=ahead.steps,
        cost=lambda step: dataset.source.cost(step.slots),
        budget_bytes=ahead.budget_bytes,
    )


def sequence_steps(
    source: SequenceSource,
    cut: Cut,
    finish: Finish,
    ahead: Ahead,
    *,
    epoch: int,
    bookmarks: Bookmarks | None = None,
) -> ReadAhead[CutStep[Any], Any]:
    """Load a sequence's steps ahead, from where `bookmarks` say, else from its beginning.

    One thread takes its rows in order. What is not packed is `Told`.
    """

    def made(step: CutStep[Any]) -> Any:  # noqa: ANN401 - as Finish
        rows = [row for portion in step.portions for row in portion]  # padding last
        batch = finish(Loaded(rows, step.real))
        if finish.packed_for is not None or isinstance(batch, Failed):
            return batch
        return Told(batch, step.real, all(step.last), step.bookmark)

    marks = bookmarks or Bookmarks()
    steps = cut_items(source.rows(epoch=epoch, bookmarks=marks), cut, start=marks.rest)
    return ReadAhead(made, bookmarked(steps, marks), depth=ahead.steps)


_WHOLE, _LIST, _TUPLE = "\0whole", "\0list", "\0tuple"


def named(batch: Any) -> Mapping[str, Any]:  # noqa: ANN401 - a batch may be anything
    """Return a batch as a mapping, since packing goes by names; `unnamed` gives it back."""
    if isinstance(batch, Mapping):
        return batch
    if isinstance(batch, list | tuple):
        return {_LIST if isinstance(batch, list) else _TUPLE: {str(i): leaf for i, leaf in enumerate(batch)}}
    return {_WHOLE: batch}


def unnamed(found: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a batch may be anything
    """Return the batch behind `named`."""
    if _WHOLE in found:
        return found[_WHOLE]
    if _LIST in found:
        return list(found[_LIST].values())
    return tuple(found[_TUPLE].values()) if _TUPLE in found else found
