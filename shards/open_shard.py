"""The shard that is being written: members appended to a pending file, their spans and checksums kept for the index."""

from collections.abc import Mapping

from xxhash import xxh3_64_intdigest, xxh3_128, xxh3_128_hexdigest

from shards.index import IndexBuilder, RowInfo
from shards.local import Buffer
from shards.manifest import INDEX, ShardInfo
from shards.store import PendingFile
from shards.tar import BLOCK, HeaderTemplate, ending, padded, padding

_LARGE = 16 * 2**10  # bytes; from here on a copy costs more than a buffer of its own
_TEMPLATE = HeaderTemplate()


class OpenShard:
    """An archive that grows by whole samples. Names and sizes have been checked by the caller."""

    def __init__(self, file: PendingFile, name: str) -> None:
        self._file, self.name = file, name
        self._end = 0
        self._rows = IndexBuilder()
        self._digest = xxh3_128()
        self._captions = 0

    def size_with(self, parts: Mapping[str, Buffer]) -> int:
        """Return the size in bytes that the finished shard would have with one more sample of these parts."""
        end = self._end + sum([BLOCK + padded(len(part)) for part in parts.values()])
        return end + len(ending(end))

    def append(self, key: str, parts: Mapping[str, Buffer], info: RowInfo) -> tuple[int, ...]:
        """Write a sample and return the xxh3_64 of each part, in their order."""
        buffers: list[Buffer] = []
        small = b""  # small pieces are joined: few buffers are written and hashed faster than many
        spans: dict[str, tuple[int, int, int]] = {}
        at = self._end
        for suffix, part in parts.items():
            length, checksum = len(part), xxh3_64_intdigest(part)
            header = _TEMPLATE.header(f"{key}.{suffix}".encode(), length)
            if length >= _LARGE:
                buffers += (small + header, part)
                small = padding(length)
            else:
                small = b"".join((small, header, part, padding(length)))
            spans[suffix] = (at + BLOCK, length, checksum)
            at += BLOCK + padded(length)
        buffers.append(small)
        self._write(buffers)
        self._end = at
        self._rows.add(key, spans, info)
        self._captions += len(info.caption_bytes)
        return tuple([checksum for _, _, checksum in spans.values()])

    def finish(self) -> tuple[bytes, ShardInfo]:
        """End the archive and return the bytes of its index and its entry in the manifest."""
        last = ending(self._end)
        self._write([last])
        self._file.close()
        digest, size = self._digest.hexdigest(), self._end + len(last)
        index = self._rows.to_bytes(shard=self.name, shard_bytes=size, shard_xxh3_128=digest)
        return index, ShardInfo(
            url=self.name,
            nsamples=len(self._rows),
            filesize=size,
            captions=self._captions,
            xxh3_128=digest,
            index_url=self.name + INDEX,
            index_filesize=len(index),
            index_xxh3_128=xxh3_128_hexdigest(index),
        )

    def _write(self, buffers: list[Buffer]) -> None:
        self._file.write(buffers)
        for buffer in buffers:
            self._digest.update(buffer)
