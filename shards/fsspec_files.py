"""Files that are being written through fsspec, which nobody sees under their names before `commit`."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from shards.errors import StoreError
from shards.local import PART, Buffer

T = TypeVar("T")


class _Guard(Protocol):
    """Runs an act on one file and maps what it raises."""

    def __call__(self, action: str, act: Callable[[], T]) -> T:
        """Return what the act returns."""


class FsspecUpload:
    """A file that its file system has not committed yet, so that nobody sees it."""

    def __init__(self, file: Any, guard: _Guard) -> None:  # noqa: ANN401 - fsspec has no types
        self._file, self._guard, self._done = file, guard, False

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Append the buffers."""
        self._guard("write", lambda: self._file.write(b"".join(buffers)))

    def close(self) -> None:
        """Send what is left. Idempotent."""
        if not self._file.closed:
            self._guard("write", self._file.close)

    def commit(self) -> None:
        """Complete the file on the store."""
        self.close()
        self._guard("commit", self._file.commit)
        self._done = True

    def discard(self) -> None:
        """Throw away what was sent. Idempotent."""
        if not self._done:
            self._done = True
            self._file.closed = True  # else it would send its rest when it is garbage
            self._guard("discard", self._file.discard)


class FsspecPart:
    """A file under its `.part` name on a file system that would show it under its own."""

    def __init__(self, fs: Any, path: str, guard: _Guard) -> None:  # noqa: ANN401 - fsspec has no types
        self._fs, self._path, self._guard = fs, path, guard
        self._file = fs.open(path + PART, "wb")
        self._closed = self._done = False

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Append the buffers."""
        self._guard("write", lambda: self._file.write(b"".join(buffers)))

    def close(self) -> None:
        """Send what is left. Idempotent."""
        if not self._closed:
            self._closed = True
            self._guard("write", self._file.close)

    def commit(self) -> None:
        """Move the file to its name."""
        self.close()
        self._guard("commit", lambda: self._fs.mv(self._path + PART, self._path))
        self._done = True

    def discard(self) -> None:
        """Delete the `.part` file. Idempotent."""
        if not self._done:
            self._done = True
            with suppress(StoreError):  # what cannot be sent is thrown away all the same
                self.close()
            with suppress(FileNotFoundError):
                self._guard("discard", lambda: self._fs.rm_file(self._path + PART))
