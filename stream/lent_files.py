"""Memory files that are lent whole, one for each span, and used again: the reader's side. For one thread.

A rank lays its batch over such a span instead of copying it, and gives it back when nothing of the batch is left.

Invariants:
- all files together take at most `budget_bytes` and are at most 32, so neither memory nor descriptors run out where a
  training loop keeps its batches; who gets no file has to do without one;
- what has waited long for a span of its size is dropped.
"""

from collections import deque
from collections.abc import Callable

from stream.errors import SlabError
from stream.memory_file import MemoryFile

_LEAST = 1 << 18
"""Bytes; a smaller span is copied in less time than a file takes to come back and to be found."""
_MOST = 32
_WASTE = 2
"""A file may be so many times larger than its span."""
_STEPS = 4
"""Sizes are rounded up to their 4 highest binary digits, so that spans of nearly equal size share files."""
_IDLE = 16
"""Spans that were lent since a file was used last: no more of its size are to be expected."""


class LentFiles:
    """The files of one rank.

    Args:
        budget_bytes: What all files together may take.
        open_file: Opens a file of so many bytes.
        drop_file: Drops one.
    """

    def __init__(
        self, budget_bytes: int, open_file: Callable[[int], MemoryFile], drop_file: Callable[[MemoryFile], None]
    ) -> None:
        self._budget, self._open, self._drop = budget_bytes, open_file, drop_file
        self._free: deque[tuple[int, MemoryFile]] = deque()  # with the take that it came back at, the latest last
        self._takes = 0
        self._out: dict[int, MemoryFile] = {}
        self.file_bytes = 0
        """Bytes of all files."""

    def __len__(self) -> int:
        """How many files are lent."""
        return len(self._out)

    def __contains__(self, file: MemoryFile) -> bool:
        """Whether this file is lent."""
        return file.number in self._out

    def take(self, size: int) -> MemoryFile | None:
        """Lend a file of `size` bytes or more; None: do without."""
        if not _LEAST <= size <= self._budget:
            return None
        self._takes += 1
        self._forget()
        file = self._waiting(size)
        if file is None:
            step = 1 << max(0, size.bit_length() - _STEPS)
            whole = size + -size % step
            if self.file_bytes + whole > self._budget or len(self._free) + len(self._out) >= _MOST:
                return None
            try:
                file = self._open(whole)
            except SlabError:  # no descriptor or no memory is left; what need not be lent may still have room
                return None
            self.file_bytes += whole
        self._out[file.number] = file
        return file

    def give(self, file: MemoryFile, *, again: bool) -> None:
        """Take back a file that is lent; drop it unless it may be used `again`."""
        del self._out[file.number]
        if again:
            self._free.append((self._takes, file))
        else:
            self._let_go(file)

    def close(self) -> None:
        """Let go of all files, which who opened them drops."""
        self._free.clear()
        self._out.clear()
        self.file_bytes = 0

    def _waiting(self, size: int) -> MemoryFile | None:
        """Return the file that came back last of those that fit: it may still be in the processor's cache."""
        for place in range(len(self._free) - 1, -1, -1):
            file = self._free[place][1]
            if size <= file.size <= _WASTE * size:
                del self._free[place]
                return file
        return None

    def _forget(self) -> None:
        while self._free and self._free[0][0] + _IDLE <= self._takes:
            self._let_go(self._free.popleft()[1])

    def _let_go(self, file: MemoryFile) -> None:
        self.file_bytes -= file.size
        self._drop(file)
