"""The command line of run.py."""

import argparse
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import msgspec

from argument_types import listed, seconds, whole
from messages import Mode

T = TypeVar("T")
_MODES: tuple[Mode, ...] = ("dispatch", "shard")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be measured; see `--help`."""

    data: str
    mode: list[Mode]
    ranks: list[int]
    batch_size: int
    image_size: int
    workers: list[int]
    prefetch: list[int]
    pin_memory: list[bool]
    advice: bool
    rows: int
    seconds: float
    warmup: float
    repeats: int
    json: Path | None
    plot: Path | None


def parse(arguments: Sequence[str] | None) -> Options:
    """Read the command line; leaves the program with status 2 where it is wrong."""
    parser = _parser()
    options = Options(**vars(parser.parse_args(arguments)))
    for ranks in options.ranks:
        if options.batch_size % ranks:
            parser.error(f"--batch-size {options.batch_size} cannot be split over {ranks} ranks; use a multiple")
    for path in (options.json, options.plot):
        if path is not None:
            _check_writable(parser, path)
    if options.plot is not None and find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install -e '.[bench]' in a clone of this repository")
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="run.py",
        description="Measure the loader: samples/s over modes, ranks, workers, prefetch and pinned memory.",
        epilog="Options with commas span a grid; every row of it is measured in every repeat. Two other measurements "
        "have options of their own: --transport ours,stock,scatter --help, and --faults --help.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--data", required=True, help="packed dataset: its folder, URL or manifest")
    add("--mode", type=listed(_mode), default="dispatch,shard", help="dispatch, shard or both (default)")
    add("--ranks", type=listed(whole(1)), default="2", help="numbers of processes (default: 2)")
    add("--batch-size", type=whole(1), default=64, help="rows of a step over all ranks (default: 64)")
    add("--image-size", type=whole(1), default=224, help="side of the images, pixels (default: 224)")
    add("--workers", type=listed(whole(0)), default="0,1,2", help="worker processes of a loader (default: 0,1,2)")
    add(
        "--prefetch",
        type=listed(whole(1)),
        default="2,4,8",
        help="steps read ahead (default: 2,4,8; dispatch mode needs 2)",
    )
    add("--pin-memory", type=listed(_switch), default="on,off", help="on, off or both (default)")
    add(
        "--advice",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="measure the common advice too: as many workers as ranks, prefetch 2, pinned memory",
    )
    add(
        "--rows",
        type=whole(0),
        default=4096,
        help="repeat a smaller dataset to so many rows (default: 4096, 0: never)",
    )
    add("--seconds", type=seconds, default=3.0, help="length of a measuring window (default: 3)")
    add("--warmup", type=seconds, default=1.0, help="seconds before each window (default: 1)")
    add("--repeats", type=whole(1), default=3, help="windows of each row (default: 3)")
    add("--json", type=Path, help="also write everything to this file")
    add("--plot", type=Path, help="also draw it into this PNG")
    return parser


def _check_writable(parser: argparse.ArgumentParser, path: Path) -> None:
    """Refuse now what would be lost after minutes of measuring."""
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        parser.error(f"{path} cannot be written; name a file in a folder that exists")


def _mode(text: str) -> Mode:
    if text not in _MODES:
        raise argparse.ArgumentTypeError(f"{text!r} is no mode; write {' or '.join(_MODES)}")
    return text


def _switch(text: str) -> bool:
    if text not in {"on", "off"}:
        raise argparse.ArgumentTypeError(f"{text!r} is neither on nor off")
    return text == "on"
