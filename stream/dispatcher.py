"""Our class in the place of accelerate's `DataLoaderDispatcher`: it sends each rank its own portion over an `Exchange`.

It has no `__init__` of its own: accelerate's builds `base_dataloader` of all that prepare() passes, and so stays in
step with it. Nothing is started before the first `next`. The loader's base is iterated by the reader alone.
"""

import copy
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from typing import Any, Self

import torch
from accelerate.data_loader import DataLoaderDispatcher, SkipBatchSampler
from accelerate.utils import concatenate, find_batch_size, slice_tensors
from torch.utils.data import BatchSampler

from stream.collate import CollateOptions, Collator
from stream.dispatch import LinkedPassing, group_of, share_over
from stream.errors import OptionError
from stream.exchange import Exchange, ExchangeOptions
from stream.foreign import end
from stream.job import Job
from stream.lengths import batch_size_of, rows_of, steps_of
from stream.live import keep_track
from stream.loader_portions import Splitting
from stream.loader_state import LoaderState
from stream.making import Maker
from stream.offers import batch_offers
from stream.options import StreamOptions
from stream.reading import Reading, begun
from stream.receiving import ReceiverOptions
from stream.slicing import Slicing
from stream.staging import Stager

_NAME = "prepared"
_DEFAULTS = StreamOptions()
_ALONE = ("_exchange", "_reading", "_finish")
"""What a copy does not have."""


