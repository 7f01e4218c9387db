"""Where a loader is in its epochs: plain values that travel with each step and stand in every state."""

from typing import Annotated, NamedTuple

import msgspec


class Bookmark(msgspec.Struct, frozen=True):
    """What a source said of itself behind its first `position` items of an epoch, as `whole.to_bytes` packs it."""

    position: Annotated[int, msgspec.Meta(ge=0)]
    state: bytes


class Point(NamedTuple):
    """A place in the epochs of a loader: rows (of a source of batches: batches) before `position` were delivered.

    Where the source says something of itself, `bookmark` is what it said there or before.
    """

    epoch: int
    position: int
    bookmark: Bookmark | None = None
