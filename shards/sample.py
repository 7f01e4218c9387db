"""Samples and the rules for their names (WebDataset's naming, narrowed to what every reader accepts)."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from shards.errors import NameRuleError

MAX_KEY_BYTES = 90
_KEY = re.compile(r"[A-Za-z0-9_\-]+")
_SUFFIX = re.compile(r"[a-z0-9]+")
_MAX_SUFFIX_BYTES = 9  # key + "." + suffix fits the 100 bytes of a USTAR name


@dataclass(frozen=True, slots=True)
class Sample:
    """One key with its parts.

    `parts` maps a suffix without its dot ("jpg", "txt", "json") to the bytes of that member, in tar order. The
    memoryviews own their storage: nothing recycles it.
    """

    key: str
    parts: dict[str, memoryview] = field(default_factory=dict)


def split_name(name: str) -> tuple[str, str]:
    """Split a member name into (key, suffix) at the first dot of its last path component, as webdataset does.

    `"a.b/000001.seg.png"` gives `("a.b/000001", "seg.png")`; a name without a dot has the suffix `""`.
    """
    folder, slash, base = name.rpartition("/")
    stem, _, suffix = base.partition(".")
    return folder + slash + stem, suffix


def check_key(key: str) -> str:
    """Return `key` if our shards may hold it.

    Raises:
        NameRuleError: it is empty, longer than 90 bytes, or has a character outside `A-Z a-z 0-9 _ -` (no dots: they
            start the suffix; no folders: some readers keep them, some do not).
    """
    if not _KEY.fullmatch(key):
        raise NameRuleError(key, "a key is made of A-Z a-z 0-9 _ - only and is not empty")
    if len(key) > MAX_KEY_BYTES:
        raise NameRuleError(key, f"a key has at most {MAX_KEY_BYTES} bytes, this one has {len(key)}")
    return key


def check_suffix(suffix: str) -> str:
    """Return `suffix` if our shards may hold it.

    Raises:
        NameRuleError: it is empty, longer than 9 bytes, or has a character outside `a-z 0-9`.
    """
    if not _SUFFIX.fullmatch(suffix) or len(suffix) > _MAX_SUFFIX_BYTES:
        raise NameRuleError(suffix, f"a suffix is made of 1 to {_MAX_SUFFIX_BYTES} characters a-z 0-9")
    return suffix


T = TypeVar("T")


def group(members: Iterable[tuple[str, T]]) -> Iterator[tuple[str, dict[str, T]]]:
    """Group adjacent members of one key.

    Takes (member name, anything) in tar order and gives (key, {suffix: anything}) in that order.

    Raises:
        NameRuleError: one sample holds a suffix twice.
    """
    current: str | None = None
    parts: dict[str, T] = {}
    for name, value in members:
        key, suffix = split_name(name)
        if current is not None and key != current:
            yield current, parts
            parts = {}
        if suffix in parts:
            raise NameRuleError(name, "the sample already has a member of this name")
        current = key
        parts[suffix] = value
    if current is not None:
        yield current, parts
