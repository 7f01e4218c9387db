"""StreamLoader: what a training script imports."""

import atexit
import os
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from shards.dataset import DatasetReader
from stream.collate import Collate
from stream.describe import Facts, describe
from stream.errors import NotPreparedError, OptionError
from stream.job import Job
from stream.options import BatchSpec, CaptionPolicy, Shuffle, StreamOptions
from stream.plan import Plan
from stream.sharded import ShardDataset
from stream.sources import PackedSource, SequenceSource, open_source
from stream.stats import Counters, Stats

if TYPE_CHECKING:
    from accelerate import Accelerator


class StreamLoader(DataLoader[Any]):
    """Batches of image-caption data for the ranks of a training job.

    Iterating it gives one epoch: dicts with "image" (uint8 tensor [B, 3, H, W], RGB, channels_last; without
    `image_size` a list of [3, H_i, W_i]), "caption" (list[str]; list[list[str]] with captions="all") and "key"
    (list[str]), or whatever `collate` makes. The Accelerator's own configuration decides the rest:
    `dispatch_batches` False is shard mode, True or None dispatch mode; `split_batches` says whether `batch_size`
    counts a whole step or one rank's portion.

    Nothing is opened or started before the first `len`, `describe` or `next`. One iteration lives at a time: a new
    one ends the former.

    Raises:
        OptionError: an option, or a combination of options, source and job, cannot work.
        NotPreparedError: from iterating: the job has several ranks and this loader does not know them.
        DecodeError, SourceError, ShardsError: from iterating: what is read is bad; names shard, key and cause. In a
            dispatched job of several ranks every rank raises a SourceError with those words.
        FileNotFoundError: from the first use: there is no dataset at the source's URL.
    """

    _is_accelerate_prepared = True  # so that accelerator.prepare() registers this very object and wraps nothing

    def __init__(  # noqa: PLR0913 - the front door: what a batch is, by name; how it is made goes into `options`
        self,
        source: Any,  # noqa: ANN401 - a URL or any dataset
        *,
        batch_size: int,
        accelerator: "Accelerator | None" = None,
        image_size: int | tuple[int, int] | None = None,
        captions: CaptionPolicy = "first",
        shuffle: Shuffle | None = "window",
        seed: int = 0,
        drop_last: bool = False,
        collate: Collate | None = None,
        name: str = "train",
        storage_options: Mapping[str, object] | None = None,
        options: StreamOptions | None = None,
    ) -> None:
        """Check the options.

        Args:
            source: The URL or path of a packed dataset (its folder or manifest), a map-style Dataset, or an iterable
                of rows such as a webdataset pipeline.
            batch_size: Rows; of a whole step with the Accelerator's `split_batches`, else of one rank.
            accelerator: The job's Accelerator. Without one the loader works in a single process.
            image_size: Pixels: a side, or (height, width). None keeps every image's own size.
            captions: "first", "random", "all" or "each", see `BatchSpec`.
            shuffle: "window", "full" or None, see `BatchSpec`.
            seed: Of order and caption choice.
            drop_last: Leave out the rows that do not fill a step.
            collate: Makes a batch from a list of examples (dicts with "image", "caption", "key"), in place of the
                default; runs where decoding runs.
            name: Tells several loaders of a job apart.
            storage_options: For the source's fsspec file system.
            options: How batches are made: `StreamOptions`.
        """
        self.spec = BatchSpec(
            batch_size=batch_size,
            image_size=image_size,
            captions=captions,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
        )
        self.options = _checked(options, collate)
        self.name = name
        self._accelerator, self._collate = accelerator, collate
        verify = self.options.verify
        self._source = open_source(
            source,
            spec=self.spec,
            read=lambda url: DatasetReader(url, storage_options=storage_options, verify=verify),
        )
        self._epoch = 0
        self._counters = Counters()
        self._live: Callable[[], Generator[Any, None, None] | None] = _nothing
        own = self._source
        dataset: Any = _Sequence(own.iterable) if isinstance(own, SequenceSource) else ShardDataset(own)
        super().__init__(dataset, batch_size=batch_size, drop_last=drop_last)
        self._plan  # noqa: B018 - what cannot work is refused here, not at the first batch

    @cached_property
    def _plan(self) -> Plan:
        job = Job()
        if self._accelerator is not None:
            from stream.dispatch import job_of  # noqa: PLC0415 - accelerate is imported by who uses it

            job = job_of(self._accelerator)
        plan = Plan(self._source, self.spec, self.options, self._collate, job, self._accelerator is not None)
        plan.check()
        return plan

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override] # torch names its own iterator class
        self._refuse_unprepared()
        self.close()
        iteration = self._iterate(self._epoch)
        # Not held: a loop that is left by `break` drops its iteration, and that ends it
        self._live = weakref.ref(iteration)
        _iterations.add(iteration)
        return iteration

    def __getstate__(self) -> dict[str, Any]:
        """A copy has no live iteration."""
        return {**self.__dict__, "_live": _nothing}

    def __len__(self) -> int:
        """Return the number of steps of an epoch.

        Raises:
            TypeError: the source does not tell its length.
        """
        if self._plan.schedule is None:
            raise TypeError(f"loader {self.name!r} reads a source of unknown length")
        return self._plan.schedule.steps

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration delivers, counted from 0."""
        return self._epoch

    @property
    def iteration(self) -> int:
        """Accelerate's name for `epoch`."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration deliver this epoch.

        Raises:
            OptionError: it is no whole number, or below 0.
        """
        if not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < 0:
            raise OptionError("epoch", epoch, "must be a whole number; epochs are counted from 0")
        self._epoch = epoch

    @property
    def total_batch_size(self) -> int:
        """Rows of a whole step over all ranks."""
        return self._plan.global_batch

    @property
    def total_dataset_length(self) -> int:
        """Rows of an epoch over all ranks."""
        if self._plan.rows is None:
            raise TypeError(f"loader {self.name!r} reads a source of unknown length")
        return self._plan.rows

    @property
    def stats(self) -> Stats:
        """A snapshot of what this rank got and how long it waited."""
        return self._counters.snapshot()

    def close(self) -> None:
        """End the live iteration with its threads and worker processes. Idempotent."""
        live, self._live = self._live(), _nothing
        if live is not None:
            live.close()

    def describe(self) -> str:
        """Return what this loader is, one fact a line, the number of ranks first."""
        plan = self._plan
        facts = Facts(
            name=self.name,
            source=self._source_name(),
            ranks=plan.job.ranks,
            rank=plan.job.rank,
            mode=plan.mode,
            mode_by_default=plan.job.dispatch_batches is None,
            accelerator=self._accelerator is not None,
            prepared=self._is_registered(),
            global_batch=plan.global_batch,
            rows=plan.rows,
            steps=None if plan.schedule is None else plan.schedule.steps,
            even_batches=plan.job.even_batches,
            pinned=plan.pinned,
            decode_threads=plan.decode_threads,
        )
        return describe(facts, self.spec, self.options)

    def _iterate(self, epoch: int) -> Generator[Any, None, None]:
        passing = self._plan.begin(epoch)
        counters, step = self._counters, 0
        try:
            while True:
                counters.waiting()
                try:
                    batch, told = next(passing)
                except StopIteration:
                    break
                real_rows = self._plan.real_rows(step) if told is None else told
                if passing.is_last():
                    passing.set_remainder(real_rows)
                counters.received()
                step += 1
                yield batch
            if self._epoch == epoch:  # else set_epoch was called meanwhile
                self._epoch = epoch + 1
        finally:
            passing.close()

    def _refuse_unprepared(self) -> None:
        ranks = max(self._plan.job.ranks, _launched_ranks())
        if ranks == 1:
            return
        if self._accelerator is None:
            raise NotPreparedError(self.name, ranks, "it was made without the job's Accelerator")
        if self._plan.job.ranks == 1:
            problem = "its Accelerator is alone; without a GPU write Accelerator(cpu=True) or set ACCELERATE_USE_CPU=1"
            raise NotPreparedError(self.name, ranks, problem)
        if not self._is_registered():
            raise NotPreparedError(self.name, ranks, "it has not gone through accelerator.prepare()")

    def _is_registered(self) -> bool:
        if self._accelerator is None:
            return False
        from stream.dispatch import is_prepared  # noqa: PLC0415 - accelerate is imported by who uses it

        return is_prepared(self._accelerator, self)

    def _source_name(self) -> str:
        if isinstance(self._source, PackedSource):
            return self._source.reader.url
        inner = self._source.iterable if isinstance(self._source, SequenceSource) else self._source
        return f"a {type(getattr(inner, 'dataset', inner)).__name__}"


_iterations: "weakref.WeakSet[Generator[Any, None, None]]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """End what a script still holds when it ends: while the interpreter takes itself apart, nothing closes cleanly."""
    for iteration in list(_iterations):
        with suppress(ValueError):  # a daemon thread is in it
            iteration.close()


def _checked(options: object, collate: object) -> StreamOptions:
    if options is not None and not isinstance(options, StreamOptions):
        raise OptionError("options", options, "must be a StreamOptions")
    if collate is not None and not callable(collate):
        raise OptionError("collate", collate, "must be callable: a list of examples in, a batch out")
    return options or StreamOptions()


def _nothing() -> None:
    """Stand where a weak reference to the live iteration stands while there is one."""


class _Sequence(IterableDataset[Any]):
    """A user's iterable as torch knows datasets."""

    def __init__(self, iterable: Any) -> None:  # noqa: ANN401 - duck-typed
        super().__init__()
        self.iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        return iter(self.iterable)


def _launched_ranks() -> int:
    """Return how many processes the launcher started, as it says in WORLD_SIZE; 1 where there was no launcher.

    The one environment variable that is read: an `Accelerator()` that found no GPU under torchrun is alone and does
    not know of the others.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    said = os.environ.get("WORLD_SIZE", "1")
    return int(said) if said.isdecimal() else 1
