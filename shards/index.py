"""The index of one shard: keys, parts and metadata columns as flat arrays, read and written without I/O.

The layout is in FORMAT.md ("Index"). Opening checks the checksum and the header, then casts: no object is made per
row, so an index of a million rows opens as fast as it is read.
"""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Annotated, Literal

import msgspec
from xxhash import xxh3_64_intdigest

from shards.errors import UPDATE_HINT, IndexFormatError

MAGIC = b"SHARDIDX"
VERSION = 1
_FIXED = 16  # magic, version, header length
_TAIL = 8  # checksum
_CODES: Mapping[str, Literal["B", "I", "Q"]] = {"u8": "B", "u32": "I", "u64": "Q"}
COLUMNS = ("width", "height", "license")
"""Metadata columns with one number per row (u32)."""
_U32 = 2**32
_ABSENT = (0, 0, 0)  # the span of a part that a row does not have
_Count = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class RowInfo:
    """The metadata of one row that later filters and caption rows are planned from.

    `width` and `height` are in pixels, `license` is the id from the annotations (0: none), `caption_bytes` holds the
    length of each caption in UTF-8 bytes.

    Raises:
        ValueError: a number is negative or needs more than 32 bits.
    """

    width: int = 0
    height: int = 0
    license: int = 0
    caption_bytes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        numbers = (self.width, self.height, self.license, *self.caption_bytes)
        if min(numbers) < 0 or max(numbers) >= _U32:
            for number in numbers:
                if 0 <= number < _U32:
                    continue
                raise ValueError(f"{self} holds {number}; the index keeps numbers from 0 to {_U32 - 1}")


class Column(msgspec.Struct, frozen=True):
    """Where a column lies: `count` values of `type` (u8, u32, u64) at byte `offset` of the column area."""

    name: str
    type: str
    offset: _Count
    count: _Count


class Header(msgspec.Struct, frozen=True):
    """The JSON header of an index file."""

    shard: str
    shard_bytes: _Count
    shard_xxh3_128: str
    rows: _Count
    suffixes: tuple[str, ...]
    columns: tuple[Column, ...]


class IndexBuilder:
    """Collects the rows of one shard and gives the bytes of its index file."""

    def __init__(self) -> None:
        self._rows: list[tuple[bytes, Mapping[str, tuple[int, int, int]], RowInfo]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, key: str, parts: Mapping[str, tuple[int, int, int]], info: RowInfo) -> None:
        """Append a row. `parts` maps a suffix to (byte offset in the shard, size in bytes, xxh3_64)."""
        self._rows.append((key.encode(), parts, info))

    def to_bytes(self, *, shard: str, shard_bytes: int, shard_xxh3_128: str) -> bytes:
        """Return the index file of the shard that is named, sized and hashed so."""
        if sys.byteorder != "little":
            raise NotImplementedError("index files are little-endian and this machine is not; write them elsewhere")
        columns: list[Column] = []
        area = bytearray()
        for name, values in self._arrays():
            kind = next(kind for kind, code in _CODES.items() if code == values.typecode)
            columns.append(Column(name, kind, len(area), len(values)))
            area += values.tobytes()
            area += bytes(-len(area) % 8)
        suffixes = self._suffixes()
        header = msgspec.json.encode(Header(shard, shard_bytes, shard_xxh3_128, len(self), suffixes, tuple(columns)))
        header += b" " * (-len(header) % 8)
        body = MAGIC + VERSION.to_bytes(4, "little") + len(header).to_bytes(4, "little") + header + area
        return body + xxh3_64_intdigest(body).to_bytes(8, "little")

    def _suffixes(self) -> tuple[str, ...]:
        return tuple(sorted({suffix for _, parts, _ in self._rows for suffix in parts}))

    def _arrays(self) -> Iterator[tuple[str, "array[int]"]]:
        keys, parts, infos = zip(*self._rows, strict=True) if self._rows else ((), (), ())
        yield "key.end", array("I", accumulate(map(len, keys)))
        yield "key.bytes", array("B", b"".join(keys))
        for suffix in self._suffixes():
            spans = [spans.get(suffix, _ABSENT) for spans in parts]
            for field, values in zip(("offset", "size", "xxh3_64"), zip(*spans, strict=True), strict=True):
                yield f"part.{suffix}.{field}", array("Q", values)
        for name in COLUMNS:
            yield name, array("I", [getattr(info, name) for info in infos])
        yield "caption.end", array("I", accumulate(len(info.caption_bytes) for info in infos))
        yield "caption.bytes", array("I", chain.from_iterable(info.caption_bytes for info in infos))


