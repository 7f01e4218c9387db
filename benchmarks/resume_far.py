"""Measure the time to the first batch after a resume at 90 % of an epoch, beside that of a fresh start.

    python benchmarks/resume_far.py --json resume_far.json

100,000 small samples are packed first. Both ways take turns, each in a loader of its own, in both modes; what the
loader reads from then on is counted, and no byte of a row that was consumed may be among it. The table goes to standard
output (Markdown). Exit status: 0 measured; 1 a consumed row was read again, or the disk is full; 2 wrong usage.
"""

import argparse
import shlex
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import msgspec
import numpy as np
import simplejpeg
from accelerate import Accelerator, DataLoaderConfiguration

from argument_types import out_file, whole
from report import Spread
from reporting import Origin, head, origin, ratio_cell, reached, reported
from shards.dataset import DatasetReader
from shards.index import RowInfo
from shards.local import LocalStore
from shards.store import open_store
from shards.writer import ShardWriter
from stream.loader import StreamLoader
from tables import table

_PROGRAM = "resume_far.py"
_MODES = ("dispatch", "shard")
_SIDE, _BATCH, _FAR, _MOST = 32, 64, 0.9, 1.2
Way = Literal["fresh", "resumed"]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One mode: milliseconds to the first batch of both ways, the ratio of each round, and bytes read again."""

    mode: str
    fresh_ms: Spread
    resumed_ms: Spread
    ratio: Spread
    again_bytes: int


class ResumeFar(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run gave."""

    origin: Origin
    samples: int
    rounds: int
    lines: list[Line]


class Reads:
    """Ranges that were read from shards: for each file the (start, end) of each."""

    def __init__(self) -> None:
        self.ranges: dict[str, list[tuple[int, int]]] = {}

    def add(self, name: str, ranges: Sequence[tuple[int, int]]) -> None:
        """Note what was read of a file; indexes do not count."""
        if name.endswith(".tar"):
            self.ranges.setdefault(name, []).extend(ranges)

    def bytes_of(self, name: str, start: int, end: int) -> int:
        """Return how many bytes of `[start, end)` of a file were read; overlapping reads count each."""
        found = self.ranges.get(name, [])
        near = found[bisect_left(found, (start,), key=lambda one: (one[1],)) :] if found else []
        return sum(max(0, min(end, high) - max(start, low)) for low, high in near if low < end)


def packed(folder: Path, samples: int) -> DatasetReader:
    """Pack so many small samples: 32 x 32 pixels and a caption each."""
    noise = np.random.default_rng(0).integers(0, 256, (_SIDE, _SIDE, 3), dtype=np.uint8)
    image = simplejpeg.encode_jpeg(noise, quality=75)
    with ShardWriter(open_store(str(folder)), name="small", shard_bytes=16 * 2**20) as writer:
        for number in range(samples):
            text = f"sample {number}".encode()
            writer.add(f"{number:012d}", {"jpg": image, "txt": text}, RowInfo(_SIDE, _SIDE, 0, (len(text),)))
    return DatasetReader(str(folder))


@contextmanager
def counted() -> Iterator[Reads]:
    """Count what this process reads from shards on a local disk meanwhile."""
    found, read, read_ranges_into = Reads(), LocalStore.read, LocalStore.read_ranges_into

    def counting_read(self: LocalStore, name: str, *, start: int = 0, end: int | None = None) -> bytes:
        data = read(self, name, start=start, end=end)
        found.add(name, [(start, start + len(data))])
        return data

    def counting_ranges(
        self: LocalStore, name: str, buffer: memoryview, ranges: Sequence[tuple[int, int]], *, wait: bool = True
    ) -> bool:
        came = read_ranges_into(self, name, buffer, ranges, wait=wait)
        if came:
            found.add(name, ranges)
        return came

    LocalStore.read, LocalStore.read_ranges_into = counting_read, counting_ranges  # type: ignore[method-assign]
    try:
        yield found
    finally:
        LocalStore.read, LocalStore.read_ranges_into = read, read_ranges_into  # type: ignore[method-assign]


class Begun(NamedTuple):
    """An iteration with its first batch: `ms` milliseconds after its loader began to be made."""

    ms: float
    loader: StreamLoader
    iteration: Any
    keys: list[str]

    def end(self) -> float:
        """End it; return the milliseconds."""
        self.iteration.close()
        self.loader.close()
        return self.ms


def begin(url: str, mode: str, state: dict[str, Any] | None) -> Begun:
    """Make a loader, from the beginning or from a state on, and take its first batch."""
    config = DataLoaderConfiguration(dispatch_batches=mode == "dispatch", split_batches=True)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    start = time.perf_counter()
    loader = StreamLoader(url, accelerator=accelerator, batch_size=_BATCH, image_size=_SIDE, drop_last=True)
    if state is not None:
        loader.load_state_dict(state)
    accelerator.prepare(loader)
    iteration: Any = iter(loader)
    batch = next(iteration)
    return Begun((time.perf_counter() - start) * 1e3, loader, iteration, batch["key"])


