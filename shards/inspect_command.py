"""Look at shards: what they hold, and their first samples.

    python -m shards inspect coco-val
    python -m shards inspect 's3://bucket/cc12m-{0000..0099}.tar' --samples 1 --json

For each shard, and for all of them where there are several: members, samples and bytes; how often which set of suffixes
occurs; number, smallest, largest and median size of the parts of each suffix; the first samples, text up to 80
characters. What webdataset makes of the tars is told: members that it never comes to do not count, faults are named.

`--json` prints an object: `shards` is a list with an object for each, `total` one for all. Their keys: `url`, `shards`,
`bytes`, `members`, `samples`; `fields` (set of suffixes to number of samples); `sizes` (suffix to `count`, `min`,
`median`, `max`, `total`); `first` (samples with `key` and `parts`: `suffix`, `size`, `text`, which is null where a part
is not text); `faults` (lines). Exit status: 0; 1 where a file cannot be read; 2 wrong usage.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from shards.command_line import in_order, parser_of, whole, write_json
from shards.errors import StoreError, UrlError
from shards.lint import not_read
from shards.overview import Overview, Tally, lines, look
from shards.programs import say, write
from shards.targets import Target, Targets, find_targets


@dataclass(frozen=True, slots=True)
class Options:
    """The command line, checked."""

    urls: list[str]
    json: bool
    samples: int
    storage_options: Mapping[str, object]
    threads: int


class Document(msgspec.Struct, kw_only=True):
    """What `--json` prints."""

    shards: list[Overview]
    total: Overview


def main(arguments: Sequence[str] | None) -> int:
    """Run the command and return its exit status."""
    options = parse(arguments)
    try:
        targets = find_targets(options.urls, storage_options=options.storage_options)
    except UrlError as exc:
        return say("inspect", str(exc), 2)
    except StoreError as exc:
        return say("inspect", str(exc), 1)
    total, read, written = Tally(), Document(shards=[], total=Tally().overview("total")), True
    for overview in _looked(targets, options, total):
        if options.json:
            read.shards.append(overview)
        else:
            written = written and write("inspect", "".join(f"{line}\n" for line in lines(overview)))
    read.total = total.overview("total")
    if options.json:
        written = write_json("inspect", read)
    elif total.shards > 1:
        written = written and write("inspect", "".join(f"{line}\n" for line in lines(read.total)))
    failed = bool(targets.findings) or total.shards < len(targets.shards)
    for finding in targets.findings:
        say("inspect", finding.line(), 1)
    return int(failed or not written)


def parse(arguments: Sequence[str] | None) -> Options:
    """Read the command line; leaves the program with status 2 where it is wrong."""
    parser = parser_of("inspect", "Tell what shards hold, and show their first samples.")
    parser.add_argument("--samples", type=whole, default=3, help="samples of each shard that are shown (default: 3)")
    return Options(**vars(parser.parse_args(arguments)))


def _looked(targets: Targets, options: Options, total: Tally) -> Iterator[Overview]:
    """Yield the overview of each shard that can be read and add it to the total; say why of the others."""

    def act(target: Target) -> tuple[Tally, Overview] | OSError:
        try:
            return look(target.store, target.name, samples=options.samples)
        except OSError as exc:  # a StoreError, or there is no such file
            return exc

    for target, looked in zip(targets.shards, in_order(act, targets.shards, threads=options.threads), strict=True):
        if isinstance(looked, OSError):
            say("inspect", not_read(target.url, looked).line(), 1)
            continue
        tally, overview = looked
        total.add(tally)
        yield overview
