"""Measure what a training loop of pure Python and a loader that decodes do to each other, in threads and in a process.

    python benchmarks/busy_main.py --data packed/val --json busy_main.json

Each rank decodes with one thread, and half of each of its steps is pure Python in the main thread. So a rank needs two
cores, and by default there are half as many ranks as cores: with more, the cores would be what is measured, not the
interpreter's lock. The table goes to standard output (Markdown), progress to standard error. Exit status: 0 measured;
1 a rank failed, or the dataset cannot be repeated; 2 wrong usage; 130 interrupted.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import msgspec

from argument_types import choice, listed, out_file, whole
from busy_main_plan import DecodeIn, Plan, Turn, Turns
from dataset import repeated
from launching import run_ranks
from machine import cores
from report import Spread
from reporting import Origin, head, origin, reached, reported, say
from shards.dataset import DatasetReader
from shards.errors import ShardsError
from tables import table

_PROGRAM = "busy_main.py"
_RANK = Path(__file__).with_name("busy_main_rank.py")
_WARMUP_STEPS = 6
_LAST_STEPS = 2  # of an epoch, in which nothing is read ahead any more
_LEAST_KEPT, _MOST_SLOWED = 0.9, 0.05  # what decoding in a process must keep to


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One way of decoding, the slowest rank of each round.

    `kept` is the rate with Python in the steps over that without; `slowed` is how much longer the Python of a step
    takes beside the loader than alone, 0.05 is 5 % longer. `python_ms` is what it takes alone.
    """

    decode_in: DecodeIn
    calm_per_s: Spread
    busy_per_s: Spread
    python_ms: Spread
    kept: Spread
    slowed: Spread


class BusyMain(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run gave."""

    origin: Origin
    ranks: int
    rows: int
    side: int
    rounds: int
    lines: list[Line]


def lines(plan: Plan, turns: Sequence[Sequence[Turn]]) -> list[Line]:
    """Put the ranks' views together; `turns` are those of each rank."""
    return [_line(plan, turns, decode_in) for decode_in in plan.decode_in]


def _line(plan: Plan, turns: Sequence[Sequence[Turn]], decode_in: DecodeIn) -> Line:
    rounds = list(zip(*([turn for turn in one if turn.decode_in == decode_in] for one in turns), strict=True))
    images = plan.rows * plan.steps
    calm = [images / max(turn.calm_s for turn in ranks) for ranks in rounds]
    busy = [images / max(turn.busy_s for turn in ranks) for ranks in rounds]
    return Line(
        decode_in=decode_in,
        calm_per_s=Spread.of(calm),
        busy_per_s=Spread.of(busy),
        python_ms=Spread.of(turn.alone_s * 1e3 for ranks in rounds for turn in ranks),
        kept=Spread.of(with_python / without for with_python, without in zip(busy, calm, strict=True)),
        slowed=Spread.of(max(turn.python_s / turn.alone_s for turn in ranks) - 1 for ranks in rounds),
    )


def to_markdown(result: BusyMain) -> str:
    """Return the report for people."""
    what = (
        f"{result.rows} images a step to {result.side} x {result.side}, {result.ranks} rank(s), each decodes with one "
        f"thread; medians of {result.rounds} rounds in which the ways took turns, with the lowest and highest. Calm: "
        "the loop only takes batches. Busy: in each step it also runs pure Python that takes half as long as loading "
        "a step does. Slowed: by how much that Python takes longer than alone."
    )
    columns = ("decode_in", "calm, images/s", "busy, images/s", "Python, ms", "rate kept", "Python slowed by")
    rows = table(columns, [_cells(line) for line in result.lines])
    return "\n\n".join((head(result.origin), what, rows, *goals(result.lines))) + "\n"


def _cells(line: Line) -> tuple[str, ...]:
    kept, slowed = line.kept, line.slowed
    return (
        line.decode_in,
        f"{line.calm_per_s.median:,.0f} ({line.calm_per_s.low:,.0f}-{line.calm_per_s.high:,.0f})",
        f"{line.busy_per_s.median:,.0f} ({line.busy_per_s.low:,.0f}-{line.busy_per_s.high:,.0f})",
        f"{line.python_ms.median:.1f}",
        f"{kept.median:.2f} ({kept.low:.2f}-{kept.high:.2f})",
        f"{slowed.median:.1%} ({slowed.low:.1%} to {slowed.high:.1%})",
    )


def goals(found: Sequence[Line]) -> list[str]:
    """Say whether decoding in a process keeps to what is wanted of it."""
    said = []
    for line in [line for line in found if line.decode_in == "process"]:
        kept = reached(good=line.kept.median >= _LEAST_KEPT)
        slowed = reached(good=line.slowed.median <= _MOST_SLOWED)
        said += [
            f"Rate kept: {line.kept.median:.2f}, at least {_LEAST_KEPT:g} wanted: {kept}.",
            f"Python slowed by {line.slowed.median:.1%}, at most {_MOST_SLOWED:.0%} wanted: {slowed}.",
        ]
    return said


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


def run(options: argparse.Namespace, reader: DatasetReader, *, command: str) -> BusyMain:
    """Measure what the options ask for, in one launch.

    Raises:
        FailedRankError: a rank did not answer.
        ShardsError: the dataset cannot be repeated.
    """
    begun = origin(command)
    with repeated(reader, rows=options.rows) as longer:
        plan = Plan(
            data=longer.url,
            ranks=options.ranks,
            rows=options.batch_size,
            side=options.image_size,
            decode_in=options.decode_in,
            rounds=options.rounds,
            warmup_steps=_WARMUP_STEPS,
            steps=options.steps,
        )
        ranks = run_ranks(_RANK, plan, ranks=plan.ranks, answer=Turns)
    return BusyMain(
        origin=begun,
        ranks=plan.ranks,
        rows=plan.rows,
        side=plan.side,
        rounds=plan.rounds,
        lines=lines(plan, [one.turns for one in ranks]),
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM, description="Measure a loader beside a loop of pure Python.", allow_abbrev=False
    )
    add, ways = parser.add_argument, get_args(DecodeIn)
    add("--data", required=True, help="packed dataset on a local disk: its folder or manifest")
    add("--decode-in", type=listed(choice(ways)), default=list(ways), help=f"{','.join(ways)} (default: both)")
    add("--rows", type=whole(1), default=4000, help="repeat a smaller dataset to so many samples (default: 4000)")
    add("--ranks", type=whole(1), default=max(1, cores() // 2), help="processes (default: half the cores)")
    add("--batch-size", type=whole(1), default=64, help="rows of a step over all ranks (default: 64)")
    add("--image-size", type=whole(1), default=224, help="side of the images, pixels (default: 224)")
    add("--rounds", type=whole(1), default=5, help="turns of each way (default: 5)")
    add("--steps", type=whole(1), default=32, help="steps of a turn (default: 32)")
    add("--json", type=out_file, help="also write everything to this file")
    options = parser.parse_args(arguments)
    if options.batch_size % options.ranks:
        parser.error(f"--batch-size {options.batch_size} cannot be split over {options.ranks} ranks; use a multiple")
    return options


if __name__ == "__main__":
    sys.exit(main())
