"""Small datasets that tests of shards/ make for themselves, and how their laws are tried."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hypothesis import settings

from shards.index import RowInfo
from shards.manifest import Manifest
from shards.store import open_store
from shards.writer import ShardWriter

law = settings(deadline=None)
"""A law holds or not, however long a busy machine takes to try it."""


@dataclass(frozen=True)
class Row:
    key: str
    parts: dict[str, bytes]
    info: RowInfo


def make_rows(count: int, *, seed: int = 0, part_bytes: int = 700) -> list[Row]:
    """Rows as the packer makes them: bytes in place of an image, the first caption, all metadata; 1 to 3 captions."""
    return list(_rows(count, seed, part_bytes))


def _rows(count: int, seed: int, part_bytes: int) -> Iterator[Row]:
    chance = random.Random(seed)
    for number in range(count):
        captions = [f"caption {place} of {number} \N{SNOWMAN} " for place in range(chance.randint(1, 3))]
        about = {"image_id": number, "captions": captions, "width": 640, "height": 480}
        parts = {
            "jpg": chance.randbytes(chance.randint(part_bytes // 2, part_bytes)),
            "txt": captions[0].encode(),
            "json": json.dumps(about).encode(),
        }
        info = RowInfo(640, 480, chance.randint(0, 8), tuple(len(caption.encode()) for caption in captions))
        yield Row(f"{number:012d}", parts, info)


def make_dataset(
    folder: Path, rows: list[Row], *, name: str = "made", shard_bytes: int = 2**20, replace: bool = False
) -> Manifest:
    """Write `rows` as a dataset into `folder`."""
    with ShardWriter(open_store(str(folder)), name, shard_bytes=shard_bytes, replace=replace) as writer:
        for row in rows:
            writer.add(row.key, row.parts, row.info)
        return writer.close()


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
