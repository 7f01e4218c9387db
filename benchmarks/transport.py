"""Measure the transport alone: ready batches from rank 0 to all ranks by accelerate's stock dispatch, scatter and ours.

    python benchmarks/transport.py --ranks 2,4 --dtypes float32,uint8 --json transport.json

All ways take turns in one launch of the ranks. The table goes to standard output (Markdown), progress to standard
error. Exit status: 0 measured; 1 a rank failed; 2 wrong usage; 130 interrupted.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import msgspec

from argument_types import choice, listed, out_file, seconds, whole
from launching import run_ranks
from report import Spread
from reporting import Origin, head, origin, ratio_cell, reached, reported
from tables import table
from transport_plan import Arm, Dtype, Plan, Turn, Turns, portion_bytes

_PROGRAM = "transport.py"
_RANK = Path(__file__).with_name("transport_rank.py")
_WARMUP_STEPS = 4
_OVER_STOCK: dict[tuple[Dtype, int], float] = {
    ("float32", 2): 9.0,
    ("float32", 4): 14.0,
    ("uint8", 2): 5.0,
    ("uint8", 4): 10.0,
}  # what ours must reach, by pixels and ranks
_OVER_SCATTER = 1.8


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One way of one launch.

    The ratios are of speeds, each round's own, above 1 is faster than the other way; None where that was not measured.
    `received` has one number per rank: bytes that it received per step, over those of its portion, the round with most.
    """

    ranks: int
    dtype: Dtype
    arm: Arm
    rows_per_s: Spread
    over_stock: Spread | None
    over_scatter: Spread | None
    received: list[float]


class Transport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run gave; `rows` are those of a whole step."""

    origin: Origin
    rows: int
    side: int
    rounds: int
    lines: list[Line]


def measure(plan: Plan) -> list[Line]:
    """Launch the ranks of one plan and measure all its ways.

    Raises:
        FailedRankError: a rank did not answer.
    """
    ranks = run_ranks(_RANK, plan, ranks=plan.ranks, answer=Turns)
    return lines(plan, [one.turns for one in ranks])


def lines(plan: Plan, turns: Sequence[Sequence[Turn]]) -> list[Line]:
    """Put the ranks' views together; `turns` are those of each rank."""
    return [_line(plan, turns, dtype, arm) for dtype in plan.dtypes for arm in plan.arms]


def _line(plan: Plan, turns: Sequence[Sequence[Turn]], dtype: Dtype, arm: Arm) -> Line:
    speeds = {name: _speeds(plan, turns, dtype, name) for name in plan.arms}

    def over(other: Arm) -> Spread | None:
        if other not in speeds or other == arm:
            return None
        return Spread.of(mine / its for mine, its in zip(speeds[arm], speeds[other], strict=True))

    portion = portion_bytes(plan, dtype)
    mine = [[turn for turn in one if (turn.dtype, turn.arm) == (dtype, arm)] for one in turns]
    return Line(
        ranks=plan.ranks,
        dtype=dtype,
        arm=arm,
        rows_per_s=Spread.of(speeds[arm]),
        over_stock=over("stock"),
        over_scatter=over("scatter"),
        received=[max(turn.received_bytes for turn in one) / portion for one in mine],
    )


def _speeds(plan: Plan, turns: Sequence[Sequence[Turn]], dtype: Dtype, arm: Arm) -> list[float]:
    """Rows a second of each round, by the rank that took longest."""
    mine = [[turn for turn in one if (turn.dtype, turn.arm) == (dtype, arm)] for one in turns]
    rounds = zip(*mine, strict=True)
    return [plan.rows * ranks[0].steps / max(turn.seconds for turn in ranks) for ranks in rounds]


