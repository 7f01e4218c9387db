"""Measure what importing the packages costs, each time in a fresh interpreter.

    python benchmarks/import_time.py --repeats 9

The table (Markdown) goes to standard output: seconds beyond torch's own import, and what must not have been loaded.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from report import Spread

_PROGRAM = """
import json, sys, time
{before}
start = time.perf_counter()
{statement}
spent = time.perf_counter() - start
print(json.dumps([spent, [name for name in {absent!r} if name in sys.modules]]))
"""


class Case(NamedTuple):
    """A statement to time, what is imported before the clock starts, and what it must leave alone."""

    statement: str
    before: str
    absent: tuple[str, ...]


CASES = (
    Case("from stream import StreamLoader", "import torch", ("s3fs", "webdataset", "fsspec", "accelerate", "PIL")),
    Case("import shards", "", ("torch", "numpy", "s3fs", "webdataset")),
    Case("from shards import DatasetReader, ShardWriter", "", ("torch", "numpy", "s3fs", "webdataset")),
)


def measure(case: Case, repeats: int) -> tuple[Spread, list[str]]:
    """Return the seconds of the statement, and what was loaded that must not be."""
    program = _PROGRAM.format(before=case.before, statement=case.statement, absent=case.absent)
    seconds, loaded = [], []
    for _ in range(repeats):
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, capture_output=True, check=True, text=True, timeout=120)  # noqa: S603 - ours
        spent, found = json.loads(done.stdout)
        seconds.append(spent)
        loaded = found
    return Spread.of(seconds), loaded


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; exit status 1 where something was loaded that must not be."""
    parser = argparse.ArgumentParser(prog="import_time.py", description="Measure what importing the packages costs.")
    parser.add_argument("--repeats", type=int, default=9, help="fresh interpreters for each statement (default: 9)")
    repeats = parser.parse_args(arguments).repeats
    lines = [
        "| statement | seconds, median (lowest - highest) | must not be loaded | was loaded |",
        "|---|---|---|---|",
    ]
    wrong = False
    for case in CASES:
        spent, loaded = measure(case, repeats)
        wrong = wrong or bool(loaded)
        figures = f"{spent.median:.3f} ({spent.low:.3f} - {spent.high:.3f})"
        lines.append(f"| `{case.statement}` | {figures} | {', '.join(case.absent)} | {', '.join(loaded) or 'none'} |")
    sys.stdout.write("\n".join(lines) + "\n")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
