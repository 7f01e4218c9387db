"""Shared memory of one host, the rank's side: mappings of the reader's memory files. See slab.py.

What is lent may be written by the rank, all else only read.
"""

import os
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stream.errors import SlabError
from stream.memory_file import map_foreign
from stream.stamps import HEAD, problem_at

if TYPE_CHECKING:
    from mmap import mmap

Bytes = npt.NDArray[np.uint8]


class SlabView:
    """The mappings of the reader's memory files, by their numbers."""

    def __init__(self) -> None:
        self._maps: dict[int, mmap] = {}

    def add(self, file: int, fd: int, *, lent: bool = False) -> None:
        """Map a file and close its descriptor; one that is `lent` may be written. One that is mapped stays as it is.

        Raises:
            SlabError: it is no memory file, or its size is not sealed.
        """
        try:
            if file not in self._maps:
                self._maps[file] = map_foreign(fd, writable=lent)
        finally:
            os.close(fd)

    def open(self, file: int, offset: int, size: int, number: int) -> Bytes:
        """Return the memory of span `number`: uint8 `[size]`, writable where it is lent.

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
        if problem := problem_at(mapped, offset - HEAD, number):
            raise SlabError(_where(file, offset), problem)

    def drop(self, file: int) -> None:
        """Unmap a file, once no array of it lives. One that is not mapped is none's loss."""
        self._maps.pop(file, None)

    def close(self) -> None:
        """Unmap all files. Idempotent."""
        self._maps.clear()


def _where(file: int, offset: int) -> str:
    return f"memory file {file}, byte {offset}"