class Dispatcher(DataLoaderDispatcher):  # type: ignore[misc] # accelerate has no types
    """A prepared loader in dispatch mode: rank 0 reads, every rank gets its own portion of each step on its device.

    A step is one batch of the loader with `split_batches`, else one batch for each rank. Its end is as in schedule.py:
    `even_batches` and drop_last are kept. Ranks that split one model among them (the mesh's "tp" and "cp") get the same
    portion. A slicing function of the user's own is called on rank 0, with the collated step.

    With accelerate's `use_stateful_dataloader` its `state_dict` tells the step in the user's hands, equal on all ranks,
    and `load_state_dict` lets the next iteration go on behind it. Rows by number are counted and never read again;
    their dataset's own state is not looked at. What comes one after another is put on by torchdata.

    Raises:
        OptionError: from iterating: the batch size cannot be split over the ranks; names both numbers.
        Exception: from iterating: what dataset, sampler or collate function raised on rank 0, on every rank, at the
            same step, after the good ones.
    """

    _is_accelerate_prepared = True
    even_batches = True
    iteration: int
    _exchange: Exchange | None = None
    _reading: Reading | None = None
    _finish: Callable[[], object] | None = None
    _start: LoaderState | None = None
    _note: bytes | None = None

    def __iter__(self) -> Iterator[Any]:
        iteration = self._iterate()
        keep_track(iteration)
        return iteration

    def __len__(self) -> int:
        """Return the steps that this rank gets in an epoch, skipped ones apart.

        Raises:
            TypeError: the dataset does not tell its length.
        """
        base, skipped = self._base()
        steps = steps_of(base, self._splitting(), self._job().portion)
        return max(0, steps - skipped)

    def __reduce__(self) -> tuple[Callable[[], "Dispatcher"], tuple[()], dict[str, Any]]:
        """Copies and pickles have no links, and no iteration."""
        return _blank, (), {name: value for name, value in self.__dict__.items() if name not in _ALONE}

    @property
    def total_batch_size(self) -> int:
        """Rows of a whole step over all ranks.

        Raises:
            TypeError: only the dataset, or a sampler of the user's own, knows.
        """
        size = batch_size_of(self._base()[0])
        if size is None:
            raise TypeError(
                "the batches of this loader are made by its dataset or sampler, and have no size known before"
            )
        return size if self.split_batches else size * self._job().portions

    @property
    def total_dataset_length(self) -> int:
        """Rows of an epoch over all ranks.

        Raises:
            TypeError: the dataset does not tell its length.
        """
        return rows_of(self._base()[0])

    def skipping(self, steps: int) -> Self:
        """Return a loader over the same data whose iterations begin `steps` steps later; keeps all else.

        Where rows have numbers nothing that is skipped is read; rows that come one after another are read on rank 0 and
        dropped there.
        """
        skipped = copy.copy(self)
        skipped.skip_batches += steps
        return skipped

    def state_dict(self) -> dict[str, Any]:
        """Return where the user is: behind the step in hand; at the end of an epoch at the begin of the next.

        Raises:
            OptionError: the loader was not prepared with `use_stateful_dataloader`.
        """
        self._need_state()
        state = LoaderState(epoch=self.iteration) if self._note is None else LoaderState.unpacked(self._note)
        return state.to_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Make the next iteration go on behind a state. Ends the live iteration.

        Raises:
            OptionError: it is no state of such a loader, or this one has none.
        """
        self._need_state()
        self._start = LoaderState.from_dict(state_dict)
        self._note = self._start.packed()
        self.iteration = self._start.epoch + self._start.finished
        if self._exchange is not None:
            self._exchange.end()

    def close(self) -> None:
        """End the live iteration, worker processes that live on, and the links to other ranks. Idempotent."""
        finish, self._finish = self._finish, None
        self._exchange = self._reading = None
        if finish is not None:
            finish()

    def _iterate(self) -> Generator[Any, None, None]:
        self.reset()
        epoch, ended = self.iteration, False
        passing = self._begin()
        try:
            for batch, real_rows in passing:
                found = batch
                if self.use_stateful_dataloader:
                    found, self._note = batch
                ended = self.end_of_dataloader = passing.is_last()
                if ended:
                    self.remainder = -1 if real_rows is None else real_rows
                yield found
            ended = True  # also of a rank that had no step
        finally:
            passing.close()
            if ended:
                self.iteration = epoch + 1

    def _begin(self) -> LinkedPassing:
        job, base = self._job(), self.base_dataloader
        reading, exchange = self._linked(job)
        start, self._start = self._start, None
        if start is None:
            start = LoaderState(epoch=self.iteration)
        skip = self._base()[1]
        facts = {
            "epoch": start.epoch,
            "skipped steps": skip,
            "steps before": start.steps,
            **self._splitting()._asdict(),
        }
        steps = begun(reading, start, skip=skip) if job.rank == 0 else iter(())
        if job.rank != 0:
            torch.empty((), dtype=torch.int64).random_(generator=base.generator)  # as torch does on every rank
        stager = Stager(job.device, pin=bool(base.pin_memory), non_blocking=job.non_blocking)
        maker = Maker(Collator(CollateOptions(None)), stager, verify=True)
        receiving = ReceiverOptions(
            make=maker,
            aside=0 if stager.keeps else 1,
            prefetch_steps=_DEFAULTS.prefetch_steps,
            budget_bytes=_DEFAULTS.read_ahead_bytes,
            empty=stager.empty,
            borrow=stager.keeps,
            warn_after_s=_DEFAULTS.warn_after_s,
        )
        told = {name: repr(value) for name, value in facts.items()}
        iteration = exchange.begin(told, partial(batch_offers, steps), receiving)
        return LinkedPassing(iteration, self, stager.hand_over, registered=True, ends=(_nothing, maker.close))

    def _linked(self, job: Job) -> tuple[Reading, Exchange]:
        if self._reading is None or self._exchange is None:
            self.end_first_workers()
            self._reading = Reading(
                self._base()[0], self._splitting(), stateful=self.use_stateful_dataloader, slicing=self._slicing()
            )
            self._exchange = Exchange(
                ExchangeOptions(
                    name=_NAME,
                    rank=job.rank,
                    shares=tuple(rank // job.group for rank in range(job.ranks)),
                    share=_same if job.ranks == 1 else share_over(job),
                    budget_bytes=_DEFAULTS.read_ahead_bytes,
                    prefetch_steps=_DEFAULTS.prefetch_steps,
                )
            )
            self._finish = weakref.finalize(self, _close, self._exchange, self._reading)
        return self._reading, self._exchange

    def _job(self) -> Job:
        return Job(
            ranks=self.state.num_processes,
            rank=self.state.process_index,
            group=group_of(self.torch_device_mesh),
            split_batches=self.split_batches,
            even_batches=self.even_batches,
            device=self.state.device,
            on_device=True,
            non_blocking=self._non_blocking,
        )

    def _base(self) -> tuple[Any, int]:
        """Return the loader that is read, and how many steps to skip.

        accelerate's own `skip_first_batches` wraps the batch sampler, and would skip batches where steps are meant.
        """
        base, skipped = self.base_dataloader, self.skip_batches
        if type(base.batch_sampler) is not SkipBatchSampler:
            return base, skipped
        inner = copy.copy(base)
        inner.__dict__["batch_sampler"] = base.batch_sampler.batch_sampler  # torch refuses to assign it
        return inner, skipped + base.batch_sampler.skip_batches

    def _splitting(self) -> Splitting:
        sampler = self._base()[0].batch_sampler
        drops = type(sampler) is BatchSampler and sampler.drop_last
        return Splitting(self._job().portions, self.split_batches, bool(self._drop_last or drops), self.even_batches)

    def _slicing(self) -> Slicing | None:
        if self.slice_fn is slice_tensors:
            return None
        splitting = self._splitting()
        batches = 1 if splitting.split_batches else splitting.portions
        size_of = partial(_rows, find_batch_size)
        drop, even = splitting.drop_last, splitting.even_batches
        return Slicing(self.slice_fn, concatenate, size_of, splitting.portions, batches, drop, even)

    def _need_state(self) -> None:
        if not self.use_stateful_dataloader:
            problem = "a loader has a state with DataLoaderConfiguration(use_stateful_dataloader=True) only"
            raise OptionError("use_stateful_dataloader", False, problem)  # noqa: FBT003 - what was got

    def end_first_workers(self) -> None:
        """End the processes that torchdata started to tell its first state: they read for nobody."""
        base = self.base_dataloader
        iterator, base._iterator = base._iterator, None  # noqa: SLF001 - torch has no other way
        if iterator is not None:
            end(iterator)


def _blank() -> Dispatcher:
    return Dispatcher.__new__(Dispatcher)


def _close(exchange: Exchange, reading: Reading) -> None:
    exchange.close()
    reading.close()


def _rows(count: Callable[[Any], int | None], batch: Any) -> int:  # noqa: ANN401 - a batch
    return count(batch) or 0


def _same(data: bytes) -> bytes:
    return data


def _nothing() -> None:
    """Nothing has to be ended before an iteration's threads."""
