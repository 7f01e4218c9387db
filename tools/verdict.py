"""What goes between the packer and its checking processes: tasks one way, verdicts the other, in frames.

A frame is its length in bytes (4 bytes, little-endian) and a MessagePack array; both sides know its type.
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from images import Place

T = TypeVar("T")
LENGTH_BYTES = 4


class Settings(msgspec.Struct, frozen=True, array_like=True):
    """The first frame to a checking process. Without `max_pixels` the decoder's own limit holds."""

    images: str
    max_pixels: int | None


class Task(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One image to check. `width` and `height` are what the captions file says, in pixels."""

    file_name: str
    place: Place
    width: int
    height: int


class Verdict(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What checking one image gave.

    `size` (bytes) and `digest` (xxh3_64) are of the bytes that were checked, `suffix` is their member suffix.
    A `problem` makes it a bad image, and then the others mean nothing.
    """

    problem: str
    size: int = 0
    digest: int = 0
    suffix: str = ""


def frame(message: object) -> bytes:
    """Return the frame of a message."""
    payload = msgspec.msgpack.encode(message)
    return len(payload).to_bytes(LENGTH_BYTES, "little") + payload


def read_frame(read: Callable[[int], bytes | None], kind: type[T]) -> T | None:
    """Return the next message, None where the other side has ended.

    `read(n)` gives at most n bytes, none at the end, as `os.read` does.
    """
    length = _exactly(read, LENGTH_BYTES)
    payload = _exactly(read, int.from_bytes(length, "little")) if length else None
    return None if payload is None else msgspec.msgpack.decode(payload, type=kind)


def _exactly(read: Callable[[int], bytes | None], count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        more = read(count - len(data))
        if not more:
            return None
        data += more
    return data
