"""Measure how fast encoded images reach 2 ranks, beside one process that copies the same bytes and one that reads them.

    python benchmarks/encoded.py --data packed/val --json encoded.json

Nothing is decoded. All ways take turns in one launch of the ranks, over a dataset in the page cache. The table goes to
standard output (Markdown), progress to standard error. Exit status: 0 measured; 1 a rank failed, or the dataset cannot
be repeated; 2 wrong usage; 130 interrupted.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import msgspec

from argument_types import choice, listed, out_file, whole
from encoded_plan import Arm, Plan, Turn, Turns
from launching import run_ranks
from page_cached import page_cached
from report import Spread
from reporting import Origin, head, origin, ratio_cell, reached, reported, say
from shards.dataset import DatasetReader
from shards.errors import ShardsError
from tables import table

_PROGRAM = "encoded.py"
_RANK = Path(__file__).with_name("encoded_rank.py")
_WARMUP_STEPS = 4
_LEAST_STEPS = 8
_GOALS: dict[Arm, float] = {"copy": 0.6, "preadv": 0.85}  # what ours must keep of the speed of one process
_MB = 1e6


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One way: megabytes of images and captions a second, over all ranks.

    `over` are ratios of speeds, each round's own, by the name of the other way. `received` has one number per rank:
    bytes that it received over bytes of images and captions that it got; more is headers and what lies between parts.
    """

    arm: Arm
    mb_per_s: Spread
    over: dict[Arm, Spread]
    received: list[float]


class Encoded(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run gave; `rows` are those of a whole step, `samples` those of the dataset."""

    origin: Origin
    ranks: int
    rows: int
    samples: int
    rounds: int
    lines: list[Line]


def lines(plan: Plan, turns: Sequence[Sequence[Turn]]) -> list[Line]:
    """Put the ranks' views together; `turns` are those of each rank."""
    speeds = {arm: _speeds(turns, arm) for arm in plan.arms}
    return [
        Line(
            arm=arm,
            mb_per_s=Spread.of(speeds[arm]),
            over={
                other: Spread.of(mine / its for mine, its in zip(speeds[arm], speeds[other], strict=True))
                for other in _GOALS
                if other in speeds and other != arm
            },
            received=[_received(one, arm) for one in turns],
        )
        for arm in plan.arms
    ]


def _speeds(turns: Sequence[Sequence[Turn]], arm: Arm) -> list[float]:
    rounds = zip(*([turn for turn in one if turn.arm == arm] for one in turns), strict=True)
    return [sum(turn.part_bytes for turn in ranks) / max(turn.seconds for turn in ranks) / _MB for ranks in rounds]


def _received(turns: Sequence[Turn], arm: Arm) -> float:
    mine = [turn for turn in turns if turn.arm == arm]
    return sum(turn.received_bytes for turn in mine) / max(1, sum(turn.epoch_bytes for turn in mine))


def to_markdown(result: Encoded) -> str:
    """Return the report for people."""
    what = (
        f"{result.samples:,} samples in the page cache, {result.rows} a step, {result.ranks} ranks, nothing decoded; "
        f"medians of {result.rounds} rounds in which all ways took turns, with the lowest and highest. Copy: one "
        "process copies the same bytes once in memory, into that of 8 steps in turns. Preadv: one process reads them "
        "from the same shards into such memory. Received: bytes over those of the parts that the rank got, for each "
        "rank."
    )
    columns = ("way", "MB/s", "lowest-highest", "times copy", "times preadv", "received")
    rows = table(columns, [_cells(line) for line in result.lines])
    return "\n\n".join((head(result.origin), what, rows, *goals(result.lines))) + "\n"


def _cells(line: Line) -> tuple[str, ...]:
    rate = line.mb_per_s
    return (
        line.arm,
        f"{rate.median:,.0f}",
        f"{rate.low:,.0f}-{rate.high:,.0f}",
        ratio_cell(line.over.get("copy")),
        ratio_cell(line.over.get("preadv")),
        " ".join(f"{one:.3f}" for one in line.received) if any(line.received) else "",
    )


def goals(found: Sequence[Line]) -> list[str]:
    """Say of each goal whether ours reaches it."""
    said = []
    for line in found:
        for other, ratio in line.over.items():
            if line.arm == "ours":
                word = reached(good=ratio.median >= _GOALS[other])
                said.append(f"Ours over {other}: {ratio.median:.2f}, at least {_GOALS[other]:g} wanted: {word}.")
    return said


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status."""
    options = _parse(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    try:
        reader = DatasetReader(options.data)
        samples = len(reader)
    except (ShardsError, OSError) as exc:
        return say(_PROGRAM, f"--data cannot be read: {exc}", 2)
    if max(samples, options.rows) < (_WARMUP_STEPS + _LEAST_STEPS) * options.batch_size:
        return say(_PROGRAM, f"{max(samples, options.rows)} samples are too few for steps of {options.batch_size}", 2)
    return reported(
        _PROGRAM,
        lambda: run(options, reader, command=shlex.join(["python", f"benchmarks/{_PROGRAM}", *words])),
        to_markdown,
        options.json,
    )


def run(options: argparse.Namespace, reader: DatasetReader, *, command: str) -> Encoded:
    """Measure what the options ask for, in one launch.

    Raises:
        FailedRankError: a rank did not answer.
        ShardsError: the dataset cannot be repeated.
    """
    begun = origin(command)
    with page_cached(reader, rows=options.rows, folder=options.on) as longer:
        plan = Plan(
            data=longer.url,
            ranks=options.ranks,
            rows=options.batch_size,
            arms=options.ways,
            rounds=options.rounds,
            passes=options.passes,
            warmup_steps=_WARMUP_STEPS,
        )
        ranks = run_ranks(_RANK, plan, ranks=plan.ranks, answer=Turns)
        samples = len(longer)
    return Encoded(
        origin=begun,
        ranks=plan.ranks,
        rows=plan.rows,
        samples=samples,
        rounds=plan.rounds,
        lines=lines(plan, [one.turns for one in ranks]),
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM, description="Measure how fast encoded images reach the ranks.", allow_abbrev=False
    )
    add, arms = parser.add_argument, get_args(Arm)
    add("--data", required=True, help="packed dataset on a local disk: its folder or manifest")
    add("--ways", type=listed(choice(arms)), default=list(arms), help="what is measured (default: all)")
    add("--rows", type=whole(1), default=4000, help="repeat a smaller dataset to so many samples (default: 4000)")
    add("--on", type=Path, help="folder on the disk whose cache is read from (default: that for temporary files)")
    add("--ranks", type=whole(2), default=2, help="number of processes (default: 2)")
    add("--batch-size", type=whole(1), default=64, help="rows of a step over all ranks (default: 64)")
    add("--rounds", type=whole(1), default=5, help="turns of each way (default: 5)")
    add("--passes", type=whole(1), default=3, help="epochs in a turn (default: 3)")
    add("--json", type=out_file, help="also write everything to this file")
    options = parser.parse_args(arguments)
    if options.batch_size % options.ranks:
        parser.error(f"--batch-size {options.batch_size} cannot be split over {options.ranks} ranks; use a multiple")
    return options


if __name__ == "__main__":
    sys.exit(main())
