"""One loader's plan: source, options and job put together."""

import logging
import os
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from stream.bookmarks import has_state
from stream.collate import Collate, CollateOptions, Collator, Decoder, Transform
from stream.combinations import check_combination
from stream.decode import MAX_PIXELS
from stream.errors import OptionError
from stream.job import Job
from stream.keep import EVERYTHING
from stream.mixed import MixedSource
from stream.options import BatchSpec, DecodeOn, Mode, StreamOptions
from stream.owning import Empty, new_memory
from stream.packed import PackedSource, Samples
from stream.point import Bookmark
from stream.resize import ResizeSpec
from stream.schedule import Schedule
from stream.sources import BatchSource, MapSource, RowSource, SequenceSource, shares_out
from stream.state import UNKNOWN, Place

_log = logging.getLogger("stream")


@dataclass(frozen=True)
class Plan:
    """Everything that an epoch is made from. `with_accelerator` says whether batches go through accelerate.

    Raises:
        OptionError: from `check`: the options do not fit each other, the source or the job.
    """

    source: RowSource | SequenceSource | BatchSource
    spec: BatchSpec
    options: StreamOptions
    collate: Collate | None
    job: Job
    with_accelerator: bool
    transform: Transform | None = None
    quarantine: tuple[int, ...] = ()

    @property
    def mode(self) -> Mode:
        """Which mode the Accelerator's `dispatch_batches` asks for; None means dispatch."""
        return "shard" if self.job.dispatch_batches is False else "dispatch"

    @property
    def is_linked(self) -> bool:
        """Whether steps come over an exchange: dispatch mode, but for the stock transport and plain loops."""
        if self.spec.batch_size is None:
            return True
        return self.with_accelerator and self.mode == "dispatch" and self.options.transport == "ours"

    @property
    def decodes_on(self) -> DecodeOn:
        """Where images are decoded in dispatch mode."""
        if self.options.decode_on is not None:
            return self.options.decode_on
        ranks = self.is_linked and isinstance(self.source, Samples) and not self.options.workers
        return "ranks" if ranks else "reader"

    @property
    def global_batch(self) -> int:
        """Rows of a whole step.

        Raises:
            TypeError: the source gives finished batches, whose size only they know.
        """
        size = self.spec.batch_size
        if size is None:
            raise TypeError("the source gives finished batches (batch_size=None), so their size is not known")
        return size if self.job.split_batches else size * self.job.portions

    @property
    def step_size(self) -> int:
        """How far a whole step moves the position: in rows, or in batches where the source gives finished ones."""
        if self.spec.batch_size is None:
            return 1 if self.job.split_batches else self.job.portions
        return self.global_batch

    @cached_property
    def rows(self) -> int | None:
        """Rows of an epoch, None where the source does not tell."""
        return None if isinstance(self.source, SequenceSource | BatchSource) else len(self.source)

    @cached_property
    def schedule(self) -> Schedule | None:
        """The steps of an epoch, None where the source does not tell its length."""
        return self.schedule_from(0)

    def schedule_from(self, position: int) -> Schedule | None:
        """The steps of what is left of an epoch from a position on, None where the source does not tell its length."""
        if self.rows is None:
            return None
        return Schedule(
            self.rows,
            global_batch=self.global_batch,
            ranks=self.job.portions,
            drop_last=self.spec.drop_last,
            even_batches=self.job.even_batches,
            start=position,
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
        everywhere = self.mode == "shard" or self.decodes_on == "ranks"
        sharing = self.job.host_ranks if everywhere else 1
        return self.options.decode_threads or max(1, cores // sharing)

    def check(self) -> None:
        """Refuse what cannot work, before anything starts."""
        check_combination(
            self.spec, mode=self.mode, indexed=isinstance(self.source, Samples), rows=not self._is_sequence()
        )
        if self.spec.batch_size is None:
            self._check_given_batches()
        elif self.global_batch % self.job.portions:
            portions = self.job.portions
            problem = f"a step of {self.global_batch} rows cannot be split over {portions} ranks evenly"
            raise OptionError("batch_size", self.spec.batch_size, f"{problem}; use a multiple of {portions}")
        if self.job.portions > 1 and not self.job.even_batches and not self.spec.drop_last:
            self._check_uneven()
        self._check_hooks()
        self._check_decoding()

    @property
    def substitutes(self) -> bool:
        """Whether other rows stand in for bad ones."""
        return self.options.on_error == "substitute"

    def _check_hooks(self) -> None:
        if self.substitutes and not isinstance(self.source, Samples):
            problem = "finds the next good row through the index of packed shards, and this source has none"
            raise OptionError("on_error", "substitute", problem)
        if self.substitutes and self.with_accelerator and self.mode == "dispatch" and not self.is_linked:
            problem = 'transport "stock" does not tell which row was bad; use transport="ours"'
            raise OptionError("on_error", "substitute", problem)
        if self.transform is not None and isinstance(self.source, MapSource | BatchSource):
            problem = (
                "is for samples that this loader decodes; these rows are the source's own, so transform them there"
            )
            raise OptionError("transform", self.transform, problem)

    def _check_decoding(self) -> None:
        if self.options.workers and isinstance(self.source, SequenceSource | BatchSource):
            self._check_workers(self.source)
        if self.options.decode_on == "ranks" and not (self.is_linked and isinstance(self.source, Samples)):
            problem = 'needs packed shards in dispatch mode with transport "ours"; leave it out, or pack the data'
            raise OptionError("decode_on", "ranks", problem)
        if self.options.decode_in == "process" and self.options.workers:
            problem = "worker processes are processes of their own already; use workers=0"
            raise OptionError("decode_in", "process", problem)
        if self.options.decode_on == "ranks" and self.options.workers:
            problem = 'with decode_on="ranks" the reader has nothing to do that would need processes; use workers=0'
            raise OptionError("workers", self.options.workers, problem)

    def evened(self, *, even_batches: bool) -> "Plan":
        """Return the plan with another `even_batches`; where that cannot work this one, and warn."""
        if even_batches == self.job.even_batches:
            return self
        other = replace(self, job=replace(self.job, even_batches=even_batches))
        try:
            other.check()
        except OptionError as exc:
            if self.job.rank == 0:
                _log.warning("what join_uneven_inputs asks for is ignored: %s", exc)
            return self
        return other

    def _check_given_batches(self) -> None:
        if self.mode == "shard" or (self.with_accelerator and self.options.transport != "ours"):
            problem = 'finished batches are sent by dispatch mode with transport "ours" only'
            raise OptionError("batch_size", None, problem)

    def _check_workers(self, source: SequenceSource | BatchSource) -> None:
        if not self.is_linked:
            problem = 'only dispatch mode with transport "ours" shares a sequence out among workers; use workers=0'
        elif not shares_out(source):
            problem = (
                "each worker would read all of this source, since only torch's IterableDataset and webdataset "
                "pipelines know of workers; use workers=0, or pack the data"
            )
        else:
            return
        raise OptionError("workers", self.options.workers, problem)

    def _check_uneven(self) -> None:
        problem = None
        if self.mode == "dispatch" and not self.is_linked:
            problem = 'transport "stock" cannot send uneven portions; use even_batches=True or transport="ours"'
        elif self.job.accumulation > 1:
            problem = (
                "ranks end at different steps, so gradients that are accumulated over steps would not be synced "
                "together at the end; use even_batches=True, drop_last=True or gradient_accumulation_steps=1"
            )
        if problem is not None:
            raise OptionError("even_batches", False, problem)  # noqa: FBT003 - what was got

    @property
    def has_bookmarks(self) -> bool:
        """Whether the source's own `state_dict` tells where it is: it has one, and is read in this process."""
        source = self.source
        if not isinstance(source, SequenceSource | BatchSource) or self.options.workers:
            return False
        return has_state(source.iterable) and (self.is_linked or not self.with_accelerator)

    def place(self, epoch: int, position: int, bookmark: Bookmark | None = None) -> Place:
        """Return what a checkpoint says about a position."""
        return Place(
            digest=self.digest,
            subset=self.subset,
            shuffle=self.spec.shuffle,
            seed=self.spec.seed,
            window_shards=self.options.window_shards,
            captions=self.spec.captions,
            epoch=epoch,
            position=position,
            quarantine=self.quarantine,
            bookmark=bookmark,
        )

    def restored(self, state: object, *, strict: bool) -> Place:
        """Return the place that a checkpoint tells of; without `strict` also of other data or another order.

        Raises:
            OptionError: it is of other data or another order, or lies behind the end of an epoch of these data.
        """
        place = Place.from_dict(state, now=self.place(0, 0), strict=strict)
        if self.rows is not None and place.position > self.rows:
            problem = f"an epoch has {self.rows} rows here, so there is no such position; begin an epoch with set_epoch"
            raise OptionError("state['position']", place.position, problem)
        if place.position and place.doubt is not None and self.job.rank == 0:
            _log.warning(place.doubt)
        return place

    def scheduler_steps(self, epochs: int, accumulation: int | None) -> int:
        """See `StreamLoader.scheduler_steps`."""
        each = self.job.accumulation if accumulation is None else accumulation
        for name, value in (("epochs", epochs), ("accumulation", each)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise OptionError(name, value, "must be a whole number, 1 or more")
        if self.schedule is None:
            raise TypeError("the source does not tell its length, so nobody knows how often the schedule is stepped")
        optimizer_steps = epochs * -(-self.schedule.steps // each)  # accelerate syncs at the end of each epoch too
        return optimizer_steps * (1 if self.job.split_batches else self.job.ranks)

    @property
    def digest(self) -> str:
        """What tells the data from others; `UNKNOWN` where nothing does."""
        return self.source.digest if isinstance(self.source, PackedSource | MixedSource) else UNKNOWN

    @property
    def subset(self) -> str:
        """What tells the rows from those of another choice of the same data."""
        if isinstance(self.source, PackedSource | MixedSource):
            return self.source.subset
        return EVERYTHING if self.spec.limit is None else f"the first {self.rows}"

    def _is_sequence(self) -> bool:
        return isinstance(self.source, SequenceSource | BatchSource)

    @property
    def resize(self) -> ResizeSpec | None:
        """What images become; None: they keep their own sizes."""
        if self.spec.height_width is None:
            return None
        height, width = self.spec.height_width
        return ResizeSpec(height, width, self.options.resize, self.options.interpolation)

    @property
    def max_pixels(self) -> int:
        """Pixels above which an image is refused."""
        return self.options.max_pixels or MAX_PIXELS

    def collator(self, threads: int, helper: Decoder | None = None, *, empty: Empty = new_memory) -> Collator:
        """Return what makes batches of rows: in so many threads, or with their images decoded by a helper process.

        `empty` gives the memory of the images.
        """
        same_rows = self.options.same_rows
        options = CollateOptions(
            self.resize, threads, self.max_pixels, self.collate, same_rows, self.transform, self.substitutes
        )
        return Collator(options, helper, empty=empty)
