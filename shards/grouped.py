"""Members into samples, as webdataset groups them: adjacent files of one key, suffixes in lower case. Pure."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from shards.members import Member

_SPLIT = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
"""webdataset's own rule (`webdataset.tariterators.base_plus_ext`)."""
_META = re.compile(r"__[^/]*__($|/)")
"""Names that webdataset skips (`tar_file_iterator`)."""
_LONG = 1024
"""Characters from which on the rule, whose time grows with their square, is not asked."""
IMAGES = frozenset(
    ("jpg", "jpeg", "png", "webp", "gif", "tif", "tiff", "bmp", "ppm", "pgm", "pbm", "pnm", "avif", "jp2")
)
"""Suffixes of images; of `a.seg.png` it is the last piece."""


@dataclass(slots=True)
class SampleSpan:
    """The members of one sample: `parts` by suffix, and those whose suffix the sample already had."""

    key: str
    parts: dict[str, Member] = field(default_factory=dict)
    again: list[Member] = field(default_factory=list)

    @property
    def byte(self) -> int:
        """The byte of the shard where the first member begins."""
        return next(iter(self.parts.values())).start


def text_of(member: Member) -> str:
    """Return a member's name as tarfile gives it: bytes that are no UTF-8 become surrogates."""
    return member.raw.decode(errors="surrogateescape")


def is_meta(name: str) -> bool:
    """Tell whether webdataset takes a name for metadata and skips it."""
    return _META.match(name) is not None


def key_and_suffix(name: str) -> tuple[str, str] | None:
    """Split a member's name into (key, suffix in lower case), or None where webdataset skips it."""
    if len(name) <= _LONG:
        match = _SPLIT.match(name)
        return (match[1], match[2].lower()) if match else None
    folder, slash, last = name.rpartition("/")
    stem, dot, suffix = last.partition(".")
    return (folder + slash + stem, suffix.lower()) if stem and dot else None


def is_image(suffix: str) -> bool:
    """Tell whether a suffix is that of an image."""
    return suffix.rpartition(".")[2] in IMAGES


def grouped(members: Iterable[Member]) -> Iterator[SampleSpan]:
    """Yield the samples of a shard's members."""
    sample: SampleSpan | None = None
    for member in members:
        name = text_of(member)
        split = None if not member.regular or is_meta(name) else key_and_suffix(name)
        if split is None:
            continue
        key, suffix = split
        if sample is None or sample.key != key:
            if sample is not None:
                yield sample
            sample = SampleSpan(key)
        if suffix in sample.parts:
            sample.again.append(member)
        else:
            sample.parts[suffix] = member
    if sample is not None:
        yield sample
