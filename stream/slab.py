"""Shared memory of one host: the reader's side and the rank's side of the bytes between them.

Invariants:
- the reader alone writes, the rank alone reads;
- no two spans that are held overlap, and all files together never exceed the budget, unless a single portion does:
  it travels alone, since it could not travel otherwise;
- with nothing held every size can be allocated, so a reader that waits for spans to come back always gets on;
- each span has a head in its file: its number and a mark made of it. The number is wiped when the span is released,
  before its bytes are used again. Who reads a span compares the head before and after, so bytes of a recycled span
  are never taken for those of the old one.

Most spans share one ring. A span above a quarter of the ring would block it, and gets a file of its own. When such
spans keep coming and the ring is empty, a larger ring takes its place. Where the budget has no room for a file of its
own, a large span lies in the ring after all.
"""

import os
import struct
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stream.errors import SlabError
from stream.memory_file import MemoryFile, map_readable
from stream.ring import Ring

if TYPE_CHECKING:
    from mmap import mmap

Bytes = npt.NDArray[np.uint8]

HEAD = 64
"""Bytes before each span, and the alignment of spans."""
_LEAST_RING = 1 << 20
_SPANS_A_RING = 8
_LARGE = 4
"""A span above this part of its ring (one over this number) is large."""
_LATELY = 8
"""Two large spans among so many count as: they keep coming."""
_STAMP = struct.Struct("<QQ")
_MARK = 0x9D3A_5C17_E26B_84F1


class Span:
    """One portion's memory.

    Attributes:
        number: Unique in its slab, rising.
        file: Number of the memory file that holds it; -1 for memory that is not shared.
        offset: Where `memory` starts in the file, in bytes.
        size: Bytes of `memory`.
        memory: uint8 `[size]`, writable, aligned to 64 bytes; for the holder of the span until its release.
    """

    __slots__ = ("_file", "file", "memory", "number", "offset", "size")

    def __init__(self, number: int, memory: Bytes, file: MemoryFile | None = None, offset: int = 0) -> None:
        self.number, self.memory, self.offset, self.size = number, memory, offset, len(memory)
        self.file = -1 if file is None else file.number
        self._file = file

    @property
    def new_fd(self) -> int | None:
        """The descriptor that the rank must get with this span, None once it has it. It stays the slab's."""
        return None if self._file is None or self._file.known or self._file.fd < 0 else self._file.fd


