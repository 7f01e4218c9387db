"""Measure what an order of a billion rows costs: opening, any row, memory, and the first step far inside an epoch.

    python benchmarks/order_scale.py

A manifest of 100,000 shards with 10,000 rows each is made; no shard is, since none is read. Each shuffle is measured in
a process of its own. The table goes to standard output (Markdown). Exit status: 0 measured; 1 a process failed; 2 wrong
usage.
"""

import argparse
import random
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal, cast

import msgspec

from argument_types import whole
from reporting import Origin, head, origin, reached, reported
from shards.manifest import FILE_NAME, INDEX, Manifest, ShardInfo
from tables import table

_PROGRAM = "order_scale.py"
_SHUFFLES = ("window", "full", "none")
_STEP, _RANKS, _WINDOW_SHARDS, _SEED = 256, 8, 4, 0
_FAR = 0.9  # of an epoch
_MIB = 1024
_LIMIT_S = 300
_MOST = {"open_s": 2.0, "row_us": 50.0, "memory_mib": 100.0, "first_step_s": 1.0}


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One shuffle.

    `open_s` seconds until the manifest is checked; `first_step_s` seconds from nothing to the rows of a step at 90 % of
    the epoch; `row_us` microseconds for the row at one random position, the median, and `row_us_99` its 99th
    percentile; `memory_mib` the most memory beyond the imports; `process_s` seconds of the whole process, imports
    included.
    """

    shuffle: str
    open_s: float
    first_step_s: float
    row_us: float
    row_us_99: float
    memory_mib: float
    process_s: float = 0.0


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run gave."""

    origin: Origin
    shards: int
    rows: int
    lines: list[Line]


def made(folder: Path, *, shards: int, rows: int) -> None:
    """Write the manifest of so many shards with so many rows each."""
    infos = [
        ShardInfo(
            url=f"made-{number:06d}.tar",
            nsamples=rows,
            filesize=128 * 2**20,
            captions=5 * rows,
            xxh3_128=f"{number:032x}",
            index_url=f"made-{number:06d}.tar{INDEX}",
            index_filesize=124 * rows,
            index_xxh3_128=f"{shards + number:032x}",
        )
        for number in range(shards)
    ]
    (folder / FILE_NAME).write_bytes(Manifest("made", infos).to_bytes())


def measure(folder: str, shuffle: str, looks: int) -> Line:
    """Measure one shuffle in this process."""
    from shards.dataset import DatasetReader  # noqa: PLC0415 - imports are not what is measured, so they come first
    from stream.order import Order  # noqa: PLC0415
    from stream.schedule import Schedule  # noqa: PLC0415

    before, begin = _memory_mib("VmRSS"), time.perf_counter()
    reader = DatasetReader(folder)
    rows = len(reader)
    opened = time.perf_counter()
    sizes = [info.nsamples for info in reader.manifest.shardlist]
    named = None if shuffle == "none" else cast("Literal['window', 'full']", shuffle)
    order = Order(sizes, shuffle=named, seed=_SEED, epoch=0, window_shards=_WINDOW_SHARDS)
    schedule = Schedule(rows, global_batch=_STEP, ranks=_RANKS, drop_last=False, start=int(_FAR * rows))
    order.rows_at(schedule.positions(0))
    stepped = time.perf_counter()
    chance, took = random.Random(_SEED), list[float]()  # noqa: S311 - not a secret
    for _ in range(looks):
        position, start = chance.randrange(rows), time.perf_counter()
        order.row(position)
        took.append((time.perf_counter() - start) * 1e6)
    return Line(
        shuffle=shuffle,
        open_s=opened - begin,
        first_step_s=stepped - begin,
        row_us=median(took),
        row_us_99=sorted(took)[int(0.99 * looks)],
        memory_mib=_memory_mib("VmHWM") - before,
    )


def _memory_mib(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / _MIB


def to_markdown(result: Scale) -> str:
    """Return the report for people."""
    what = (
        f"A manifest of {result.shards:,} shards and {result.rows:,} rows; each shuffle in a process of its own. First "
        f"step: from nothing to the rows of a step of {_STEP} at position {int(_FAR * result.rows):,}. Row: at random "
        "positions, one by one, median and 99th percentile. Memory: the most beyond the imports. Process: all of it, "
        "with Python's start and the imports."
    )
    columns = ("shuffle", "open, s", "first step, s", "row, us", "99 %, us", "memory, MiB", "process, s")
    rows = [
        (
            line.shuffle,
            f"{line.open_s:.2f}",
            f"{line.first_step_s:.2f}",
            f"{line.row_us:.1f}",
            f"{line.row_us_99:.1f}",
            f"{line.memory_mib:.0f}",
            f"{line.process_s:.2f}",
        )
        for line in result.lines
    ]
    goals = []
    for name, most in _MOST.items():
        worst = max(getattr(line, name) for line in result.lines)
        goals.append(f"{name}: {worst:.3g}, at most {most:g} wanted: {reached(good=worst <= most)}.")
    return "\n\n".join((head(result.origin), what, table(columns, rows), *goals)) + "\n"


def run(options: argparse.Namespace, *, command: str) -> Scale:
    """Make the manifest and measure each shuffle.

    Raises:
        OSError: a process failed.
    """
    begun, lines = origin(command), list[Line]()
    with tempfile.TemporaryDirectory(prefix="order-scale-") as folder:
        made(Path(folder), shards=options.shards, rows=options.rows)
        for shuffle in _SHUFFLES:
            lines.append(_in_a_process(folder, shuffle, options.looks))
    return Scale(origin=begun, shards=options.shards, rows=options.shards * options.rows, lines=lines)


def _in_a_process(folder: str, shuffle: str, looks: int) -> Line:
    begin = time.perf_counter()
    words = [sys.executable, __file__, "--one", folder, shuffle, "--looks", str(looks)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_LIMIT_S)  # noqa: S603 - ourselves
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise OSError(f"measuring shuffle {shuffle} failed: {done.stderr.strip().splitlines()[-1]}")
    return msgspec.structs.replace(msgspec.json.decode(done.stdout, type=Line), process_s=seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    options: Any = _parse(words)
    if options.one is not None:
        sys.stdout.buffer.write(msgspec.json.encode(measure(options.one[0], options.one[1], options.looks)))
        return 0
    command = shlex.join(["python", f"benchmarks/{_PROGRAM}", *words])
    return reported(_PROGRAM, lambda: run(options, command=command), to_markdown, None)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM, description="Measure what an order of a billion rows costs.", allow_abbrev=False
    )
    add = parser.add_argument
    add("--shards", type=whole(1), default=100_000, help="shards of the manifest (default: 100000)")
    add("--rows", type=whole(1), default=10_000, help="rows of each shard (default: 10000)")
    add("--looks", type=whole(100), default=10_000, help="random positions that are asked for (default: 10000)")
    add("--one", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
