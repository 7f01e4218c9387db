"""Ask a packed dataset who gets which rows of an epoch, who saw a key, and how well each shuffle mixes.

    python -m stream order MANIFEST --step 12 --ranks 4 --batch-size 64
    python -m stream order MANIFEST --key 000000391895 --ranks 4 --batch-size 64 --state checkpoint/stream_train.json
    python -m stream order MANIFEST --quality

The order comes from the manifest, keys come from the indexes, no shard is read. --step reads one index for each shard
that the step touches, --key about log2(shards) of them, and all of them where keys do not rise or nobody has the key.
--step with --rows, --row and --quality read none. Exit status: 0 answered; 1 there is no answer, standard error says
why; 2 wrong usage.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import get_args

import numpy as np

from shards.errors import NameRuleError, ShardsError
from shards.manifest import INDEX
from shards.programs import say, write
from shards.sample import check_key
from stream.options import CaptionPolicy
from stream.order import Order
from stream.order_asked import Asked, CommandError, Options
from stream.order_report import SAMPLED, Dealing, Sighting, find_keys, labels_of, measure, memory_bytes, quality_table

_WINDOWS = (1, 2, 4, 8, 16)
"""The window_shards that are compared unless others are asked for."""
_MOST_RANKS, _MOST_ROWS = 1 << 20, 10_000_000
_NOT_WITH_QUALITY = ("ranks", "batch_size", "split_batches", "drop_last", "uneven_batches", "rows", "shuffle")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = parse(arguments)
    try:
        lines = "".join(f"{line}\n" for line in _answer(Asked(options)))
    except CommandError as exc:
        return _say(exc.message, exc.status)
    except FileNotFoundError as exc:
        hint = "give a packed dataset's folder or its manifest"
        hint = "--step with --rows, and --row, need no index" if str(exc.filename).endswith(INDEX) else hint
        return _say(f"there is no file {exc.filename}; {hint}", 1)
    except (ShardsError, OSError) as exc:
        return _say(str(exc), 1)
    return 0 if write("order", lines) else 1


def _answer(asked: Asked) -> Iterator[str]:
    if asked.options.quality:
        return answer_quality(asked)
    return answer_rows(asked) if asked.options.step is None else answer_step(asked, asked.options.step)


def answer_step(asked: Asked, step: int) -> Iterator[str]:
    """Yield a line for each rank: what it gets at the step.

    Raises:
        CommandError, ShardsError, OSError: there is no such step, or an index cannot be read.
    """
    (order, dealing), options = asked.dealt(), asked.options
    if step >= dealing.rest.steps:
        begin = f" behind the state's position {asked.start}" if options.state else ""
        told = f"epoch {asked.chosen.epoch} has {dealing.rest.steps} steps of {dealing.global_batch} rows{begin}"
        raise CommandError(f"--step {step}: {told}; give one of them, counted from 0")
    told_rows = min(dealing.global_batch, max(len(order), dealing.ranks))
    if told_rows > _MOST_ROWS:
        raise CommandError(f"a step of {told_rows} rows is too long to be told; at most {_MOST_ROWS} rows are")
    portions = dealing.portions(step)
    rows = order.rows_at(np.concatenate([portion.positions for portion in portions]))
    if options.rows:
        labels = iter([f"#{row}" for row in rows.tolist()])
        _say("global row numbers, not keys; leave --rows out to have the keys read from the indexes", 0)
    else:
        labels = iter(labels_of(rows, asked.shard_rows, asked.read, each_caption=asked.each))
    for rank, (positions, real) in enumerate(portions):
        yield " ".join([f"rank {rank}:", *(next(labels) + "*" * (place >= real) for place in range(len(positions)))])
    if any(portion.real < len(portion.positions) for portion in portions):
        _say("* marks padding: the epoch's first rows, which fill up its last step", 0)


def answer_rows(asked: Asked) -> Iterator[str]:
    """Yield a line for each time that a rank gets one of the rows, or a row of one of the keys.

    Raises:
        CommandError, ShardsError, OSError: there is no such row or key, or an index cannot be read.
    """
    (order, dealing), options = asked.dealt(), asked.options
    _tell_of_batch(asked, dealing)
    for row in options.row:
        if row >= len(order):
            raise CommandError(f"--row {row}: an epoch has {len(order)} rows here; give one of them, counted from 0")
        yield from _times(f"#{row}", row, asked, order, dealing)
    samples = [info.nsamples for info in asked.reader.manifest.shardlist]

    def scanning(keys: Sequence[str]) -> None:
        _say(f"{', '.join(keys)}: not where rising keys would be; reading the indexes of all {len(samples)} shards", 0)

    found = find_keys(options.key, samples, asked.read, scanning)
    for key in options.key:
        if key not in found:
            raise CommandError(f"--key {key}: no index of {asked.reader.url} has it; give a key of this dataset")
        labels = found[key].rows(asked.shard_rows, each_caption=asked.each)
        if not labels:
            yield f"{key}: has no captions, so it is no row with captions each"
        for label, row in labels.items():
            yield from _times(label, row, asked, order, dealing)


def _times(label: str, row: int, asked: Asked, order: Order, dealing: Dealing) -> Iterator[str]:
    if row >= len(order):
        yield f"{label}: left out by --limit {asked.options.limit}"
        return
    position = order.position(row)
    head = f"{label}: epoch {asked.chosen.epoch}, position {position}"
    found = dealing.sightings(position)
    if not found:
        yield f"{head}: left out by --drop-last, which ends the epoch with a whole step"
    for sighting in found:
        yield f"{head}, {_when(sighting, has_state=asked.options.state is not None)}"


def _when(sighting: Sighting, *, has_state: bool) -> str:
    since = " from the state" if has_state and not sighting.seen else ""
    padding = " as padding" if sighting.padding else ""
    told = f"step {sighting.step}{since}, rank {sighting.rank}{padding}"
    return f"{told}: {'was seen' if sighting.seen else 'still to come'}" if has_state else told


def _tell_of_batch(asked: Asked, dealing: Dealing) -> None:
    if asked.start % dealing.global_batch:
        told = f"the state's position {asked.start} is no whole number of steps of {dealing.global_batch} rows"
        _say(f"{told}; another batch was used before it, so step and rank of what was seen are as if with this one", 0)


def answer_quality(asked: Asked) -> Iterator[str]:
    """Yield the lines of a Markdown table that compares the shuffles."""
    windows = asked.options.window_shards or _WINDOWS
    sizes = [info.filesize for info in asked.reader.manifest.shardlist]
    kinds: list[tuple[str, int | None]] = [("none", None), *(("window", count) for count in windows), ("full", None)]
    yield from quality_table(
        (shuffle, count, measure(asked.order(shuffle, count or 1)), memory_bytes(sizes, count or 0))
        for shuffle, count in kinds
    )
    rows = sum(asked.shard_rows)
    measured = f"{SAMPLED} evenly spread ones of {rows} positions" if rows > SAMPLED else f"all {rows} positions"
    yield ""
    yield f"Measured at {measured}, seed {asked.chosen.seed}, epoch {asked.chosen.epoch}."


def parse(arguments: Sequence[str] | None) -> Options:
    """Read the command line; leaves the program with status 2 where it is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m stream order",
        description="Tell who gets which rows of an epoch, who sees a key, and how well each shuffle mixes.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("manifest", metavar="MANIFEST", help="a packed dataset: its folder or manifest, a path or an fsspec URL")
    add("--step", type=_whole, help="print what each rank gets at this step, counted from 0, or from --state")
    add("--key", type=_key, action="append", default=[], help="print who sees this key and when; may be repeated")
    add("--row", type=_whole, action="append", default=[], help="as --key for a global row number; reads no index")
    add("--quality", action="store_true", help="measure how well each shuffle mixes, as a Markdown table")
    add("--rows", action="store_true", help="with --step: print global row numbers; reads no index")
    add("--ranks", type=_ranks, help="number of ranks")
    add("--batch-size", type=_positive, help="rows of a step for one rank; with --split-batches for all ranks")
    add("--split-batches", action="store_true", help="--batch-size counts a whole step")
    add("--drop-last", action="store_true", help="the rows that do not fill a step are left out")
    add("--uneven-batches", action="store_true", help="the last step is not padded (accelerate's even_batches=False)")
    add("--shuffle", choices=("none", "window", "full"), help="default: window")
    add("--seed", type=_seed, help="of the order (default: 0)")
    add("--epoch", type=_seed, help="counted from 0 (default: 0)")
    add("--window-shards", type=_counts, help="shards of a window (default: 4); with --quality several: 2,8,32")
    add("--captions", choices=get_args(CaptionPolicy), help="each: every caption is a row (default: first)")
    add("--limit", type=_positive, help="the loader's limit: only the first rows in storage order")
    add("--state", help="JSON of loader.state_dict(), or accelerate's stream_<name>.json: order, epoch and position")
    options = Options(**vars(parser.parse_args(arguments)))
    _check(options, parser.error)
    return options