class ShardIndex:
    """A read-only view of an index file's bytes.

    Rows are numbered from 0 in tar order. Columns come as memoryviews over the file's bytes (element types u32, u64).
    """

    def __init__(self, data: bytes | memoryview, *, url: str) -> None:
        """Check and open the bytes of an index file; `url` is for messages.

        Raises:
            IndexFormatError: it is cut, its checksum is wrong, its version is newer, or its columns do not fit.
        """
        self.url = url
        header, area = _open(memoryview(data), url)
        self.shard = header.shard
        self.shard_bytes = header.shard_bytes
        self.shard_xxh3_128 = header.shard_xxh3_128
        self.suffixes = header.suffixes
        self._rows = header.rows
        self._columns = _cast(header, area, url)
        self._key_ends = self._columns["key.end"]
        self._key_bytes = self._columns["key.bytes"]
        self._caption_ends = self._columns["caption.end"]

    def __len__(self) -> int:
        return self._rows

    def key(self, row: int) -> str:
        """Return the key of a row."""
        start = self._key_ends[row - 1] if row else 0
        return bytes(self._key_bytes[start : self._key_ends[row]]).decode()

    def keys(self) -> Iterator[str]:
        """Yield all keys in row order."""
        return (self.key(row) for row in range(self._rows))

    def span(self, row: int, suffix: str) -> tuple[int, int]:
        """Return (offset, size) in bytes of a part within the shard; offset 0 means that the row has no such part.

        Raises:
            KeyError: no row of this shard has such a part.
            IndexFormatError: the part would end behind the shard.
        """
        offset, size = self._columns[f"part.{suffix}.offset"][row], self._columns[f"part.{suffix}.size"][row]
        if offset + size > self.shard_bytes:  # looked at here, so that opening stays free of work per row
            end = f"byte {offset + size} of {self.shard_bytes}"
            raise IndexFormatError(self.url, f"part {self.key(row)}.{suffix} ends at {end}")
        return offset, size

    def part(self, suffix: str) -> "tuple[memoryview[int], memoryview[int], memoryview[int]]":
        """Return offset, size and checksum of a part in every row, see `span` and `checksum`.

        Raises:
            KeyError: no row of this shard has such a part.
        """
        columns, name = self._columns, f"part.{suffix}"
        return columns[f"{name}.offset"], columns[f"{name}.size"], columns[f"{name}.xxh3_64"]

    def checksum(self, row: int, suffix: str) -> int:
        """Return the xxh3_64 of a part's bytes, as an unsigned integer."""
        return self._columns[f"part.{suffix}.xxh3_64"][row]

    def column(self, name: str) -> "memoryview[int]":
        """Return a metadata column, one u32 per row: "width", "height" (pixels) or "license" (id, 0 for none).

        "caption.bytes" has one for each caption, row by row: its length in UTF-8 bytes.
        """
        return self._columns[name]

    @property
    def captions_total(self) -> int:
        """The number of captions of all rows."""
        return self._caption_ends[self._rows - 1] if self._rows else 0

    @property
    def caption_ends(self) -> "memoryview[int]":
        """How many captions each row and all before it have (u32)."""
        return self._caption_ends

    def caption_count(self, row: int) -> int:
        """Return how many captions a row has."""
        return self._caption_ends[row] - self._first_caption(row)

    def caption_lengths(self, row: int) -> "memoryview[int]":
        """Return the length of each caption of a row, in UTF-8 bytes (u32)."""
        return self._columns["caption.bytes"][self._first_caption(row) : self._caption_ends[row]]

    def caption_row(self, number: int) -> tuple[int, int]:
        """Return (row, caption of that row) of the caption with this number over the whole shard."""
        if not 0 <= number < self.captions_total:
            raise IndexError(f"index {self.url} has {self.captions_total} captions, not one numbered {number}")
        row = bisect_right(self._caption_ends, number)
        return row, number - self._first_caption(row)

    def _first_caption(self, row: int) -> int:
        return self._caption_ends[row - 1] if row else 0


def _open(view: memoryview, url: str) -> tuple[Header, memoryview]:
    if sys.byteorder != "little":
        raise NotImplementedError(f"index {url} is little-endian and this machine is not; read it elsewhere")
    if len(view) < _FIXED + _TAIL or view[:8] != MAGIC:
        raise IndexFormatError(url, f"it does not begin with {MAGIC.decode()}, so it is no index file")
    version = int.from_bytes(view[8:12], "little")
    if version > VERSION:
        problem = f"format version {version} is newer than {VERSION}, the newest this reader knows"
        raise IndexFormatError(url, problem, UPDATE_HINT)
    if xxh3_64_intdigest(view[:-_TAIL]) != int.from_bytes(view[-_TAIL:], "little"):
        raise IndexFormatError(url, "its bytes differ from its own checksum")
    end = _FIXED + int.from_bytes(view[12:16], "little")
    if version < 1 or end > len(view) - _TAIL:
        raise IndexFormatError(url, f"its first bytes are wrong (version {version}, header up to byte {end})")
    try:
        header = msgspec.json.decode(view[_FIXED:end], type=Header)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise IndexFormatError(url, f"its header cannot be read ({exc})") from exc
    return header, view[end:-_TAIL]


def _cast(header: Header, area: memoryview, url: str) -> dict[str, "memoryview[int]"]:
    """Cast the columns of known type; columns of other types are passed over, as FORMAT.md asks."""
    columns: dict[str, memoryview[int]] = {}
    for column in header.columns:
        code = _CODES.get(column.type)
        if code is None:
            continue
        end = column.offset + column.count * array(code).itemsize
        if end > len(area):
            raise IndexFormatError(url, f"column {column.name} ends at byte {end} of {len(area)}")
        columns[column.name] = area[column.offset : end].cast(code)
    _check_columns(header, columns, url)
    return columns


def _check_columns(header: Header, columns: Mapping[str, "memoryview[int]"], url: str) -> None:
    per_row = ["key.end", *COLUMNS, "caption.end"]
    per_row += [f"part.{suffix}.{field}" for suffix in header.suffixes for field in ("offset", "size", "xxh3_64")]
    missing = [name for name in [*per_row, "key.bytes", "caption.bytes"] if name not in columns]
    if missing:
        raise IndexFormatError(url, f"it lacks the columns {', '.join(missing)}")
    uneven = [name for name in per_row if len(columns[name]) != header.rows]
    if uneven:
        raise IndexFormatError(url, f"columns {', '.join(uneven)} do not have {header.rows} rows")
    for ends, values in (("key.end", "key.bytes"), ("caption.end", "caption.bytes")):
        last = columns[ends][-1] if header.rows else 0
        if last != len(columns[values]):
            raise IndexFormatError(url, f"column {values} has {len(columns[values])} values, {ends} says {last}")