def to_markdown(result: Transport) -> str:
    """Return the report for people."""
    what = (
        f"Ready batches of {result.rows} x 3 x {result.side} x {result.side}, split over the ranks, one core a "
        f"thread; medians of {result.rounds} rounds in which all ways took turns, with the lowest and highest. Times "
        "stock, times scatter: the ratio of each round. Received: bytes per step over those of the rank's portion, "
        "for each rank; rank 0 has the batch."
    )
    columns = ("way", "pixels", "ranks", "samples/s", "lowest-highest", "times stock", "times scatter", "received")
    rows = table(columns, [_cells(line) for line in result.lines], text=(0, 1))
    return "\n\n".join((head(result.origin), what, rows, *goals(result.lines))) + "\n"


def _cells(line: Line) -> tuple[str, ...]:
    rate = line.rows_per_s
    return (
        line.arm,
        line.dtype,
        str(line.ranks),
        f"{rate.median:,.0f}",
        f"{rate.low:,.0f}-{rate.high:,.0f}",
        ratio_cell(line.over_stock),
        ratio_cell(line.over_scatter),
        " ".join(f"{one:.3f}" for one in line.received),
    )


def goals(found: Sequence[Line]) -> list[str]:
    """Say of each goal that concerns a line of ours whether it is reached."""
    said = []
    for line in found:
        wanted = _OVER_STOCK.get((line.dtype, line.ranks))
        if line.arm == "ours" and line.over_stock is not None and wanted is not None:
            said.append(_goal(line, "stock dispatch", line.over_stock.median, wanted))
        if line.arm == "ours" and line.over_scatter is not None:
            said.append(_goal(line, "scatter", line.over_scatter.median, _OVER_SCATTER))
    return said


def _goal(line: Line, other: str, ratio: float, wanted: float) -> str:
    word = reached(good=ratio >= wanted)
    return f"Ours over {other}, {line.dtype}, {line.ranks} ranks: {ratio:.2f}, at least {wanted:g} wanted: {word}."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status."""
    options = _parse(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    return reported(
        _PROGRAM,
        lambda: run(options, command=shlex.join(["python", f"benchmarks/{_PROGRAM}", *words])),
        to_markdown,
        options.json,
    )


def run(options: argparse.Namespace, *, command: str) -> Transport:
    """Measure what the options ask for, one launch for each number of ranks.

    Raises:
        FailedRankError: a rank did not answer.
    """
    begun, found = origin(command), list[Line]()
    for ranks in options.ranks:
        plan = Plan(
            ranks=ranks,
            rows=options.batch_size,
            side=options.image_size,
            dtypes=options.dtypes,
            arms=options.transport,
            rounds=options.rounds,
            seconds=options.seconds,
            warmup_steps=_WARMUP_STEPS,
        )
        found += measure(plan)
    return Transport(origin=begun, rows=options.batch_size, side=options.image_size, rounds=options.rounds, lines=found)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description="Measure the transport alone: ready batches from rank 0 to all ranks.",
        allow_abbrev=False,
    )
    add, dtypes, arms = parser.add_argument, get_args(Dtype), get_args(Arm)
    add("--transport", type=listed(choice(arms)), default=list(arms), help=f"{','.join(arms)} (default: all)")
    add("--dtypes", type=listed(choice(dtypes)), default=list(dtypes), help=f"{','.join(dtypes)} (default: both)")
    add("--ranks", type=listed(whole(2)), default=[2, 4], help="numbers of processes (default: 2,4)")
    add("--batch-size", type=whole(1), default=64, help="rows of a step over all ranks (default: 64)")
    add("--image-size", type=whole(1), default=224, help="side of the images, pixels (default: 224)")
    add("--rounds", type=whole(1), default=5, help="turns of each way (default: 5)")
    add("--seconds", type=seconds, default=1.5, help="about how long a turn takes (default: 1.5)")
    add("--json", type=out_file, help="also write everything to this file")
    options = parser.parse_args(arguments)
    for ranks in options.ranks:
        if options.batch_size % ranks:
            parser.error(f"--batch-size {options.batch_size} cannot be split over {ranks} ranks; use a multiple")
    return options


if __name__ == "__main__":
    sys.exit(main())