def line(reader: DatasetReader, mode: str, rounds: int) -> Line:
    """Measure one mode; the first round warms up."""
    begun = begin(reader.url, mode, None)
    state = {**begun.loader.state_dict(), "position": int(_FAR * len(begun.loader)) * _BATCH}
    begun.end()
    took: dict[Way, list[float]] = {"fresh": [], "resumed": []}
    for number in range(rounds + 1):
        for way in get_args(Way)[:: -1 if number % 2 else 1]:
            ms = begin(reader.url, mode, state if way == "resumed" else None).end()
            took[way] += [ms] if number else []
    return Line(
        mode=mode,
        fresh_ms=Spread.of(took["fresh"]),
        resumed_ms=Spread.of(took["resumed"]),
        ratio=Spread.of(late / early for late, early in zip(took["resumed"], took["fresh"], strict=True)),
        again_bytes=read_again(reader, mode, state),
    )


def read_again(reader: DatasetReader, mode: str, state: dict[str, Any]) -> int:
    """Go on from a state to the end of the epoch; return the bytes of rows before it that were read."""
    with counted() as reads:
        begun = begin(reader.url, mode, state)
        left = {int(key) for key in begun.keys} | {int(key) for batch in begun.iteration for key in batch["key"]}
        begun.end()
    for ranges in reads.ranges.values():
        ranges.sort(key=lambda one: one[1])
    first = set(range(len(reader))) - left
    again = 0
    for row in sorted(first):
        shard_no, in_shard = reader.manifest.locate(row)
        index, name = reader.index(shard_no), reader.manifest.shardlist[shard_no].url
        for suffix in index.suffixes:
            start, size = index.span(in_shard, suffix)
            again += reads.bytes_of(name, start, start + size)
    return again


def to_markdown(result: ResumeFar) -> str:
    """Return the report for people."""
    what = (
        f"{result.samples:,} samples of {_SIDE} x {_SIDE} pixels on a local disk, {_BATCH} a step, one rank; medians "
        f"of {result.rounds} rounds in which both ways took turns, with the lowest and highest. Milliseconds from "
        f"making a loader to its first batch, from the beginning and at {_FAR:.0%} of the epoch. Read again: bytes of "
        "rows before that position which were read from there to the end of the epoch."
    )
    columns = ("mode", "fresh, ms", "resumed, ms", "resumed over fresh", "read again, bytes")
    rows = [
        (one.mode, _cell(one.fresh_ms), _cell(one.resumed_ms), ratio_cell(one.ratio), f"{one.again_bytes:,}")
        for one in result.lines
    ]
    goals = [
        f"Resumed over fresh, {one.mode}: {one.ratio.median:.2f}, at most {_MOST} wanted: "
        f"{reached(good=one.ratio.median <= _MOST)}. Read again: {one.again_bytes} bytes, none wanted: "
        f"{reached(good=not one.again_bytes)}."
        for one in result.lines
    ]
    return "\n\n".join((head(result.origin), what, table(columns, rows), *goals)) + "\n"


def _cell(spread: Spread) -> str:
    return f"{spread.median:.1f} ({spread.low:.1f}-{spread.high:.1f})"


def run(options: argparse.Namespace, *, command: str) -> ResumeFar:
    """Pack and measure."""
    begun = origin(command)
    with tempfile.TemporaryDirectory(prefix="resume-far-") as folder:
        reader = packed(Path(folder) / "packed", options.samples)
        lines = [line(reader, mode, options.rounds) for mode in _MODES]
    return ResumeFar(origin=begun, samples=options.samples, rounds=options.rounds, lines=lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(
        prog=_PROGRAM, description="Measure a resume far inside an epoch.", allow_abbrev=False
    )
    add = parser.add_argument
    add("--samples", type=whole(10 * _BATCH), default=100_000, help="samples to pack (default: 100000)")
    add("--rounds", type=whole(1), default=9, help="turns of each way (default: 9)")
    add("--json", type=out_file, help="also write everything to this file")
    options = parser.parse_args(words)
    found: list[ResumeFar] = []

    def measure() -> ResumeFar:
        found.append(run(options, command=shlex.join(["python", f"benchmarks/{_PROGRAM}", *words])))
        return found[0]

    status = reported(_PROGRAM, measure, to_markdown, options.json)
    return status or int(any(one.again_bytes for one in found[0].lines))


if __name__ == "__main__":
    sys.exit(main())
