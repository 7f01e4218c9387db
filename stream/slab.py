"""Shared memory of one host, the reader's side; slab_view.py is the rank's side.

Invariants:
- the reader alone writes, itself or by its helper process, and the rank alone reads; but a span that is lent is the
  rank's until it gives it back, and has a file of its own, see lent_files.py;
- no two spans that are held overlap, and all other files together never exceed the budget, unless a single portion
  does: it travels alone, since it could not travel otherwise;
- with nothing held but what is lent every size can be allocated, so a reader that waits for spans to come back always
  gets on;
- each span has a head in its file: its number and a mark made of it. The number is wiped when the span is released,
  before its bytes are used again. Who reads a span compares the head before and after, so bytes of a recycled span
  are never taken for those of the old one.

Most spans share one ring. A span above a quarter of the ring would block it, and gets a file of its own. When such
spans keep coming and the ring is empty, a larger ring takes its place. Where the budget has no room for a file of its
own, a large span lies in the ring after all.
"""

from collections.abc import Sequence
from functools import partial
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from stream.errors import SlabError
from stream.lent_files import LentFiles
from stream.memory_file import MemoryFile
from stream.ring import Ring
from stream.stamps import HEAD, stamp, wipe

Bytes = npt.NDArray[np.uint8]

Ranges: TypeAlias = list[tuple[int, int]]


class FileReader(Protocol):
    """Reads local files into memory files, in a process of its own: `helper.DecodeHelper`."""

    def add_file(self, fd: int, *, writable: bool) -> int:
        """Share a memory file with it; its number there."""

    def drop_file(self, number: int) -> None:
        """Let it unmap a memory file."""

    def read(self, jobs: Sequence[tuple[str, Ranges, int, int]]) -> None:
        """Read (path, ranges, number of the memory file, offset in it) each, and wait for it. Thread-safe."""


_LEAST_RING = 1 << 20
_SPANS_A_RING = 8
_LARGE = 4
"""A span above this part of its ring (one over this number) is large."""
_LATELY = 8
"""Two large spans among so many count as: they keep coming."""


class Span:
    """One portion's memory.

    Attributes:
        number: Unique in its slab, rising.
        file: Number of the memory file that holds it; -1 for memory that is not shared.
        offset: Where `memory` starts in the file, in bytes.
        size: Bytes of `memory`.
        memory: uint8 `[size]`, writable, aligned to 64 bytes; for the holder of the span until its release.
        lent: Whether the rank may keep it as its own for as long as it likes.
    """

    __slots__ = ("_file", "file", "lent", "memory", "number", "offset", "size")

    def __init__(
        self, number: int, memory: Bytes, file: MemoryFile | None = None, offset: int = 0, *, lent: bool = False
    ) -> None:
        self.lent = lent
        self.number, self.memory, self.offset, self.size = number, memory, offset, len(memory)
        self.file = -1 if file is None else file.number
        self._file = file

    def shared(self, reader: FileReader) -> int | None:
        """Return what a process that fills memory files calls that of this span; None where the memory is not shared.

        Raises:
            StreamError: the process is gone.
        """
        if self._file is None:
            return None
        return self._file.share(partial(reader.add_file, writable=True), reader.drop_file)

    @property
    def new_fd(self) -> int | None:
        """The descriptor that the rank must get with this span, None once it has it. It stays the slab's."""
        return None if self._file is None or self._file.known or self._file.fd < 0 else self._file.fd


class Slab:
    """The reader's side of one rank's shared memory. For one thread; the memory of a span for whoever fills it.

    Args:
        budget_bytes: What all files together may take, beside those that are lent.
        lent_bytes: What those may take that are lent or wait to be.
    """

    def __init__(self, budget_bytes: int, lent_bytes: int = 0) -> None:
        self._budget = budget_bytes
        self._lent = LentFiles(lent_bytes, self._new_file, self._drop_file)
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
        """Bytes of the spans that are held, with their heads, beside those that are lent."""
        self.file_bytes = 0
        """Bytes of all files, beside those that are lent or wait to be."""

    @property
    def lent_bytes(self) -> int:
        """Bytes of the files that are lent or wait to be."""
        return self._lent.file_bytes

    def allocate(self, size: int, *, lend: bool = False) -> Span | None:
        """Return memory for `size` bytes (0 or more), None while there is no room: some span must be released first.

        With `lend` it is lent where that is worth while and there is memory for it, see `Span.lent`.

        Raises:
            SlabError: the system gives no memory, or the slab is closed.
        """
        if self._closed:
            raise SlabError("shared memory", "it was closed; a new iteration opens a new one")
        need = _padded(size)
        lent = self._lent.take(need) if lend else None
        placed = self._place(need) if lent is None else (lent, 0)
        if placed is None:
            return None
        file, start = placed
        number, self._next_span = self._next_span, self._next_span + 1
        stamp(file.map, start, number)
        self._spans[number] = (file, start)
        self.held_bytes += need if lent is None else 0
        memory = np.frombuffer(file.map, np.uint8, size, start + HEAD)
        return Span(number, memory, file, start + HEAD, lent=lent is not None)

    def sent(self, number: int) -> None:
        """Tell that a span was sent with its `new_fd`: from now on the rank knows the file.

        Raises:
            KeyError: no such span is held.
        """
        self._spans[number][0].known = True

    def release(self, number: int, *, again: bool = True) -> None:
        """Take a span back, in any order. Its memory must not be touched any more.

        One that was lent must also not be used `again` if somebody may still look at it.

        Raises:
            KeyError: no such span is held.
        """
        file, start = self._spans.pop(number)
        if again:
            wipe(file.map, start)
        if file in self._lent:
            self._lent.give(file, again=again)
        elif self._ring is not None and file is self._ring[0]:
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
        self._lent.close()
        self._ring = None
        for file in list(self._files.values()):
            self._drop_file(file)
        self.held_bytes = self.file_bytes = 0

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
        if len(self._spans) > len(self._lent):
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
        file = self._new_file(size)
        self.file_bytes += size
        return file

    def _drop(self, file: MemoryFile) -> None:
        self.file_bytes -= file.size
        self._drop_file(file)

    def _new_file(self, size: int) -> MemoryFile:
        number, self._next_file = self._next_file, self._next_file + 1
        file = self._files[number] = MemoryFile(number, size)
        return file

    def _drop_file(self, file: MemoryFile) -> None:
        del self._files[file.number]
        if file.known:
            self._dropped.append(file.number)
        file.close()


def _padded(size: int) -> int:
    return HEAD + size + -size % HEAD