def _check(options: Options, refuse: Callable[[str], object]) -> None:
    asked = (options.step is not None) + bool(options.key or options.row) + options.quality
    if asked != 1:
        refuse("ask one thing: --step, or --key and --row, or --quality")
    if options.quality:
        unused = [f"--{name.replace('_', '-')}" for name in _NOT_WITH_QUALITY if getattr(options, name)]
        if unused:
            refuse(f"--quality compares all shuffles, whoever gets the rows; leave {', '.join(unused)} out")
        return
    if options.ranks is None or options.batch_size is None:
        refuse("who gets a row depends on --ranks and --batch-size; give both")
    if options.rows and options.step is None:
        refuse("--rows is for --step; ask for row numbers with --row")
    if len(options.window_shards or ()) > 1:
        refuse("an order has one --window-shards; several are for --quality")


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)


def _positive(text: str) -> int:
    if _whole(text) == 0:
        raise argparse.ArgumentTypeError("0 is too few; give 1 or more")
    return int(text)


def _ranks(text: str) -> int:
    if _positive(text) > _MOST_RANKS:
        raise argparse.ArgumentTypeError(f"{text} is too many; give {_MOST_RANKS} or fewer")
    return int(text)


def _seed(text: str) -> int:
    if _whole(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"{text} is no whole number from 0 to 2**63 - 1")
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_positive(part) for part in text.split(","))


def _key(text: str) -> str:
    try:
        return check_key(text)
    except NameRuleError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc


def _say(message: str, status: int) -> int:
    return say("order", message, status)
