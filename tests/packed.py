"""Small packed datasets whose pictures tell which sample they belong to, so that a scrambled batch is noticed.

A picture is a row of black and white strips: the sample's number in binary, the highest bit first. That survives JPEG
and resizing.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import simplejpeg

from shards.index import RowInfo
from shards.store import Store, open_store
from shards.writer import ShardWriter

BITS = 8
SIZE = (16, 64)
"""Height and width of a batch's images in most tests: the smaller of the two sizes that are packed."""


@dataclass(frozen=True)
class Made:
    """What was packed: `captions[i]` are those of sample i, whose key is `key_of(i)`."""

    url: str
    captions: list[list[str]]

    @property
    def keys(self) -> list[str]:
        return [key_of(number) for number in range(len(self.captions))]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return [(key_of(number), text) for number, texts in enumerate(self.captions) for text in texts]

    def tars(self) -> list[str]:
        return sorted(str(path) for path in Path(self.url).glob("*.tar"))


def key_of(number: int) -> str:
    return f"{number:012d}"


def size_of(number: int) -> tuple[int, int]:
    """Height and width of a packed picture; every third one is twice as large."""
    return (32, 128) if number % 3 == 1 else SIZE


def jpeg_of(number: int) -> bytes:
    height, width = size_of(number)
    strip = np.array([255 * (number >> bit & 1) for bit in reversed(range(BITS))], dtype=np.uint8)
    pixels = np.broadcast_to(np.repeat(strip, width // BITS)[None, :, None], (height, width, 3))
    return simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality=95, colorsubsampling="444")


def number_of(image) -> int:
    """The number that a picture, uint8 [3, H, W], shows."""
    strips = image.float().mean(dim=(0, 1)).chunk(BITS)
    return sum(int(strip.mean() > 127) << place for place, strip in enumerate(reversed(strips)))


def captions_of(number: int) -> list[str]:
    """1 to 4 captions, byte-true: some end in blanks, some are not ASCII."""
    return [f"{number}: caption {place} \N{SNOWMAN}{' ' * (number % 2)}" for place in range(1 + number % 4)]


def parts_of(number: int, *, image: bytes | None = None) -> dict[str, bytes]:
    texts, (height, width) = captions_of(number), size_of(number)
    about = {
        "image_id": number,
        "file_name": f"{key_of(number)}.jpg",
        "width": width,
        "height": height,
        "captions": texts,
        "caption_ids": list(range(len(texts))),
        "license": 1,
        "urls": {"coco": "", "flickr": ""},
    }
    return {
        "jpg": jpeg_of(number) if image is None else image,
        "txt": texts[0].encode(),
        "json": json.dumps(about).encode(),
    }


def make_packed(
    folder: Path | Store, samples: int, *, shard_bytes: int = 24 * 2**10, images: dict[int, bytes] | None = None
) -> Made:
    """Pack `samples` samples, about six a shard; `images` replaces the encoded images of some."""
    store = open_store(str(folder)) if isinstance(folder, Path) else folder
    with ShardWriter(store, "made", shard_bytes=shard_bytes) as writer:
        for number in range(samples):
            height, width = size_of(number)
            lengths = tuple(len(text.encode()) for text in captions_of(number))
            parts = parts_of(number, image=(images or {}).get(number))
            writer.add(key_of(number), parts, RowInfo(width, height, 1, lengths))
        writer.close()
    return Made(store.url, [captions_of(number) for number in range(samples)])
