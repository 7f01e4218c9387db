"""What shards hold: members, samples, fields, sizes, and the first samples.

Memory: 8 bytes for each part, so that medians are exact; texts of the first samples only.
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from statistics import median_low

import msgspec

from shards.findings import Finding, shown
from shards.grouped import SampleSpan, grouped, is_image
from shards.members import Member
from shards.scan import scan
from shards.store import Store

_TEXT = 80
_FEW = 20


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of one suffix: how many, and their sizes in bytes."""

    count: int
    min: int
    median: int
    max: int
    total: int


class PartShown(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a sample: its suffix, its size in bytes, and where it is text its beginning in printable characters."""

    suffix: str
    size: int
    text: str | None


class SampleShown(msgspec.Struct, frozen=True, kw_only=True):
    """A sample: its key in printable characters, and its parts."""

    key: str
    parts: list[PartShown]


class Overview(msgspec.Struct, kw_only=True):
    """What a shard holds for readers, or all of `shards`.

    `bytes` is the size of the file; `fields` counts the samples of each set of suffixes (`jpg,json,txt`); `sizes` is by
    suffix; `faults` are the errors of the scan, as lines. Members that readers never come to are not counted.
    """

    url: str
    shards: int
    bytes: int
    members: int
    samples: int
    fields: dict[str, int]
    sizes: dict[str, Sizes]
    first: list[SampleShown]
    faults: list[str]


class Tally:
    """Counts that add up over shards."""

    def __init__(self) -> None:
        self.shards = self.bytes = self.members = self.samples = 0
        self.fields: Counter[str] = Counter()
        self.sizes: dict[str, array[int]] = {}

    def add_sample(self, sample: SampleSpan) -> None:
        """Count a sample and its parts."""
        self.samples += 1
        self.fields[",".join(sorted(sample.parts))] += 1
        for suffix, member in sample.parts.items():
            self.sizes.setdefault(suffix, array("Q")).append(member.size)

    def add(self, other: "Tally") -> None:
        """Count all that another has counted."""
        self.shards += other.shards
        self.bytes += other.bytes
        self.members += other.members
        self.samples += other.samples
        self.fields += other.fields
        for suffix, sizes in other.sizes.items():
            self.sizes.setdefault(suffix, array("Q")).extend(sizes)

    def overview(self, url: str, *, first: Sequence[SampleShown] = (), faults: Sequence[str] = ()) -> Overview:
        """Return what was counted, the most frequent sets of suffixes first."""
        return Overview(
            url=url,
            shards=self.shards,
            bytes=self.bytes,
            members=self.members,
            samples=self.samples,
            fields={shown(fields, most=1000): count for fields, count in self.fields.most_common()},
            sizes={shown(suffix): _sizes(sizes) for suffix, sizes in sorted(self.sizes.items())},
            first=list(first),
            faults=list(faults),
        )


def look(store: Store, name: str, *, samples: int) -> tuple[Tally, Overview]:
    """Look at a shard: its counts, and its overview with the first samples.

    Raises:
        FileNotFoundError, StoreError: there is no such file, or the store cannot read it.
    """
    tally = Tally()
    faults: list[str] = []
    first: list[SampleShown] = []
    tally.shards, tally.bytes = 1, store.size(name)

    def members() -> Iterator[Member]:
        for item in scan(store, name):
            if not isinstance(item, Finding):
                tally.members += item.reached
                if item.reached:
                    yield item
            elif item.severity == "error" and len(faults) < _FEW:
                faults.append(item.line())

    for sample in grouped(members()):
        tally.add_sample(sample)
        if len(first) < samples:
            first.append(_shown(store, name, sample))
    return tally, tally.overview(store.url_of(name), first=first, faults=faults)


def lines(overview: Overview) -> Iterator[str]:
    """Yield the overview as lines of text."""
    yield f"{overview.url}"
    shards = f"{overview.shards:,} shards, " if overview.shards != 1 else ""
    yield f"  {shards}{overview.members:,} members, {overview.samples:,} samples, {overview.bytes:,} bytes"
    yield from _few([f"  fields {name}: {count:,}" for name, count in overview.fields.items()], "sets of suffixes")
    sizes = [
        f"  {name}: {found.count:,} of {found.min:,} to {found.max:,} bytes, median {found.median:,}"
        for name, found in overview.sizes.items()
    ]
    yield from _few(sizes, "suffixes")
    for sample in overview.first:
        yield f"  sample {sample.key}"
        for part in sample.parts:
            yield f"    {part.suffix}: {part.size:,} bytes" + ("" if part.text is None else f" {part.text}")
    yield from (f"  {fault}" for fault in overview.faults)


def _few(told: Sequence[str], what: str) -> Iterator[str]:
    yield from told[:_FEW]
    if len(told) > _FEW:
        yield f"  and {len(told) - _FEW:,} more {what}"


def _sizes(sizes: "array[int]") -> Sizes:
    return Sizes(count=len(sizes), min=min(sizes), median=median_low(sizes), max=max(sizes), total=sum(sizes))


def _shown(store: Store, name: str, sample: SampleSpan) -> SampleShown:
    parts = [
        PartShown(suffix=shown(suffix), size=member.size, text=_text(store, name, suffix, member))
        for suffix, member in islice(sample.parts.items(), _FEW)
    ]
    return SampleShown(key=shown(sample.key), parts=parts)


def _text(store: Store, name: str, suffix: str, member: Member) -> str | None:
    """The beginning of a part in printable characters; None where it is not text."""
    if is_image(suffix):
        return None
    end = member.offset + min(member.size, 4 * (_TEXT + 1))
    data = store.read(name, start=member.offset, end=end)
    try:
        text = data.decode()
    except UnicodeDecodeError as exc:
        if exc.start < len(data) - 3 or len(data) == member.size:
            return None
        text = data[: exc.start].decode()  # a character was cut
    return None if "\0" in text else shown(text, most=_TEXT)
