"""StreamLoader: what a training script imports."""

import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from shards.dataset import DatasetReader
from shards.retry import Patience
from stream.call import check_call
from stream.collate import Collate, Hooks, Transform
from stream.describe import describe
from stream.epochs import begin_epoch, is_registered, make_place, make_plan, put_aside
from stream.errors import BadRowError
from stream.facts import facts_of
from stream.keep import Keep
from stream.launch import refuse_unprepared
from stream.live import keep_track
from stream.loader_facts import LoaderFacts
from stream.options import BatchSpec, CaptionPolicy, Shuffle, StreamOptions
from stream.plan import Plan
from stream.progress import Progress
from stream.quarantine import Quarantine
from stream.saving import Saving
from stream.sharded import ShownSampler, dataset_of
from stream.sources import open_any
from stream.stats import Counters, Stats
from stream.synced import Synced
from stream.workplace import Workplace

if TYPE_CHECKING:
    from accelerate import Accelerator


class StreamLoader(LoaderFacts):
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
        DecodeError, SourceError, ShardsError: from iterating: what is read is bad; names shard, key and cause. In
            dispatch mode every rank raises it, at the same step, and its notes tell where it happened.
        RankError: from iterating in dispatch mode: another rank failed with an error that is not ours, left, or died.
        WaitError: from iterating in dispatch mode: `timeout_s` is up.
        FileNotFoundError: from the first use: there is no dataset at the source's URL.
    """

    _is_accelerate_prepared = True  # so that accelerator.prepare() registers this very object and wraps nothing

    def __init__(  # noqa: PLR0913 - the front door: what a batch is, by name; how it is made goes into `options`
        self,
        source: Any,  # noqa: ANN401 - a URL or any dataset
        *,
        batch_size: int | None,
        accelerator: "Accelerator | None" = None,
        image_size: int | tuple[int, int] | None = None,
        captions: CaptionPolicy = "first",
        shuffle: Shuffle | None = "window",
        seed: int = 0,
        drop_last: bool = False,
        keep: Keep | None = None,
        limit: int | None = None,
        parts: tuple[str, ...] | None = None,
        transform: Transform | None = None,
        collate: Collate | None = None,
        name: str = "train",
        storage_options: Mapping[str, object] | None = None,
        options: StreamOptions | None = None,
    ) -> None:
        """Check the options.

        Args:
            source: The URL or path of a packed dataset (its folder or manifest), a map-style Dataset, or an iterable
                of rows such as a webdataset pipeline.
            batch_size: Rows; of a whole step with the Accelerator's `split_batches`, else of one rank. None: the
                source gives finished batches.
            accelerator: The job's Accelerator. Without one the loader works in a single process.
            image_size: Pixels: a side, or (height, width). None keeps every image's own size.
            captions: "first", "random", "all" or "each", see `BatchSpec`.
            shuffle: "window", "full" or None, see `BatchSpec`.
            seed: Of order and caption choice.
            drop_last: Leave out the rows that do not fill a step.
            keep: Which samples of packed shards are rows, planned from their index before anything is read: a function
                of `IndexRows` (arrays "key", "width", "height", "aspect", "license", "captions", "caption_bytes") that
                returns bool [n], `key_split(...)`, or a collection of keys. None: all.
            limit: Rows at most: the first ones in storage order, of what is kept. None: all.
            parts: Members of packed samples that are read; `("txt",)` gives captions without images.
            transform: Makes an example (dict with "image" uint8 [3, H, W], "caption", "key") another one, given a
                torch.Generator that is seeded by (seed, epoch, position): what is drawn from it is the same for any
                number of ranks and after resume. Runs where decoding runs, in several threads.
            collate: Makes a batch from a list of examples, in place of the default; runs where decoding runs.
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
            keep=keep,
            limit=limit,
            parts=parts,
        )
        hooks = Hooks(transform, collate)
        self.options = check_call(options, hooks, name)
        self.name, self._accelerator = name, accelerator
        opened = self._opened(source, storage_options)
        # Without a batch size torch refuses drop_last; here it belongs to the steps
        super().__init__(dataset_of(opened), batch_size=batch_size, drop_last=drop_last and batch_size is not None)
        self._plan = make_plan(opened, self.spec, self.options, hooks, accelerator)
        self._begin_life()

    def _opened(self, source: Any, storage_options: Mapping[str, object] | None) -> Any:  # noqa: ANN401 - see __init__
        patience, verify = Patience(self.options.retry_s), self.options.verify
        reader = partial(DatasetReader, storage_options=storage_options, verify=verify, patience=patience)
        return open_any(source, spec=self.spec, read=reader, blames=self.options.on_error == "substitute")

    def _begin_life(self) -> None:
        self._progress, self._counters = Progress(), Counters()
        self._synced = Synced(self.name, self._accelerator)
        self._quarantine = Quarantine(self.name, self.options.bad_rows_limit)
        self._live: Callable[[], Generator[Any, None, None] | None] = _nothing
        self._place: Workplace | None = None
        spec, even = self.spec, self._plan.job.even_batches
        self._shown = ShownSampler(batch_size=spec.batch_size, drop_last=spec.drop_last, even_batches=even)
        self.__dict__["batch_sampler"] = self._shown  # torch lets nobody set it
        if self._accelerator is not None:
            Saving.add(self._accelerator, self)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override] # torch names its own iterator class
        alone = self._accelerator is None
        registered = is_registered(self._accelerator, self)
        refuse_unprepared(self.name, self._plan.job.ranks, alone=alone, registered=registered)
        self._end_iteration()
        iteration = self._iterate()
        # Not held: a loop that is left by `break` drops its iteration, and that ends it
        self._live = weakref.ref(iteration)
        keep_track(iteration)
        return iteration

    def __getstate__(self) -> dict[str, Any]:
        """A copy has counters of its own, no live iteration and no links."""
        own = {name: copy(self.__dict__[name]) for name in ("_progress", "_counters", "_synced", "_quarantine")}
        return {**self.__dict__, **own, "_live": _nothing, "_place": None}

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration deliver this epoch, from its beginning if it is another than `epoch` now.

        Raises:
            OptionError: it is no whole number, or below 0.
        """
        moved = epoch != self.epoch
        self._progress.set_epoch(epoch)
        if moved:
            self._synced.go_to(self._progress.place)

    def skip(self, steps: int) -> None:
        """Let the next iteration begin so many steps later than it would; nothing that is skipped is read.

        A source that only gives its rows one after another is read on rank 0, and its rows are dropped there.

        Raises:
            OptionError: it is no whole number, or below 0.
        """
        self._end_iteration()
        self._progress.skip(steps, rows_a_step=self._plan.step_size, rows=self._plan.rows)
        self._synced.go_to(self._progress.place)

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader is, in plain values that are equal on all ranks.

        At the end of an epoch that is the beginning of the next. While gradients accumulate it is where the last
        optimizer step was made.
        """
        return self._now().place(*self._synced.saved(self._progress.place)).to_dict()

    def saved_state(self) -> dict[str, Any]:
        """Return what a checkpoint says: `state_dict` with the bad rows that any rank knows. Every rank must call it.

        In dispatch mode all know the same; in shard mode each finds its own.
        """
        state, job = self.state_dict(), self._plan.job
        if self._plan.mode == "shard" and self._plan.substitutes and job.ranks > 1:
            from stream.dispatch import union  # noqa: PLC0415 - who uses accelerate imports it

            state["quarantine"] = union(state["quarantine"])
        return state

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Make the next iteration go on behind the last step of the state, whatever the number of ranks then was.

        Ends the live iteration. `strict` False starts other data, or another order, at the state's epoch and position.

        Raises:
            OptionError: the state is of other data or of another order; names the field, the value and what to do. Or,
                also without `strict`: it has another form or version, or an epoch of these data is shorter.
        """
        place = self._plan.restored(state, strict=strict)
        self._end_iteration()
        self._quarantine.replace(place.quarantine)
        self._progress.go_to(place.epoch, place.position, place.bookmark)
        self._synced.go_to(self._progress.place)

    @property
    def stats(self) -> Stats:
        """A snapshot of what this rank got and how long it waited."""
        told = self._counters.snapshot()
        return told if self._place is None else self._place.completed(told)

    def close(self) -> None:
        """End the live iteration with its threads and worker processes, and the links to other ranks. Idempotent."""
        self._end_iteration()
        place, self._place = self._place, None
        if place is not None:
            place.close()

    def describe(self) -> str:
        """Return what this loader is, one fact a line, the number of ranks first."""
        reached = {} if self._place is None else self._place.reached
        registered = is_registered(self._accelerator, self)
        facts = facts_of(self._plan, self.name, registered=registered, reached=reached)
        return describe(facts, self.spec, self.options)

    def _end_iteration(self) -> None:
        live, self._live = self._live(), _nothing
        if live is not None:
            live.close()

    def _iterate(self) -> Generator[Any, None, None]:
        while True:
            epoch = self.epoch
            try:
                yield from self._steps()
            except BadRowError as exc:
                if not self._plan.substitutes or self.epoch != epoch:
                    raise
                put_aside(self._now(), self._quarantine, epoch, exc)
                self._progress.go_to(epoch, self.position)  # in dispatch mode every rank is here now
            else:
                return

    def _now(self) -> Plan:
        """The plan with what is known by now."""
        return replace(self._plan, quarantine=self._quarantine.rows)

    def _steps(self) -> Generator[Any, None, None]:
        progress, counters = self._progress, self._counters
        plan = self._now().evened(even_batches=self._shown.even_batches)
        if self._accelerator is not None:
            Saving.begin(self._accelerator)
        start = progress.begin()
        self._synced.begin(progress.place)
        passing = begin_epoch(plan, start, place=self._workplace(), owner=self)
        schedule, steps, ended = None, 0, False
        try:
            while True:
                counters.waiting()
                try:
                    batch, told = next(passing)
                except StopIteration:
                    ended = True
                    break
                schedule = schedule or plan.schedule_from(start.position)  # where that fails, all ranks have to hear
                real_rows = schedule.real_rows(steps) if told is None and schedule is not None else told or 0
                steps += 1
                ended = passing.is_last() or (schedule is not None and steps == schedule.steps)
                progress.hand_out(real_rows, position=passing.position, last=ended, bookmark=passing.bookmark)
                if ended:
                    passing.set_remainder(real_rows)
                counters.received()
                self._synced.handed_out(progress.place)
                yield batch
        finally:
            passing.close()
            progress.end(start.epoch, ended=ended)
            self._synced.over(progress.place)

    def _workplace(self) -> Workplace:
        if self._place is None:
            self._place = make_place(self._plan, self.name)
            weakref.finalize(self, self._place.close)
        return self._place


def _nothing() -> None:
    """Stand where a weak reference to the live iteration stands while there is one."""
