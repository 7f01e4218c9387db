"""Which configurations are measured, in which order, and what rows their windows make. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count, product
from typing import NamedTuple

import msgspec

from arguments import Options
from measure import Outcome
from messages import Config, Job, Mode
from report import NOTHING_TO_PIN, Check, Row, Spread

_ADVISED_PREFETCH = 2


class Entry(msgspec.Struct, frozen=True):
    """A configuration to measure: of the grid, or there only because it is the common advice."""

    config: Config
    in_grid: bool
    common_advice: bool


def advised(mode: Mode, ranks: int) -> Config:
    """Return the common advice: as many workers as ranks, torch's own prefetch factor, pinned memory."""
    return Config(mode=mode, ranks=ranks, workers=ranks, prefetch=_ADVISED_PREFETCH, pin_memory=True)


def entries(options: Options) -> list[Entry]:
    """Return what is to be measured, in the order of the table."""
    axes = (options.ranks, options.mode, options.workers, options.prefetch, options.pin_memory)
    grid = [
        Config(mode=mode, ranks=ranks, workers=workers, prefetch=prefetch, pin_memory=pin)
        for ranks, mode, workers, prefetch, pin in product(*axes)
    ]
    advice = [advised(mode, ranks) for ranks in options.ranks for mode in options.mode] if options.advice else []
    extra = [config for config in advice if config not in grid]
    return [Entry(config, config in grid, config in advice) for config in (*grid, *extra)]


def turns(found: Sequence[Entry], *, repeats: int) -> list[list[list[Job]]]:
    """Return the plans (lists of jobs for one number of ranks) of each repeat.

    The first repeat begins with one whole epoch of each mode, which proves what is delivered and also warms up the
    page cache. Each goes over all configurations, the modes taking turns and every second repeat backwards, so that
    neither a machine that changes its speed nor the order favours one.
    """
    numbers = count()
    ranks = list(dict.fromkeys(entry.config.ranks for entry in found))
    return [
        [_jobs(sorted(_configs(found, one), key=_place), turn, numbers) for one in (ranks[::-1] if turn % 2 else ranks)]
        for turn in range(repeats)
    ]


def _configs(found: Sequence[Entry], ranks: int) -> list[Config]:
    return [entry.config for entry in found if entry.config.ranks == ranks]


def _place(config: Config) -> tuple[int, int, bool, Mode]:
    return config.workers, config.prefetch, config.pin_memory, config.mode


def _jobs(configs: Sequence[Config], turn: int, numbers: Iterator[int]) -> list[Job]:
    last_of_mode = {config.mode: config for config in configs}  # the one with most workers
    proofs = [] if turn else [Job(number=next(numbers), config=one, whole_epoch=True) for one in last_of_mode.values()]
    order = configs[::-1] if turn % 2 else configs
    return proofs + [Job(number=next(numbers), config=config) for config in order]


class Done(NamedTuple):
    """All jobs, and what came of them."""

    jobs: Sequence[Job]
    outcome: Outcome


def rows(found: Sequence[Entry], done: Done, *, ceiling: float, encoded_bytes: float) -> list[Row]:
    """Return the rows of all configurations, in their order."""
    return [_row(entry, done, ceiling, encoded_bytes) for entry in found]


def _row(entry: Entry, done: Done, ceiling: float, encoded_bytes: float) -> Row:
    config, outcome = entry.config, done.outcome
    blank = Row(
        config=config,
        in_grid=entry.in_grid,
        common_advice=entry.common_advice,
        note=NOTHING_TO_PIN if config.pin_memory and outcome.devices.get(config.ranks, "cpu") == "cpu" else "",
        failed=outcome.faults.get(config),
        encoded_bytes=encoded_bytes,
    )
    if blank.failed is not None:
        return blank
    shots = [outcome.shots[job.number] for job in done.jobs if job.config == config and not job.whole_epoch]
    rate = Spread.of(shot.samples_per_s for shot in shots)
    return msgspec.structs.replace(
        blank,
        samples_per_s=rate,
        share_of_ceiling=rate.median / ceiling,
        first_batch_s=Spread.of(shot.first_s for shot in shots),
        wait_ms=Spread.of(shot.wait_ms for shot in shots),
        peak_mib=Spread.of(shot.peak_mib for shot in shots),
        delivered_bytes=Spread.of(shot.delivered_bytes for shot in shots).median,
        windows=shots,
    )


def checks(done: Done, *, keys: Sequence[str], batch_size: int) -> list[Check]:
    """Return what the whole epochs proved; one that could not be done is told by its row."""
    return [
        partition(job.config, done.outcome.epochs[job.number], keys=keys, batch_size=batch_size)
        for job in done.jobs
        if job.number in done.outcome.epochs
    ]


def partition(config: Config, delivered: Sequence[Sequence[str]], *, keys: Sequence[str], batch_size: int) -> Check:
    """Compare the keys that each rank got in one epoch with those of the dataset.

    Every key must come once. The last step may be padded to a multiple of the ranks, so up to ranks - 1 keys more.
    """
    got = Counter(key for rank in delivered for key in rank)
    padding = -(len(keys) % batch_size) % config.ranks
    missing, unknown = set(keys) - got.keys(), got.keys() - set(keys)
    problem = None
    if missing or unknown:
        problem = f"{len(missing)} samples did not come, {len(unknown)} came that are not in the dataset"
    elif got.total() != len(keys) + padding:
        problem = f"{got.total()} rows came, expected {len(keys)} and {padding} of padding"
    elif len({len(rank) for rank in delivered}) > 1:
        problem = f"the ranks got different numbers of rows: {[len(rank) for rank in delivered]}"
    return Check(config=config, rows=len(keys), padding=padding, problem=problem)
