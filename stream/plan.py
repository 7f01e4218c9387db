"""One loader's plan: source, options and job put together, and how an epoch of it is begun."""

import os
from dataclasses import dataclass
from functools import cached_property

import torch

from stream.collate import Collate, CollateOptions, Collator
from stream.decode import MAX_PIXELS
from stream.errors import OptionError
from stream.job import Job
from stream.options import BatchSpec, Mode, StreamOptions, check_combination
from stream.order import Order
from stream.passing import LoaderParts, Passing, plain_passing
from stream.resize import ResizeSpec
from stream.schedule import Schedule
from stream.sharded import ShardDataset, StepSampler
from stream.sources import PackedSource, RowSource, SequenceSource
from stream.steps import Ahead, Cut, Finish, LoadedSteps, row_steps, sequence_steps


@dataclass(frozen=True)
class Plan:
    """Everything that an epoch is made from. `with_accelerator` says whether batches go through accelerate.

    Raises:
        OptionError: from `check`: the options do not fit each other, the source or the job.
    """

    source: RowSource | SequenceSource
    spec: BatchSpec
    options: StreamOptions
    collate: Collate | None
    job: Job
    with_accelerator: bool

    @property
    def mode(self) -> Mode:
        """Which mode the Accelerator's `dispatch_batches` asks for; None means dispatch."""
        return "shard" if self.job.dispatch_batches is False else "dispatch"

    @property
    def global_batch(self) -> int:
        """Rows of a whole step."""
        return self.spec.batch_size if self.job.split_batches else self.spec.batch_size * self.job.ranks

    @cached_property
    def rows(self) -> int | None:
        """Rows of an epoch, None where the source does not tell."""
        return None if isinstance(self.source, SequenceSource) else sum(self.source.shard_rows())

    @cached_property
    def schedule(self) -> Schedule | None:
        """The steps of an epoch, None where the source does not tell its length."""
        if self.rows is None:
            return None
        return Schedule(
            self.rows,
            global_batch=self.global_batch,
            ranks=self.job.ranks,
            drop_last=self.spec.drop_last,
            even_batches=self.job.even_batches,
        )

    @property
    def pinned(self) -> bool:
        """Whether batches are staged in pinned memory: there must be an accelerator to pin for."""
        has_accelerator = self.job.device.type != "cpu" if self.with_accelerator else torch.cuda.is_available()
        return self.options.pin_memory and has_accelerator

    @property
    def decode_threads(self) -> int:
        """How many images this process decodes at once, without worker processes."""
        cores = len(os.sched_getaffinity(0))
        sharing = self.job.host_ranks if self.mode == "shard" else 1  # in dispatch mode the reader alone decodes
        return self.options.decode_threads or max(1, cores // sharing)

    def check(self) -> None:
        """Refuse what cannot work, before anything starts."""
        check_combination(
            self.spec, mode=self.mode, indexed=isinstance(self.source, PackedSource), rows=not self._is_sequence()
        )
        if self.global_batch % self.job.ranks:
            problem = f"a step of {self.global_batch} rows cannot be split over {self.job.ranks} ranks evenly"
            raise OptionError("batch_size", self.spec.batch_size, f"{problem}; use a multiple of {self.job.ranks}")
        if self.job.ranks > 1 and not self.job.even_batches and not self.spec.drop_last:
            self._check_uneven()
        if self.options.workers and self._is_sequence():
            problem = "a sequence has no rows to share out among workers; use workers=0, or pack the data"
            raise OptionError("workers", self.options.workers, problem)

    def _check_uneven(self) -> None:
        problem = None
        if self.mode == "dispatch":
            problem = 'transport "stock" cannot send uneven portions; use even_batches=True or dispatch_batches=False'
        elif self.job.accumulates:
            problem = (
                "ranks end at different steps, so gradients that are accumulated over steps would not be synced "
                "together at the end; use even_batches=True, drop_last=True or gradient_accumulation_steps=1"
            )
        if problem is not None:
            raise OptionError("even_batches", False, problem)  # noqa: FBT003 - what was got

    def begin(self, epoch: int) -> Passing:
        """Return the batches of an epoch on this rank; nothing starts before the first is asked for."""
        if self.schedule is not None and self.schedule.steps == 0:
            return Passing(())
        if not self.with_accelerator:
            return plain_passing(self._parts(epoch, packed_for=None))
        from stream.dispatch import stock_dispatch, stock_shard  # noqa: PLC0415 - who uses accelerate imports it

        if self.mode == "shard":
            return stock_shard(self._parts(epoch, packed_for=None), self.job)
        return stock_dispatch(self._parts(epoch, packed_for=self.job.ranks), self.job)

    def real_rows(self, step: int) -> int:
        """Rows of a step without padding; only where the length is known."""
        return 0 if self.schedule is None else self.schedule.real_rows(step)

    def _is_sequence(self) -> bool:
        return isinstance(self.source, SequenceSource)

    def _parts(self, epoch: int, *, packed_for: int | None) -> LoaderParts:
        workers = self.options.workers
        finish = Finish(self._collator(1 if workers else self.decode_threads), packed_for)
        ahead = Ahead(self.options.prefetch_steps, self.options.read_ahead_bytes)
        if isinstance(self.source, SequenceSource):
            cut = Cut(self.global_batch, self.job.ranks, self.spec.drop_last)
            loaded = LoadedSteps(sequence_steps(self.source, cut, finish, ahead, epoch=epoch), finish)
            return LoaderParts(dataset=loaded, pin_memory=self.pinned)
        dataset, sampler = ShardDataset(self.source), self._sampler(self.source, epoch)
        if workers:
            return LoaderParts(
                dataset=dataset,
                sampler=sampler,
                finish=finish,
                workers=workers,
                prefetch=self.options.prefetch_steps,
                pin_memory=self.pinned,
            )
        loaded = LoadedSteps(row_steps(dataset, sampler, finish, ahead), finish)
        return LoaderParts(dataset=loaded, pin_memory=self.pinned)

    def _sampler(self, source: RowSource, epoch: int) -> StepSampler:
        order = Order(
            source.shard_rows(),
            shuffle=self.spec.shuffle,
            seed=self.spec.seed,
            epoch=epoch,
            window_shards=self.options.window_shards,
        )
        if self.schedule is None:
            raise TypeError("a row source always has a schedule")
        return StepSampler(order, self.schedule, epoch=epoch, rank=self.job.rank if self.mode == "shard" else None)

    def _collator(self, threads: int) -> Collator:
        resize = None
        if self.spec.height_width is not None:
            height, width = self.spec.height_width
            resize = ResizeSpec(height, width, self.options.resize, self.options.interpolation)
        limit = self.options.max_pixels or MAX_PIXELS
        return Collator(CollateOptions(resize, threads, limit, self.collate))
