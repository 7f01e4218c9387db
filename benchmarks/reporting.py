"""What the programs that launch ranks have in common: how a report begins, how it is written, how they end."""

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from launching import FailedRankError
from machine import describe_machine
from report import Machine, Spread
from shards.errors import ShardsError

R = TypeVar("R", bound=msgspec.Struct)


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Date, command and machine of a run, taken before it."""

    date: str
    command: str
    machine: Machine


def origin(command: str) -> Origin:
    """Look at clock and machine as they are now."""
    return Origin(date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), command=command, machine=describe_machine())


def head(came: Origin) -> str:
    """Return two paragraphs of Markdown: the machine, the command."""
    machine = came.machine
    where = (
        f"{machine.cpu}, {machine.cores} cores, {machine.memory_gib:.0f} GiB, {machine.accelerator}; "
        f"Python {machine.python}, torch {machine.torch}, accelerate {machine.accelerate}; {came.date}; "
        f"load before the start {machine.load:.1f}."
    )
    return f"{where}\n\n`{came.command}`"


def ratio_cell(spread: Spread | None) -> str:
    """Return a ratio with its lowest and highest as a cell of a table, empty for None."""
    return "" if spread is None else f"{spread.median:.2f} ({spread.low:.2f}-{spread.high:.2f})"


def reached(*, good: bool) -> str:
    """Return the word for a goal that is reached, or not."""
    return "reached" if good else "MISSED"


def reported(program: str, measure: Callable[[], R], render: Callable[[R], str], json: Path | None) -> int:
    """Measure, write the report to standard output and to `json`, and return the program's exit status."""
    try:
        result = measure()
    except (FailedRankError, ShardsError, OSError) as exc:
        return say(program, str(exc), 1)
    except KeyboardInterrupt:
        return say(program, "interrupted, nothing was written", 130)
    if json is not None:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    sys.stdout.write(render(result))
    return 0


def say(program: str, message: str, status: int) -> int:
    """Tell people on standard error why a program ends, and return its exit status."""
    sys.stderr.write(f"{program}: {message}\n")
    return status
