"""Check one shard as WebDataset data: what its scan, its names, its samples and its images have wrong.

Memory: a shard's keys, and a few numbers for each set of suffixes; never a member's data but an image that is decoded.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from shards.blocks import AHEAD
from shards.findings import Finding, Findings, find
from shards.grouped import SampleSpan, grouped, is_image
from shards.member_names import check_name
from shards.members import Member
from shards.scan import scan
from shards.store import Store
from shards.tar import RECORD

Decoder = Callable[[bytes], None]
"""Decodes an image, or raises what is wrong with it."""
MOST_IMAGE_BYTES = 64 * AHEAD
"""The largest image that is tried; larger ones are no photographs, and would be held whole."""
_EXAMPLES = 10


@dataclass(slots=True)
class ShardLint:
    """What was found in a shard: its findings, how much was read, and the byte where each key begins.

    `faults` counts the errors of the tar itself: with one, readers may not come to all that is there. `read` tells
    whether the store gave all that was asked for.
    """

    url: str
    found: Findings = field(default_factory=Findings)
    members: int = 0
    samples: int = 0
    bytes: int = 0
    faults: int = 0
    read: bool = True
    keys: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Kind:
    """The samples of one set of suffixes: how many, and the first of them (key, byte)."""

    count: int = 0
    first: list[tuple[str, int]] = field(default_factory=list)


def lint_shard(
    store: Store, name: str, *, decoder: Decoder | None = None, seen: Callable[[Member], None] | None = None
) -> ShardLint:
    """Check a shard; `seen` is called with each member that readers come to.

    Nothing that a shard may hold is raised: a file that is not there or cannot be read is a finding.
    """
    shard = ShardLint(store.url_of(name))
    checks = _Checks(store, name, shard, decoder)
    try:
        shard.bytes = store.size(name)
        for sample in grouped(checks.members(seen)):
            checks.sample(sample)
        checks.end()
    except OSError as exc:  # a StoreError, or there is no such file
        shard.faults += 1
        shard.read = False
        shard.found.add(not_read(shard.url, exc))
    return shard


def not_read(url: str, exc: OSError) -> Finding:
    """Return the finding for a file that a store did not give."""
    if isinstance(exc, FileNotFoundError):
        return find("missing-file", url, "there is no such file; check the name, or fetch or pack it again")
    return find("unreadable", url, str(exc))


class _Checks:
    def __init__(self, store: Store, name: str, shard: ShardLint, decoder: Decoder | None) -> None:
        self._store, self._name, self._shard, self._decoder = store, name, shard, decoder
        self._unreached: list[Member] = []
        self._lost = 0
        self._kinds: dict[frozenset[str], _Kind] = {}
        self._kind_of: dict[str, frozenset[str]] = {}
        self._sets: dict[frozenset[str], frozenset[str]] = {}  # so that a million samples share one set

    def _add(self, code: str, words: str, byte: int, name: str | bytes = "") -> None:
        self._shard.found.add(find(code, self._shard.url, words, byte=byte, name=name))

    def members(self, seen: Callable[[Member], None] | None) -> Iterator[Member]:
        """Yield the members that readers come to, with all others counted and all names checked."""
        for item in scan(self._store, self._name):
            if isinstance(item, Finding):
                self._shard.found.add(item)
                self._shard.faults += item.severity == "error"
            elif not item.reached:
                self._unreached = self._unreached or [item]
                self._lost += 1
            else:
                self._shard.members += 1
                for code, words in check_name(item):
                    self._add(code, words, item.header, item.raw)
                if seen is not None:
                    seen(item)
                yield item

    def sample(self, sample: SampleSpan) -> None:
        """Check a sample that is complete."""
        self._shard.samples += 1
        for member in sample.again:
            words = "the sample already has a part of this suffix, and webdataset fails here; rename or remove one"
            self._add("duplicate-part", words, member.header, member.raw)
        for suffix, member in sample.parts.items():
            self._part(suffix, member)
        self._key(sample)

    def _key(self, sample: SampleSpan) -> None:
        suffixes = frozenset(sample.parts)
        kind = self._kinds.setdefault(suffixes, _Kind())
        before = self._kind_of.get(sample.key)
        if before is not None:
            first = f"the key was there before, at byte {self._shard.keys[sample.key]}"
            if before & suffixes:
                words = f"{first}, so two samples have one name and resuming or looking one up by key fails; rename one"
                self._add("duplicate-key", words, sample.byte, sample.key)
            else:
                words = f"{first}, with other members between, so readers give two halves; tar the files sorted by name"
                self._add("split-sample", words, sample.byte, sample.key)
        self._shard.keys.setdefault(sample.key, sample.byte)
        self._kind_of[sample.key] = before | suffixes if before else self._sets.setdefault(suffixes, suffixes)
        kind.count += 1
        if len(kind.first) < _EXAMPLES:
            kind.first.append((sample.key, sample.byte))

    def _part(self, suffix: str, member: Member) -> None:
        if member.size == 0:
            code = "empty-image" if is_image(suffix) else "empty-part"
            words = "an image of 0 bytes, which no decoder takes; fetch it again or leave the sample out"
            self._add(
                code, words if code == "empty-image" else "it has 0 bytes; is that meant?", member.header, member.raw
            )
        elif self._decoder is not None and is_image(suffix) and member.kind != "S":
            self._decode(self._decoder, member)

    def _decode(self, decoder: Decoder, member: Member) -> None:
        if member.size > MOST_IMAGE_BYTES:
            words = f"{member.size} bytes are more than the {MOST_IMAGE_BYTES} that are tried; look at it yourself"
            self._add("not-decoded", words, member.header, member.raw)
            return
        data = self._store.read(self._name, start=member.offset, end=member.offset + member.size)
        try:
            decoder(data)
        except Exception as exc:  # noqa: BLE001 - whatever a decoder says is the finding
            self._add("bad-image", str(exc), member.header, member.raw)

    def end(self) -> None:
        """Say what only the whole shard shows."""
        for member in self._unreached:
            which = f"the {self._lost} members from here on" if self._lost > 1 else "this member"
            words = f"readers never come to {which}, since they stop at a fault before; repair that first"
            self._add("unreached-members", words, member.start, member.raw)
        self._halves()
        if self._shard.samples or self._shard.faults:
            return
        if self._shard.members:
            self._add("no-samples", "webdataset makes no sample of any member here; call them KEY.SUFFIX", 0)
        elif self._shard.bytes > RECORD:
            self._add("only-zeros", "it has zero bytes only, as a failed download leaves them; fetch it again", 0)
        else:
            self._add("no-members", "a sound tar without a member gives no sample; leave it out", 0)

    def _halves(self) -> None:
        total = self._shard.samples
        counts: dict[str, int] = {}
        for suffixes, kind in self._kinds.items():
            for suffix in suffixes:
                counts[suffix] = counts.get(suffix, 0) + kind.count
        usual = {suffix for suffix, count in counts.items() if 2 * count > total}
        for suffixes, kind in self._kinds.items():
            lacking = ", ".join(
                f"{suffix} ({counts[suffix]} of {total} samples have it)" for suffix in sorted(usual - suffixes)
            )
            if not lacking:
                continue
            for key, byte in kind.first:
                words = f"it lacks {lacking}, and training code that asks for it fails; add it or leave the sample out"
                self._add("half-sample", words, byte, key)
            self._shard.found.count("half-sample", kind.count - len(kind.first))