class Slab:
    """The reader's side of one rank's shared memory. For one thread; the memory of a span for whoever fills it.

    Args:
        budget_bytes: What all files together may take.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self._files: dict[int, MemoryFile] = {}
        self._ring: tuple[MemoryFile, Ring] | None = None
        self._ring_size = 0
        self._spans: dict[int, tuple[MemoryFile, int]] = {}
        self._dropped: list[int] = []
        self._placed = 0
        self._last_large = -_LATELY
        self._next_span = 1
        self._next_file = 0
        self._closed = False
        self.held_bytes = 0
        """Bytes of the spans that are held, with their heads."""
        self.file_bytes = 0
        """Bytes of all files."""

    def allocate(self, size: int) -> Span | None:
        """Return memory for `size` bytes (0 or more), None while there is no room: some span must be released first.

        Raises:
            SlabError: the system gives no memory, or the slab is closed.
        """
        if self._closed:
            raise SlabError("shared memory", "it was closed; a new iteration opens a new one")
        need = _padded(size)
        placed = self._place(need)
        if placed is None:
            return None
        file, start = placed
        number, self._next_span = self._next_span, self._next_span + 1
        _STAMP.pack_into(file.map, start, number, number ^ _MARK)
        self._spans[number] = (file, start)
        self.held_bytes += need
        return Span(number, np.frombuffer(file.map, np.uint8, size, start + HEAD), file, start + HEAD)

    def sent(self, number: int) -> None:
        """Tell that a span was sent with its `new_fd`: from now on the rank knows the file.

        Raises:
            KeyError: no such span is held.
        """
        self._spans[number][0].known = True

    def release(self, number: int) -> None:
        """Take a span back, in any order. Its memory must not be touched any more.

        Raises:
            KeyError: no such span is held.
        """
        file, start = self._spans.pop(number)
        _STAMP.pack_into(file.map, start, 0, 0)
        if self._ring is not None and file is self._ring[0]:
            self.held_bytes -= self._ring[1].give(start)
        else:
            self.held_bytes -= file.size
            self._drop(file)

    def files(self) -> list[int]:
        """Return the numbers of the files that are open."""
        return list(self._files)

    def dropped(self) -> list[int]:
        """Return the numbers of files that the rank knows and that are gone since the last call."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def close(self) -> None:
        """Give all memory back. Idempotent. What a rank has mapped lives until it unmaps it."""
        self._closed = True
        self._spans.clear()
        self._ring = None
        for file in list(self._files.values()):
            self._drop(file)
        self.held_bytes = 0

    def _place(self, need: int) -> tuple[MemoryFile, int] | None:
        """Find room for a span with its head: its file, and where it starts."""
        if need > self._budget:
            return self._alone(need)
        self._fit_ring(need)
        large = self._ring is None or need * _LARGE > self._ring[1].size
        if large and self.file_bytes + need <= self._budget:
            placed: tuple[MemoryFile, int] | None = (self._open(need), 0)
        else:
            placed = self._in_ring(need)
        if placed is None:
            return self._instead_of_ring(need)
        self._placed += 1
        if large:
            self._last_large = self._placed
        return placed

    def _alone(self, need: int) -> tuple[MemoryFile, int] | None:
        if self._spans:
            return None
        self._drop_ring()
        return self._open(need), 0

    def _in_ring(self, need: int) -> tuple[MemoryFile, int] | None:
        if self._ring is None:
            return None
        file, ring = self._ring
        start = ring.take(need)
        return None if start is None else (file, start)

    def _instead_of_ring(self, need: int) -> tuple[MemoryFile, int] | None:
        """Let a span that the ring can never hold have the ring's share of the budget, once the ring is empty."""
        if self._ring is None or self._ring[1] or need <= self._ring[1].size:
            return None
        self._drop_ring()
        self._fit_ring(need)
        return self._in_ring(need)

    def _fit_ring(self, need: int) -> None:
        """Open the ring; replace it while it is empty by a larger one, if large spans keep coming."""
        size = max(_SPANS_A_RING * need, _LEAST_RING, self._ring_size)
        if self._ring is None:
            self._open_ring(need, min(size, self._budget - self.file_bytes))
            return
        ring = self._ring[1]
        keep_coming = need * _LARGE > ring.size and self._placed - self._last_large < _LATELY
        size = min(size, self._budget - self.file_bytes + ring.size)
        if keep_coming and not ring and size > ring.size:
            self._drop_ring()
            self._open_ring(need, size)

    def _open_ring(self, need: int, size: int) -> None:
        size -= size % HEAD
        if size >= need:
            self._ring = (self._open(size), Ring(size))
            self._ring_size = size

    def _drop_ring(self) -> None:
        if self._ring is not None:
            file, self._ring = self._ring[0], None
            self._drop(file)

    def _open(self, size: int) -> MemoryFile:
        number, self._next_file = self._next_file, self._next_file + 1
        file = self._files[number] = MemoryFile(number, size)
        self.file_bytes += size
        return file

    def _drop(self, file: MemoryFile) -> None:
        del self._files[file.number]
        self.file_bytes -= file.size
        if file.known:
            self._dropped.append(file.number)
        file.close()


class SlabView:
    """The rank's side: read-only mappings of the reader's memory files, by their numbers."""

    def __init__(self) -> None:
        self._maps: dict[int, mmap] = {}

    def add(self, file: int, fd: int) -> None:
        """Map a file and close its descriptor. A file that is mapped already stays as it is.

        Raises:
            SlabError: it is no memory file, or its size is not sealed.
        """
        try:
            if file not in self._maps:
                self._maps[file] = map_readable(fd)
        finally:
            os.close(fd)

    def open(self, file: int, offset: int, size: int, number: int) -> Bytes:
        """Return the memory of span `number`: uint8 `[size]`, read-only.

        It stays mapped while an array of it lives, but its bytes are the span's only until the reader gets it back.

        Raises:
            SlabError: no such file, no such place in it, or another span lies there.
        """
        self.check(file, offset, number)
        if not 0 <= size <= len(self._maps[file]) - offset:
            raise SlabError(_where(file, offset), f"{size} bytes go beyond the end of the file")
        return np.frombuffer(self._maps[file], np.uint8, size, offset)

    def check(self, file: int, offset: int, number: int) -> None:
        """Make sure that span `number` still lies there.

        Raises:
            SlabError: it does not.
        """
        mapped = self._maps.get(file)
        if mapped is None or not HEAD <= offset <= len(mapped):
            raise SlabError(
                _where(file, offset), "the rank has no such memory; the two sides do not understand each other"
            )
        stamp = _STAMP.unpack_from(mapped, offset - HEAD)
        if stamp != (number, number ^ _MARK):
            problem = f"expected span {number}, found {stamp[0]}: it was used again too early; its bytes were not used"
            raise SlabError(_where(file, offset), problem)

    def drop(self, file: int) -> None:
        """Unmap a file, once no array of it lives. One that is not mapped is none's loss."""
        self._maps.pop(file, None)

    def close(self) -> None:
        """Unmap all files. Idempotent."""
        self._maps.clear()


def _padded(size: int) -> int:
    return HEAD + size + -size % HEAD


def _where(file: int, offset: int) -> str:
    return f"memory file {file}, byte {offset}"
