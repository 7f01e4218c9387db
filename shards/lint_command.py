"""Check shards as WebDataset data, without reading more of them than their headers.

    python -m shards lint coco-val
    python -m shards lint 's3://bucket/cc12m-{0000..0099}.tar' --decode --json

One line for each finding: severity, code (shards/findings.py has the table), file, byte, member or key, what it means
for readers and what to do; the last line counts. Of one code a file lists a few and counts the others. Shards that a
manifest beside them lists are compared with manifest and index, and are read whole for their checksums; `--decode`
reads all images.

`--json` prints an object: `shards`, `samples`, `bytes` (whole numbers), `errors`, `warnings` (their counts, with those
that are not listed) and `findings`, a list of objects with the keys `code`, `severity` ("error" or "warning"), `url`,
`byte` (null for a whole file), `name` (member or key, "" for none), `words` and `more` (how many of the code the file
has that are not listed).

Keys are compared over all shards that are named; that takes about 130 bytes for each sample. Exit status: 0 no error
was found; 1 there is one, or with `--strict` a warning; 2 wrong usage.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from xxhash import xxh3_64_intdigest

from shards.command_line import in_order, parser_of, write_json
from shards.errors import StoreError, UrlError
from shards.findings import Finding, find
from shards.lint import Decoder, ShardLint, lint_shard
from shards.lint_packed import lint_folder, lint_packed
from shards.programs import say, write
from shards.targets import Target, Targets, find_targets


@dataclass(frozen=True, slots=True)
class Options:
    """The command line, checked."""

    urls: list[str]
    json: bool
    strict: bool
    decode: bool
    storage_options: Mapping[str, object]
    threads: int


class Document(msgspec.Struct, kw_only=True):
    """What `--json` prints."""

    shards: int = 0
    samples: int = 0
    bytes: int = 0
    errors: int = 0
    warnings: int = 0
    findings: list[Finding] = msgspec.field(default_factory=list)


def main(arguments: Sequence[str] | None, *, image_decoder: Callable[[], Decoder]) -> int:
    """Run the command and return its exit status; the decoder is asked for with `--decode` only."""
    options = parse(arguments)
    try:
        targets = find_targets(options.urls, storage_options=options.storage_options)
        decoder = image_decoder() if options.decode else None
        document = Document()
        for finding in _findings(targets, decoder, document, threads=options.threads):
            _count(document, finding)
            if options.json:
                document.findings.append(finding)
            elif not write("lint", finding.line() + "\n"):
                return 1
    except UrlError as exc:
        return say("lint", str(exc), 2)
    except StoreError as exc:
        return say("lint", str(exc), 1)
    whole = write_json("lint", document) if options.json else write("lint", _last(document))
    return int(not whole or document.errors > 0 or (options.strict and document.warnings > 0))


def parse(arguments: Sequence[str] | None) -> Options:
    """Read the command line; leaves the program with status 2 where it is wrong."""
    parser = parser_of("lint", "Say what is wrong with shards, for whom, and where.")
    parser.add_argument("--strict", action="store_true", help="exit with 1 for warnings too")
    parser.add_argument("--decode", action="store_true", help="decode every image in full")
    return Options(**vars(parser.parse_args(arguments)))


@dataclass(slots=True)
class _Keys:
    """The keys of all shards so far, as hashes, and the number of the shard that each is in."""

    urls: list[str] = field(default_factory=list)
    first: dict[int, int] = field(default_factory=dict)

    def add(self, shard: ShardLint) -> None:
        """Add a shard's keys; those that are there already are findings of it."""
        number = len(self.urls)
        self.urls.append(shard.url)
        for key, byte in shard.keys.items():
            before = self.first.setdefault(xxh3_64_intdigest(key.encode(errors="surrogateescape")), number)
            if before != number:
                words = f"{self.urls[before]} has this key too, so two samples have one name; rename or remove one"
                shard.found.add(find("key-in-two-shards", shard.url, words, byte=byte, name=key))


def _findings(targets: Targets, decoder: Decoder | None, document: Document, *, threads: int) -> Iterator[Finding]:
    def check(target: Target) -> ShardLint:
        if target.info is None:
            return lint_shard(target.store, target.name, decoder=decoder)
        return lint_packed(target.store, target.info, decoder=decoder)

    yield from targets.findings
    keys = _Keys()
    for shard in in_order(check, targets.shards, threads=threads):
        keys.add(shard)
        document.shards += 1
        document.samples += shard.samples
        document.bytes += shard.bytes
        yield from shard.found.listed()
    for store, manifest in targets.datasets:
        yield from lint_folder(store, manifest).listed()


def _count(document: Document, finding: Finding) -> None:
    if finding.severity == "error":
        document.errors += 1 + finding.more
    else:
        document.warnings += 1 + finding.more


def _last(document: Document) -> str:
    read = ", ".join(_counted(getattr(document, what), what) for what in ("shards", "samples", "bytes"))
    return f"{read}: {_counted(document.errors, 'errors')}, {_counted(document.warnings, 'warnings')}\n"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what.removesuffix('s') if count == 1 else what}"
