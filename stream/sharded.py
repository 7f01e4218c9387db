"""A map-style dataset over the index, and its batch sampler.

Shard mode runs them in torch's DataLoader for its own rows; dispatch mode's worker processes run the same.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch.utils.data import Dataset, IterableDataset, Sampler

from stream.schedule import Schedule, Slot, slots
from stream.sources import BatchSource, RowSource, SequenceSource
from stream.substitute import RowOrder


class Step(NamedTuple):
    """What is to be brought at one step: `slots` (padding included) of `epoch`, `real_rows` of the whole step."""

    epoch: int
    real_rows: int
    slots: list[Slot]


class Loaded(NamedTuple):
    """The rows of one step as they were read."""

    rows: list[Any]
    real_rows: int


class Failed(NamedTuple):
    """Stands in a batch's place where loading it failed; whoever gets it raises `error`."""

    error: Exception


class StepSampler(Sampler[Step]):
    """The steps of one epoch: of one rank, or over all ranks with `rank` None. A batch sampler for torch."""

    def __init__(self, order: RowOrder, schedule: Schedule, *, epoch: int, rank: int | None) -> None:
        super().__init__()
        self._order, self._schedule, self._epoch, self._rank = order, schedule, epoch, rank

    def __len__(self) -> int:
        return self._schedule.steps if self._rank is None else self._schedule.steps_of(self._rank)

    def __iter__(self) -> Iterator[Step]:
        for step in range(len(self)):
            if self._rank is None:
                positions = self._schedule.positions(step)
            else:
                positions = self._schedule.portion(step, self._rank)
            yield Step(self._epoch, self._schedule.real_rows(step), slots(self._order, positions))


class ShardDataset(Dataset[Any]):
    """A map-style dataset over the index.

    `dataset[row]` is one row as it was read (an `Item`: key, encoded image, caption). `__getitems__` brings many rows
    by merged reads: of a `Step` as `Loaded`, of row numbers as a list.
    """

    def __init__(self, source: RowSource) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, row: int) -> Any:  # noqa: ANN401 - foreign rows are what their dataset gives
        return self.__getitems__([row])[0]

    def __getitems__(self, wanted: "Step | list[int]") -> Any:  # noqa: ANN401 - see the class
        if isinstance(wanted, Step):
            try:
                return Loaded(self.source.rows(wanted.slots, epoch=wanted.epoch), wanted.real_rows)
            except Exception as exc:  # noqa: BLE001 - raised where the batch arrives
                return Failed(exc)
        return self.source.rows([Slot(row, row) for row in wanted], epoch=0)


class ShownSampler:
    """What a loader shows as its `batch_sampler`: `accelerator.join_uneven_inputs` overrides its `even_batches`.

    Batches are not made of it.
    """

    def __init__(self, *, batch_size: int | None, drop_last: bool, even_batches: bool) -> None:
        self.batch_size, self.drop_last, self.even_batches = batch_size, drop_last, even_batches

    def __iter__(self) -> Iterator[Any]:
        """Refuse what would read raw rows in storage order, on every rank.

        Raises:
            TypeError: always; accelerate's `skip_first_batches` comes here.
        """
        raise TypeError(
            "a StreamLoader makes its steps itself: after load_state() it goes on where the state is, nothing is to be "
            "skipped; to skip steps otherwise write loader.skip(steps), not skip_first_batches"
        )


class SequenceDataset(IterableDataset[Any]):
    """A user's iterable as torch knows datasets."""

    def __init__(self, iterable: Any) -> None:  # noqa: ANN401 - duck-typed
        super().__init__()
        self.iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        return iter(self.iterable)


def dataset_of(source: RowSource | SequenceSource | BatchSource) -> ShardDataset | SequenceDataset:
    """Return what a loader over this source shows as its `dataset`."""
    return (
        SequenceDataset(source.iterable) if isinstance(source, SequenceSource | BatchSource) else ShardDataset(source)
    )
