"""Pack COCO captions and their images into shards.

    python tools/pack_coco.py --images train2017.zip --captions captions_train2017.json --out packed/train

Images keep their bytes; each is decoded once to be sure of it. On success standard output gets one JSON object and
standard error a table. Exit status: 0 the dataset is published and lacks nothing that was not allowed to lack; 1 it
is not published, standard error says why; 2 wrong usage; 130 interrupted by Ctrl-C.
"""

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Literal

import msgspec

from coco import read_captions
from crew import Crew
from images import ImageSource, open_source
from pack_errors import PackError
from pack_report import Report, count_kinds, to_json, to_table
from packing import Packer, pack_checked, pack_unchecked, refuse_lost
from plan import PlanOptions, make_plan
from rejections import Rejection, to_jsonl
from shards.errors import NameRuleError, OutputNotEmptyError, ShardsError
from shards.manifest import Manifest
from shards.sample import check_key
from shards.store import open_store
from shards.writer import ShardWriter
from stopping import Stopped, ignore_signals, stoppable
from verdict import Settings

REJECTED = "rejected.jsonl"
_UNITS: dict[str, int] = {"": 1, "B": 1} | {
    f"{prefix}{unit}": base ** (power + 1)
    for power, prefix in enumerate("KMGT")
    for unit, base in (("B", 1000), ("IB", 1024))
}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The command line."""

    images: str
    captions: str
    out: str
    shard_size: int
    workers: int
    shuffle_seed: int | None
    allow_missing: bool
    on_bad: Literal["fail", "skip"]
    overwrite: bool
    name: str
    check: Literal["full", "none"]
    max_pixels: int | None

    @property
    def plan(self) -> PlanOptions:
        """What may be left out, and the order."""
        skip = self.on_bad == "skip"
        return PlanOptions(allow_missing=self.allow_missing, skip_bad=skip, shuffle_seed=self.shuffle_seed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status."""
    options = parse(arguments)
    try:
        with stoppable():
            report = run(options)
    except Stopped as exc:
        return _say(exc, f"{exc}; nothing was published", exc.exit_status)
    except OutputNotEmptyError as exc:
        return _say(exc, f"{exc} (--overwrite)", 1)
    except (PackError, ShardsError, OSError) as exc:
        return _say(exc, str(exc), 1)
    sys.stdout.write(to_json(report))
    sys.stderr.write(to_table(report))
    return 0


def run(options: Options) -> Report:
    """Pack and publish.

    Raises:
        PackError, ShardsError, OSError: nothing was published, for the reason given.
        Stopped: nothing was published because a signal asked to stop.
    """
    start = time.monotonic()
    source = open_source(options.images)
    with _crew(options, source) as crew:  # started first: it gets ready while the captions are read
        plan = make_plan(read_captions(Path(options.captions)), source, options.plan)
        store = open_store(options.out)
        writer = ShardWriter(store, options.name, shard_bytes=options.shard_size, replace=options.overwrite)
        packer = Packer(source, writer, skip_bad=options.plan.skip_bad)
        try:
            with _progress(len(plan.entries)) as advance:
                if crew is None:
                    pack_unchecked(plan, packer, source.path, advance)
                else:
                    pack_checked(plan, packer, crew, advance)
            rejections = [*plan.rejections, *packer.bad]
            refuse_lost(plan, packer, skip_bad=options.plan.skip_bad)
            manifest = _publish(writer, rejections)
        except BaseException as exc:
            _abort(writer, exc)
            raise
    return _report(options, packer, manifest, rejections, time.monotonic() - start)


def _publish(writer: ShardWriter, rejections: Sequence[Rejection]) -> Manifest:
    writer.add_file(REJECTED, to_jsonl(rejections))
    ignore_signals()  # publishing is short, and half of it would be worse than all of it
    return writer.close()


def _abort(writer: ShardWriter, exc: BaseException) -> None:
    """Take away what was written; should that fail too, the first error stays the one that is reported."""
    try:
        writer.abort()
    except (ShardsError, OSError) as also:
        exc.add_note(f"Removing what was written so far failed too: {also}")


def _crew(options: Options, source: ImageSource) -> AbstractContextManager[Crew | None]:
    if options.check == "none":
        return nullcontext()
    return Crew(options.workers, Settings(source.path, options.max_pixels))


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], object]]:
    """Show a bar with rate and remaining time on a terminal, nothing anywhere else."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from tqdm import tqdm  # noqa: PLC0415 - only a terminal needs it

    with tqdm(total=total, unit=" images", file=sys.stderr, dynamic_ncols=True) as bar:
        yield bar.update


def _report(
    options: Options, packer: Packer, manifest: Manifest, rejections: Sequence[Rejection], seconds: float
) -> Report:
    return Report(
        out=options.out,
        name=manifest.name,
        images=packer.images,
        captions=packer.captions,
        **count_kinds(rejections),
        shards=len(manifest.shardlist),
        bytes=manifest.bytes,
        image_bytes=packer.image_bytes,
        seconds=round(seconds, 3),
        images_per_s=round(packer.images / seconds, 1),
        workers=options.workers if options.check == "full" else 0,
        check=options.check,
        digest=manifest.digest,
    )


def _say(exc: BaseException, message: str, status: int) -> int:
    notes = "".join(f"{note}\n" for note in getattr(exc, "__notes__", ()))
    sys.stderr.write(f"pack_coco: {message}\n{notes}")
    return status


def parse(arguments: Sequence[str] | None) -> Options:
    """Read the command line; leaves the program with status 2 where it is wrong."""
    parser = argparse.ArgumentParser(
        prog="pack_coco.py", description="Pack COCO captions and their images into shards.", allow_abbrev=False
    )
    add = parser.add_argument
    add("--images", required=True, help="folder of images, or a zip of them (train2017.zip), read in place")
    add("--captions", required=True, help="COCO captions JSON")
    add("--out", required=True, help="output folder or fsspec URL (s3://bucket/folder)")
    add("--name", type=_name, default="coco", help="shards are called NAME-000000.tar (default: coco)")
    add("--shard-size", type=_size, default=128 * 2**20, help="most bytes of a shard: 128MiB, 1GB (default: 128MiB)")
    add("--workers", type=_positive, default=_cores(), help="checking processes (default: one per usable core)")
    add("--shuffle-seed", type=_seed, help="pack in an order shuffled by this seed (default: by image id)")
    add("--allow-missing", action="store_true", help="list images that are not there, and pack the others")
    add(
        "--on-bad",
        choices=("fail", "skip"),
        default="fail",
        help="bad or uncaptioned images, captions of unknown images: refuse, or list in rejected.jsonl and leave out",
    )
    add("--overwrite", action="store_true", help="replace a former dataset of the same --name")
    add("--check", choices=("full", "none"), default="full", help="none: decode nothing; bad images get packed")
    add("--max-pixels", type=_positive, help="most pixels of an image (default: the decoder's own limit)")
    return Options(**vars(parser.parse_args(arguments)))


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+) ?([A-Za-z]*)", text)
    if match is None or match[2].upper() not in _UNITS or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write bytes, or a unit as in 128MiB, 64MB, 1GiB")
    return int(match[1]) * _UNITS[match[2].upper()]


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= 2**64:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 to 2**64 - 1")
    return int(text)


def _name(text: str) -> str:
    try:
        return check_key(text)
    except NameRuleError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc


def _cores() -> int:
    return len(os.sched_getaffinity(0))


if __name__ == "__main__":
    sys.exit(main())
