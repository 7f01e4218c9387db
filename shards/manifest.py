"""The manifest: one JSON file that lists the shards of a dataset. Pure; it is also a valid wids index.

Reference: FORMAT.md ("Manifest") and webdataset's wids shard index, version 1.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import Annotated, Final, Literal

import msgspec
from xxhash import xxh3_128_hexdigest

from shards.errors import UPDATE_HINT, ManifestError, NameRuleError
from shards.sample import check_key

FILE_NAME = "manifest.json"
VERSION = 1
WIDS_KIND: Final = "wids-shard-index-v1"
INDEX = ".index"
"""What the name of a shard's index adds to the name of the shard."""
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]


class ShardInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One shard as the manifest lists it.

    `url` and `index_url` are names of files beside the manifest. Sizes are in bytes, digests are lower-case hex of the
    whole file, `captions` counts the captions of all samples.
    """

    url: str
    nsamples: _Count
    filesize: _Count
    captions: _Count
    xxh3_128: _Digest
    index_url: str
    index_filesize: _Count
    index_xxh3_128: _Digest


class _File(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest file as it is written; the first two fields are what wids asks for."""

    kind: Literal["wids-shard-index-v1"] = msgspec.field(name="__kind__", default=WIDS_KIND)
    wids_version: Literal[1] = 1
    shardstream_version: int
    name: str
    nsamples: _Count
    captions: _Count
    shardlist: tuple[ShardInfo, ...]


class _Version(msgspec.Struct, frozen=True):
    """What a manifest of any version holds."""

    shardstream_version: int


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
            ManifestError: it is no JSON, lacks a field, is of a newer version, its counts do not add up, or it names
                files that are not those of its dataset.
        """
        try:
            file = msgspec.json.decode(data, type=_File)
        except (msgspec.DecodeError, RecursionError) as exc:
            _refuse_newer(data, url)
            raise ManifestError(url, f"it cannot be read ({exc})") from exc
        if not 1 <= file.shardstream_version <= VERSION:
            _refuse_newer(data, url)
            raise ManifestError(url, f"there is no format version {file.shardstream_version}")
        _check_names(file, url)
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
        return shard_no, row - self.first_row(shard_no)

    def first_row(self, shard_no: int) -> int:
        """Return the global row of a shard's first sample."""
        return self._ends[shard_no - 1] if shard_no else 0

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


def _refuse_newer(data: bytes, url: str) -> None:
    """Raise if a manifest is of a newer version, whose fields may mean other things; also if it cannot be read."""
    try:
        version = msgspec.json.decode(data, type=_Version).shardstream_version
    except msgspec.ValidationError as exc:
        problem = f"it is no manifest of packed shards ({exc})"
        raise ManifestError(url, problem, "give the folder that the packer wrote") from exc
    except (msgspec.DecodeError, RecursionError) as exc:
        raise ManifestError(url, f"it cannot be read ({exc})") from exc
    if version > VERSION:
        problem = f"format version {version} is newer than {VERSION}, the newest this reader knows"
        raise ManifestError(url, problem, UPDATE_HINT)


def _check_names(file: _File, url: str) -> None:
    """Refuse names that are not those of this dataset's shards; so none leads outside the manifest's folder."""
    try:
        check_key(file.name)
    except NameRuleError as exc:
        raise ManifestError(url, f"its {exc}") from exc
    is_shard = re.compile(rf"{file.name}-[0-9]{{6,}}\.tar").fullmatch
    for info in file.shardlist:
        if not is_shard(info.url) or info.index_url != info.url + INDEX:
            problem = f"it lists {info.url!r} with {info.index_url!r}, which are no shard and index of {file.name!r}"
            raise ManifestError(url, problem)
    if len({info.url for info in file.shardlist}) != len(file.shardlist):
        raise ManifestError(url, "it lists a shard twice")
