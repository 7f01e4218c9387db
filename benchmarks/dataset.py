"""The packed dataset that a benchmark reads: its keys, its images in memory, and a longer copy of it."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shards.dataset import DatasetReader
from shards.index import RowInfo, ShardIndex
from shards.sample import Sample
from shards.store import open_store
from shards.writer import ShardWriter

_IMAGES = ("jpg", "jpeg", "png", "webp")
_CAPTION = "txt"
_RUN = 64  # samples in memory while copying
_MEMORY_DISK = Path("/dev/shm")  # noqa: S108 - a folder of its own is made there
_ROOM = 2  # times the size of the copy that must be free


def keys_of(reader: DatasetReader) -> list[str]:
    """Return all keys in storage order."""
    return [key for index in _indexes(reader) for key in index.keys()]  # noqa: SIM118 - no mapping


def encoded_bytes(reader: DatasetReader) -> float:
    """Return the bytes of image and first caption of the average sample, as stored."""
    total = 0
    for index in _indexes(reader):
        for suffix in set(index.suffixes) & {*_IMAGES, _CAPTION}:
            total += sum(index.span(row, suffix)[1] for row in range(len(index)))
    return total / len(reader)


def images_of(reader: DatasetReader, *, most: int) -> list[bytes]:
    """Return up to `most` encoded images, spread over the dataset."""
    every = -(-len(reader) // most)
    samples = reader.read(range(0, len(reader), every), suffixes=_IMAGES)
    return [bytes(part) for sample in samples for part in sample.parts.values()]


@contextmanager
def repeated(reader: DatasetReader, *, rows: int) -> Iterator[DatasetReader]:
    """Give a dataset of at least `rows` rows: the same one, or a copy with every sample again under new keys.

    In an epoch of few steps the work at its ends would be all that is measured. The copy lies on the memory disk, or
    in the folder for temporary files where that has no room, and is removed at the end.
    """
    copies = -(-rows // len(reader))
    if copies <= 1:
        yield reader
        return
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=_place(reader.manifest.bytes * copies)) as folder:
        with ShardWriter(open_store(folder), "repeated") as writer:
            for copy in range(copies):
                _copy(reader, writer, copy)
        yield DatasetReader(folder)


def _place(size: int) -> str | None:
    if _MEMORY_DISK.is_dir() and shutil.disk_usage(_MEMORY_DISK).free >= _ROOM * size:
        return str(_MEMORY_DISK)
    return None


def _copy(reader: DatasetReader, writer: ShardWriter, copy: int) -> None:
    infos = (_info(index, row) for index in _indexes(reader) for row in range(len(index)))
    for sample, info in zip(_samples(reader), infos, strict=True):
        writer.add(f"{sample.key}-{copy}" if copy else sample.key, sample.parts, info)


def _samples(reader: DatasetReader) -> Iterator[Sample]:
    for start in range(0, len(reader), _RUN):
        yield from reader.read(range(start, min(start + _RUN, len(reader))))


def _info(index: ShardIndex, row: int) -> RowInfo:
    width, height, license_id = (index.column(name)[row] for name in ("width", "height", "license"))
    return RowInfo(width, height, license_id, tuple(index.caption_lengths(row)))


def _indexes(reader: DatasetReader) -> Iterator[ShardIndex]:
    for shard_no in range(len(reader.manifest.shardlist)):
        yield reader.index(shard_no)
