"""Measure shards to batches on every rank: ours, stock dispatch around webdataset, and the decode ceiling beside them.

    python benchmarks/end_to_end.py --data packed/val --json end_to_end.json

All ways and the ceiling take turns in one launch of the ranks; then the waits are measured with a step that sleeps. No
model is trained. The table goes to standard output (Markdown), progress to standard error. Exit status: 0 measured; 1 a
rank failed, or the dataset cannot be repeated; 2 wrong usage; 130 interrupted.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, get_args

import msgspec

from argument_types import choice, listed, out_file, seconds, whole
from dataset import repeated
from end_to_end_plan import Arm, Plan, Seen, Turn, Waiting
from launching import run_ranks
from report import Spread
from reporting import Origin, head, origin, ratio_cell, reached, reported, say
from shards.dataset import DatasetReader
from shards.errors import ShardsError
from tables import table

_PROGRAM = "end_to_end.py"
_RANK = Path(__file__).with_name("end_to_end_rank.py")
_WARMUP_STEPS = 8
_LAST_STEPS = 2  # of an epoch, in which nothing is read ahead any more
_MOST_WAIT = 0.02


class Goal(NamedTuple):
    """How many times the speed of another way one of ours must reach."""

    arm: Arm
    over: Arm
    least: float


_GOALS = (
    Goal("ours-uint8", "ceiling", 0.95),
    Goal("ours-float32", "ceiling", 0.91),
    Goal("ours-uint8", "stock-uint8", 1.25),
    Goal("ours-float32", "stock-float32", 1.8),
    Goal("ours-uint8", "pillow-uint8", 1.7),
    Goal("ours-float32", "pillow-float32", 2.1),
)


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One way: `over` are ratios of speeds, each round's own, by the name of the other way."""

    arm: Arm
    images_per_s: Spread
    over: dict[Arm, Spread]


class EndToEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run gave; `waits` has for each rank the share of the time that it waited, round by round."""

    origin: Origin
    ranks: int
    rows: int
    side: int
    samples: int
    rounds: int
    lines: list[Line]
    sleeps: float | None
    sleep_s: Spread | None
    waits: list[Spread]


def lines(arms: Sequence[Arm], turns: Sequence[Sequence[Turn]]) -> list[Line]:
    """Put the ranks' views together; `turns` are those of each rank."""
    speeds = {arm: _speeds(turns, arm) for arm in arms}
    return [
        Line(
            arm=arm,
            images_per_s=Spread.of(speeds[arm]),
            over={
                other: Spread.of(mine / its for mine, its in zip(speeds[arm], speeds[other], strict=True))
                for other in ("ceiling", *(goal.over for goal in _GOALS if goal.arm == arm))
                if other in speeds and other != arm
            },
        )
        for arm in arms
    ]


def _speeds(turns: Sequence[Sequence[Turn]], arm: Arm) -> list[float]:
    rounds = zip(*([turn for turn in one if turn.arm == arm] for one in turns), strict=True)
    return [sum(turn.rows for turn in ranks) / max(turn.seconds for turn in ranks) for ranks in rounds]


def shares(waiting: Sequence[Sequence[Waiting]]) -> list[Spread]:
    """Return for each rank which share of the time it waited."""
    return [Spread.of(one.wait_s / one.seconds for one in rank) for rank in waiting if rank]


def to_markdown(result: EndToEnd) -> str:
    """Return the report for people."""
    what = (
        f"{result.samples:,} samples to {result.side} x {result.side}, {result.rows} a step, {result.ranks} ranks, no "
        f"model; medians of {result.rounds} rounds in which all ways took turns, with the lowest and highest. Ceiling: "
        f"{result.ranks} threads of one process decode images in memory, and nothing else. Stock: accelerate's own "
        "dispatch around webdataset with 2 workers, the same decoder. Pillow: the same with Pillow's draft mode and "
        "bilinear resize."
    )
    columns = ("way", "images/s", "lowest-highest", "of ceiling", "times stock", "times Pillow")
    rows = table(columns, [_cells(line) for line in result.lines])
    return "\n\n".join((head(result.origin), what, rows, *goals(result.lines), *_waits(result))) + "\n"


def _cells(line: Line) -> tuple[str, ...]:
    rate, pixels = line.images_per_s, line.arm.partition("-")[2]
    others: tuple[str, ...] = ("ceiling", f"stock-{pixels}", f"pillow-{pixels}")
    ratios = [next((ratio for name, ratio in line.over.items() if name == other), None) for other in others]
    return (line.arm, f"{rate.median:,.0f}", f"{rate.low:,.0f}-{rate.high:,.0f}", *map(ratio_cell, ratios))


