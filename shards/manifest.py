"""The manifest: one JSON file that lists the shards of a dataset. Pure; it is also a valid wids index.

Reference: FORMAT.md ("Manifest") and webdataset's wids shard index, version 1.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

import msgspec
from xxhash import xxh3_128_hexdigest

from shards.errors import ManifestError

FILE_NAME = "manifest.json"
VERSION = 1
WIDS_KIND = "wids-shard-index-v1"


class ShardInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """One shard as the manifest lists it.

    `url` and `index_url` are relative to the manifest. Sizes are in bytes, digests are lower-case hex of the whole
    file, `captions` counts the captions of all samples.
    """

    url: str
    nsamples: int
    filesize: int
    captions: int
    xxh3_128: str
    index_url: str
    index_filesize: int
    index_xxh3_128: str


class _File(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest file as it is written; the first two fields are what wids asks for."""

    kind: str = msgspec.field(name="__kind__", default=WIDS_KIND)
    wids_version: int = 1
    shardstream_version: int
    name: str
    nsamples: int
    captions: int
    shardlist: tuple[ShardInfo, ...]


class Manifest:
    """The shards of one dataset, in storage order. Immutable.

    Raises:
        ManifestError: from `from_bytes`, where the file cannot be trusted.
    """

    def __init__(self, name: str, shardlist: Sequence[ShardInfo]) -> None:
        self.name = name
        self.shardlist = tuple(shardlist)

    @classmethod
    def from_bytes(cls, data: bytes, *, url: str) -> "Manifest":
        """Read the bytes of a manifest file; `url` is for messages.

        Raises:
            ManifestError: it is no JSON, lacks a field, is of a newer version, or its counts do not add up.
        """
        try:
            file = msgspec.json.decode(data, type=_File)
        except msgspec.DecodeError as exc:
            raise ManifestError(url, f"it cannot be read ({exc})") from exc
        if file.shardstream_version > VERSION:
            raise ManifestError(url, f"format version {file.shardstream_version} is newer than {VERSION}")
        manifest = cls(file.name, file.shardlist)
        for what, said, found in (
            ("samples", file.nsamples, manifest.samples),
            ("captions", file.captions, manifest.captions),
        ):
            if said != found:
                raise ManifestError(url, f"it counts {said} {what}, its shards hold {found}")
        return manifest

    def to_bytes(self) -> bytes:
        """Return the bytes of the manifest file: indented JSON with fixed field order."""
        file = _File(
            shardstream_version=VERSION,
            name=self.name,
            nsamples=self.samples,
            captions=self.captions,
            shardlist=self.shardlist,
        )
        return msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n"

    @cached_property
    def samples(self) -> int:
        """The number of samples of all shards."""
        return sum(info.nsamples for info in self.shardlist)

    @cached_property
    def captions(self) -> int:
        """The number of captions of all shards."""
        return sum(info.captions for info in self.shardlist)

    @cached_property
    def bytes(self) -> int:
        """The size of all shards, in bytes."""
        return sum(info.filesize for info in self.shardlist)

    @cached_property
    def digest(self) -> str:
        """Identifies the data: xxh3_128 (hex) of sizes, counts and digests of the shards, whatever they are named."""
        lines = [f"{i.nsamples} {i.captions} {i.filesize} {i.xxh3_128} {i.index_xxh3_128}" for i in self.shardlist]
        return str(xxh3_128_hexdigest("\n".join(lines).encode()))

    def locate(self, row: int) -> tuple[int, int]:
        """Return (shard number, row in that shard) of a global row.

        Raises:
            IndexError: there is no such row.
        """
        if not 0 <= row < self.samples:
            raise IndexError(f"dataset {self.name} has {self.samples} rows, not one numbered {row}")
        shard_no = bisect_right(self._ends, row)
        return shard_no, row - (self._ends[shard_no - 1] if shard_no else 0)

    def locate_caption(self, number: int) -> tuple[int, int]:
        """Return (shard number, number of the caption in that shard) of a global caption number.

        Raises:
            IndexError: there is no such caption.
        """
        if not 0 <= number < self.captions:
            raise IndexError(f"dataset {self.name} has {self.captions} captions, not one numbered {number}")
        shard_no = bisect_right(self._caption_ends, number)
        return shard_no, number - (self._caption_ends[shard_no - 1] if shard_no else 0)

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(info.nsamples for info in self.shardlist))

    @cached_property
    def _caption_ends(self) -> list[int]:
        return list(accumulate(info.captions for info in self.shardlist))
