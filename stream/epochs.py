"""How an epoch of a plan is begun: as steps over an exchange, or as parts of a torch DataLoader."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from stream.bookmarks import Bookmarks, copy_of
from stream.collate import Hooks
from stream.cuts import Cut
from stream.errors import BadRowError
from stream.exchange import Exchange, ExchangeOptions
from stream.facts import agreed
from stream.job import Job
from stream.live import expect_collectives
from stream.making import Maker
from stream.mixed import MixedSource
from stream.offers import StepOffer, batch_offers, packed_offers
from stream.options import BatchSpec, StreamOptions
from stream.packed import PackedSource
from stream.passing import LoaderParts, Passing, plain_passing
from stream.plan import Plan
from stream.point import Point
from stream.portions import (
    EpochRows,
    Pace,
    PortionStep,
    batch_portions,
    map_portions,
    sequence_portions,
    source_batches,
)
from stream.quarantine import Quarantine
from stream.receiving import ReceiverOptions
from stream.schedule import Schedule
from stream.sharded import ShardDataset, StepSampler
from stream.sources import BatchSource, RowSource, SequenceSource
from stream.staging import Stager
from stream.steps import Ahead, Finish, LoadedSteps, row_steps, sequence_steps
from stream.substitute import RowOrder, Substituted
from stream.workplace import Workplace

if TYPE_CHECKING:
    from accelerate import Accelerator

_CPU = torch.device("cpu")


def make_plan(
    source: RowSource | SequenceSource | BatchSource,
    spec: BatchSpec,
    options: StreamOptions,
    hooks: Hooks,
    accelerator: "Accelerator | None",
) -> Plan:
    """Return the plan of a loader.

    Raises:
        OptionError: what was asked for cannot work together.
    """
    job = Job()
    if accelerator is not None:
        from stream.dispatch import job_of  # noqa: PLC0415 - who uses accelerate imports it

        job = job_of(accelerator)
        if job.ranks > 1:
            expect_collectives(job.ranks)
    plan = Plan(source, spec, options, hooks.collate, job, accelerator is not None, hooks.transform)
    plan.check()
    return plan


def is_registered(accelerator: "Accelerator | None", loader: object) -> bool:
    """Tell whether an Accelerator has prepared this very loader."""
    if accelerator is None:
        return False
    from stream.dispatch import is_prepared  # noqa: PLC0415 - who uses accelerate imports it

    return is_prepared(accelerator, loader)


def begin_epoch(plan: Plan, start: Point, *, place: Workplace, owner: Any) -> Passing:  # noqa: ANN401 - a loader
    """Return the batches of an epoch from a place on; nothing starts before the first is asked for.

    `place` is the loader's own; `owner` stands for the batches in accelerate's gradient state.
    """
    if place.exchange is not None:
        return _linked(plan, start, place, owner)
    schedule = plan.schedule_from(start.position)
    if schedule is not None and schedule.steps == 0:
        return Passing(())
    if not plan.with_accelerator:
        return plain_passing(_parts(plan, start, place, packed_for=None))
    from stream.dispatch import stock_dispatch, stock_shard  # noqa: PLC0415 - who uses accelerate imports it

    if plan.mode == "shard":
        return stock_shard(_parts(plan, start, place, packed_for=None), plan.job)
    return stock_dispatch(_parts(plan, start, place, packed_for=plan.job.ranks), plan.job)


def make_place(plan: Plan, name: str) -> Workplace:
    """Return what a loader keeps between its epochs; nothing is started, nobody is met before the first."""
    return Workplace(plan, _exchange(plan, name) if plan.is_linked else None)


def _exchange(plan: Plan, name: str) -> Exchange:
    job, options = plan.job, plan.options
    share: Callable[[bytes], bytes] = _alone
    if job.ranks > 1:
        from stream.dispatch import share_over  # noqa: PLC0415 - who uses accelerate imports it

        share = share_over(job)
    return Exchange(
        ExchangeOptions(
            name=name,
            rank=job.rank,
            shares=tuple(rank // job.group for rank in range(job.ranks)),
            share=share,
            budget_bytes=options.read_ahead_bytes,
            prefetch_steps=options.prefetch_steps,
            port=options.port,
            same_host=options.same_host,
        )
    )


def _linked(plan: Plan, start: Point, place: Workplace, owner: Any) -> Passing:  # noqa: ANN401 - a loader
    from stream.dispatch import LinkedPassing  # noqa: PLC0415 - who uses accelerate imports it

    job, options = plan.job, plan.options
    stager = Stager(
        job.device if job.on_device else _CPU,
        pin=plan.pinned,
        non_blocking=job.non_blocking,
        unpinned=place.recycler.empty,
    )
    decodes = plan.decodes_on == "ranks"
    # Where the reader decodes, its own collator is the one whose time is accounted for
    collator = place.collator(plan.decode_threads, stager.empty) if decodes else plan.collator(1)
    maker = Maker(collator, stager, verify=options.verify)
    receiving = ReceiverOptions(
        make=maker,
        aside=_makers(plan, stager),
        # While a helper decodes one batch the next should lie there already: to hand it one takes the GIL several times
        prefetch_steps=options.prefetch_steps + (place.helper is not None),
        budget_bytes=options.read_ahead_bytes,
        empty=stager.empty,
        borrow=stager.keeps,
        warn_after_s=options.warn_after_s,
        timeout_s=options.timeout_s,
    )
    if place.exchange is None:
        raise TypeError("a linked plan has an exchange")
    offers = partial(_offers, plan, start, place)
    iteration = place.exchange.begin(_facts(plan, start), offers, receiving, place.helper)
    ends = (place.settle, maker.close)
    return LinkedPassing(iteration, owner, stager.hand_over, registered=plan.with_accelerator, ends=ends)


def _facts(plan: Plan, start: Point) -> dict[str, str]:
    """Return what all ranks must agree in; what keeps this one from saying so is told to the others by it.

    Raises:
        Exception: what keeps the only rank from it.
    """
    try:
        return agreed(plan, start)
    except Exception as exc:
        if plan.job.ranks == 1:
            raise
        problem = f"none, {type(exc).__name__}: {exc} (rank {plan.job.rank})"
        return {"epoch": repr(start.epoch), "position": repr(start.position), "data": problem}


def _offers(plan: Plan, start: Point, place: Workplace) -> Iterator[StepOffer]:
    """Make the steps of an epoch, on the reader."""
    source, schedule = plan.source, plan.schedule_from(start.position)
    if isinstance(source, PackedSource | MixedSource) and schedule is not None and plan.decodes_on == "ranks":
        order = order_of(plan, source, start.epoch)
        return packed_offers(source, order, schedule, portions=plan.job.portions, epoch=start.epoch)
    return batch_offers(_portions(plan, schedule, start, place))


def _portions(plan: Plan, schedule: Schedule | None, start: Point, place: Workplace) -> Iterator[PortionStep]:
    source, job, options = plan.source, plan.job, plan.options
    epoch, bookmarks = start.epoch, _bookmarks(plan, start)
    pace = Pace(options.workers, options.prefetch_steps, options.read_ahead_bytes)
    collator = plan.collator(1) if options.workers else place.collator(plan.decode_threads)
    if isinstance(source, BatchSource):
        cut = Cut(job.portions, job.portions, plan.spec.drop_last, job.even_batches)
        batches = source_batches(source, pace, epoch=epoch, bookmarks=bookmarks)
        return batch_portions(batches, cut, split=job.split_batches, bookmarks=bookmarks)
    if isinstance(source, SequenceSource):
        cut = Cut(plan.global_batch, job.portions, plan.spec.drop_last, job.even_batches)
        return sequence_portions(source, cut, collator, pace, epoch=epoch, bookmarks=bookmarks)
    if schedule is None:
        raise TypeError("a row source always has a schedule")
    return map_portions(EpochRows(source, order_of(plan, source, epoch), schedule, job.portions, epoch), collator, pace)


def _bookmarks(plan: Plan, start: Point) -> Bookmarks:
    """Return where a pass over a sequence begins, and what takes its bookmarks."""
    source = plan.source
    if not isinstance(source, SequenceSource | BatchSource) or not plan.has_bookmarks:
        return Bookmarks(start.position)
    reading = None if start.bookmark is None else copy_of(source.iterable)
    return Bookmarks(start.position, every=plan.step_size, begin=start.bookmark, reading=reading)


def _alone(data: bytes) -> bytes:
    return data


def order_of(plan: Plan, source: RowSource, epoch: int) -> RowOrder:
    """Return which row is given at which position of an epoch."""
    spec, window = plan.spec, plan.options.window_shards
    order = source.order(shuffle=spec.shuffle, seed=spec.seed, epoch=epoch, window_shards=window)
    return Substituted(order, plan.quarantine) if plan.quarantine else order


def put_aside(plan: Plan, quarantine: Quarantine, epoch: int, bad: BadRowError) -> None:
    """Let another row stand in for a bad one from now on.

    Raises:
        BadRowError: rows of this source have no numbers.
        SourceError: there are more bad rows than are allowed.
    """
    if not isinstance(plan.source, PackedSource | MixedSource):
        raise bad
    row = order_of(plan, plan.source, epoch).row(bad.position)
    quarantine.add(row, bad.problem, of=len(plan.source), tells=plan.job.rank == 0 or plan.mode == "shard")


def _parts(plan: Plan, start: Point, place: Workplace, *, packed_for: int | None) -> LoaderParts:
    options = plan.options
    workers = options.workers
    finish = Finish(plan.collator(1) if workers else place.collator(plan.decode_threads), packed_for)
    ahead = Ahead(options.prefetch_steps, options.read_ahead_bytes)
    if isinstance(plan.source, BatchSource):
        raise TypeError("finished batches come over an exchange only")
    if isinstance(plan.source, SequenceSource):
        cut = Cut(plan.global_batch, plan.job.portions, plan.spec.drop_last)
        steps = sequence_steps(plan.source, cut, finish, ahead, epoch=start.epoch, bookmarks=_bookmarks(plan, start))
        loaded = LoadedSteps(steps, finish)
        return LoaderParts(dataset=loaded, pin_memory=plan.pinned)
    dataset = ShardDataset(plan.source)
    sampler = _sampler(plan, plan.source, start.epoch, plan.schedule_from(start.position))
    if workers:
        return LoaderParts(
            dataset=dataset,
            sampler=sampler,
            finish=finish,
            workers=workers,
            prefetch=options.prefetch_steps,
            pin_memory=plan.pinned,
        )
    loaded = LoadedSteps(row_steps(dataset, sampler, finish, ahead), finish)
    return LoaderParts(dataset=loaded, pin_memory=plan.pinned)


def _sampler(plan: Plan, source: RowSource, epoch: int, schedule: Schedule | None) -> StepSampler:
    if schedule is None:
        raise TypeError("a row source always has a schedule")
    portion = plan.job.portion if plan.mode == "shard" else None
    return StepSampler(order_of(plan, source, epoch), schedule, epoch=epoch, rank=portion)


def _makers(plan: Plan, stager: Stager) -> int:
    """Return how many threads make batches on a rank."""
    if plan.decodes_on != "ranks":
        return 0 if stager.keeps else 1
    return 1 if plan.decode_threads == 1 and plan.options.decode_in == "thread" else 2