def goals(found: Sequence[Line]) -> list[str]:
    """Say of each goal whether it is reached; those whose ways were not measured are left out."""
    said = []
    for goal in _GOALS:
        for ratio in [line.over[goal.over] for line in found if line.arm == goal.arm and goal.over in line.over]:
            word = reached(good=ratio.median >= goal.least)
            said.append(f"{goal.arm} over {goal.over}: {ratio.median:.2f}, at least {goal.least:g} wanted: {word}.")
    return said


def _waits(result: EndToEnd) -> list[str]:
    if result.sleep_s is None or not result.waits:
        return []
    ranks = "; ".join(
        f"rank {rank} {share.median:.1%} ({share.low:.1%}-{share.high:.1%})" for rank, share in enumerate(result.waits)
    )
    word = reached(good=max(share.median for share in result.waits) < _MOST_WAIT)
    sleep = f"With a step that sleeps {result.sleeps:g} times the loading of one step"
    share = f"({result.sleep_s.median * 1e3:.0f} ms), the share of the time spent waiting: {ranks}"
    return [f"{sleep} {share}; under {_MOST_WAIT:.0%} on every rank wanted: {word}."]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status."""
    options = _parse(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    try:
        reader = DatasetReader(options.data)
        steps = max(len(reader), options.rows) // options.batch_size
    except (ShardsError, OSError) as exc:
        return say(_PROGRAM, f"--data cannot be read: {exc}", 2)
    if steps < _WARMUP_STEPS + options.steps + _LAST_STEPS:
        needed = f"{options.steps} steps to measure need {_WARMUP_STEPS + _LAST_STEPS} more around them"
        return say(_PROGRAM, f"--rows {options.rows}: an epoch has {steps} steps of {options.batch_size}; {needed}", 2)
    return reported(
        _PROGRAM,
        lambda: run(options, reader, command=shlex.join(["python", f"benchmarks/{_PROGRAM}", *words])),
        to_markdown,
        options.json,
    )


def run(options: argparse.Namespace, reader: DatasetReader, *, command: str) -> EndToEnd:
    """Measure what the options ask for, in one launch.

    Raises:
        FailedRankError: a rank did not answer.
        ShardsError: the dataset cannot be repeated.
    """
    begun, sleeps = origin(command), options.sleeps if "ours-uint8" in options.ways else None
    with repeated(reader, rows=options.rows) as longer:
        plan = Plan(
            data=longer.url,
            ranks=options.ranks,
            rows=options.batch_size,
            side=options.image_size,
            arms=options.ways,
            rounds=options.rounds,
            warmup_steps=_WARMUP_STEPS,
            steps=options.steps,
            ceiling_s=options.ceiling_seconds,
            sleeps=sleeps,
        )
        ranks = run_ranks(_RANK, plan, ranks=plan.ranks, answer=Seen)
        samples = len(longer)
    return EndToEnd(
        origin=begun,
        ranks=plan.ranks,
        rows=plan.rows,
        side=plan.side,
        samples=samples,
        rounds=plan.rounds,
        lines=lines(plan.arms, [one.turns for one in ranks]),
        sleeps=sleeps,
        sleep_s=Spread.of(one.sleep_s for one in ranks[0].waiting) if ranks[0].waiting else None,
        waits=shares([one.waiting for one in ranks]),
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM, description="Measure shards to batches on every rank.", allow_abbrev=False
    )
    add, arms = parser.add_argument, get_args(Arm)
    add("--data", required=True, help="packed dataset of JPEGs on a local disk: its folder or manifest")
    add("--ways", type=listed(choice(arms)), default=list(arms), help=f"{','.join(arms)} (default: all)")
    add("--rows", type=whole(1), default=4000, help="repeat a smaller dataset to so many samples (default: 4000)")
    add("--ranks", type=whole(2), default=2, help="number of processes (default: 2)")
    add("--batch-size", type=whole(1), default=64, help="rows of a step over all ranks (default: 64)")
    add("--image-size", type=whole(1), default=224, help="side of the images, pixels (default: 224)")
    add("--rounds", type=whole(1), default=5, help="turns of each way (default: 5)")
    add("--steps", type=whole(1), default=48, help="steps of a turn (default: 48)")
    add("--ceiling-seconds", type=seconds, default=3.0, help="length of a turn of the ceiling (default: 3)")
    add("--sleeps", type=seconds, default=1.1, help="a sleeping step, in times the loading of one (default: 1.1)")
    add("--json", type=out_file, help="also write everything to this file")
    options = parser.parse_args(arguments)
    if options.batch_size % options.ranks:
        parser.error(f"--batch-size {options.batch_size} cannot be split over {options.ranks} ranks; use a multiple")
    return options


if __name__ == "__main__":
    sys.exit(main())
