"""The head of a span in its memory file: the span's number, and a mark made of it; nothing once the span is free."""

import struct
from mmap import mmap

HEAD = 64
"""Bytes before each span, and the alignment of spans."""
_STAMP = struct.Struct("<QQ")
_MARK = 0x9D3A_5C17_E26B_84F1


def stamp(memory: mmap, start: int, number: int) -> None:
    """Write the head of span `number` (1 or more) at byte `start`."""
    _STAMP.pack_into(memory, start, number, number ^ _MARK)


def wipe(memory: mmap, start: int) -> None:
    """Write that no span begins at byte `start` any more."""
    _STAMP.pack_into(memory, start, 0, 0)


def problem_at(memory: mmap, start: int, number: int) -> str | None:
    """Return why the head at byte `start` is not that of span `number`, None if it is."""
    found = _STAMP.unpack_from(memory, start)
    if found == (number, number ^ _MARK):
        return None
    return f"expected span {number}, found {found[0]}: it was used again too early; its bytes were not used"
