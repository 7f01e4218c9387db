"""Where files live: a folder on a local disk, or any fsspec URL. The only importer of fsspec.

Invariants: nothing is opened before its first use; a store works after fork (local reads are positioned, fsspec file
systems are opened again in the new process); nothing is visible under a file's name before `commit`; every foreign
error leaves as FileNotFoundError or StoreError.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from shards.errors import StoreError
from shards.local import Buffer, LocalStore

T = TypeVar("T")


class PendingFile(Protocol):
    """A file that is being written and that nobody sees under its name yet."""

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Append the buffers, in order."""

    def close(self) -> None:
        """End writing: everything is on the store, still invisible. Idempotent."""

    def commit(self) -> None:
        """Make the closed file visible under its name, replacing a former one at once."""

    def discard(self) -> None:
        """Throw the file away. Idempotent; does nothing after commit."""


class Store(Protocol):
    """One folder of files. Names are relative to it; byte ranges are `[start, end)`; all errors name the URL.

    `gap_bytes` is how far apart two ranges may lie to be worth one read, `max_read_bytes` how long one read may get.
    """

    url: str
    gap_bytes: int
    max_read_bytes: int

    def url_of(self, name: str) -> str:
        """Return the full URL of a file, for messages."""

    def size(self, name: str) -> int:
        """Return a file's size in bytes."""

    def read(self, name: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Return exactly the bytes `[start, end)`, to the end of the file without `end`."""

    def read_many(self, wanted: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Return the ranges (name, start, end) in their order, concurrently where the store can."""

    def read_into(self, name: str, buffer: memoryview, *, start: int) -> None:
        """Fill the writable buffer with the bytes from `start` on."""

    def names(self) -> list[str]:
        """Return the names of all files of the folder, sorted; an absent folder has none."""

    def create(self, name: str) -> PendingFile:
        """Begin a file."""

    def remove(self, name: str) -> None:
        """Delete a file."""


def open_store(url: str, *, storage_options: Mapping[str, object] | None = None) -> Store:
    """Return the store of a folder: a path, `file://...`, or any URL that fsspec knows (`s3://bucket/folder`).

    `storage_options` goes to the fsspec file system as it is (keys, endpoint, ...); it never appears in a message.
    """
    if url.startswith("file://"):
        url = url.removeprefix("file://")
    if "://" in url or "::" in url:
        return FsspecStore(url, storage_options or {})
    return LocalStore(url)


class FsspecStore:
    """A folder on any fsspec file system, opened in the process and at the moment it is first used."""

    gap_bytes = 256 * 2**10
    max_read_bytes = 16 * 2**20

    def __init__(self, url: str, storage_options: Mapping[str, object]) -> None:
        self.url = url.rstrip("/")
        self._options = dict(storage_options)
        self._opened: tuple[int, Any, str] | None = None

    def __reduce__(self) -> tuple[type["FsspecStore"], tuple[str, dict[str, object]]]:
        return FsspecStore, (self.url, self._options)

    def __repr__(self) -> str:
        return f"FsspecStore({self.url!r})"

    def url_of(self, name: str) -> str:
        """Return the full URL of a file."""
        return f"{self.url}/{name}"

    def size(self, name: str) -> int:
        """Return a file's size in bytes."""
        size = self._call("size of", name, lambda fs, path: fs.info(path)["size"])
        if size is None:
            raise StoreError(self.url_of(name), "size of", "the server does not tell it")
        return int(size)

    def read(self, name: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Return exactly the bytes `[start, end)`, to the end of the file without `end`."""
        data: bytes = self._call("read", name, lambda fs, path: fs.cat_file(path, start=start, end=end))
        self._check_length(name, data, start, end)
        return data

    def read_many(self, wanted: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Return the ranges (name, start, end) in their order, concurrently where the file system can."""
        if not wanted:
            return []
        starts, ends = [start for _, start, _ in wanted], [end for _, _, end in wanted]

        def fetch(fs: Any, root: str) -> list[bytes]:  # noqa: ANN401 - fsspec has no types
            paths = [f"{root}/{name}" for name, _, _ in wanted]
            return list(fs.cat_ranges(paths, starts, ends, on_error="raise"))

        answers: list[bytes] = self._call("read", "", fetch)
        for (name, start, end), data in zip(wanted, answers, strict=True):
            self._check_length(name, data, start, end)
        return answers

    def read_into(self, name: str, buffer: memoryview, *, start: int) -> None:
        """Fill the buffer with the bytes from `start` on."""
        buffer[:] = self.read(name, start=start, end=start + len(buffer))

    def names(self) -> list[str]:
        """Return the names of all files of the folder, sorted; an absent folder has none."""
        try:
            paths: list[str] = self._call("list", "", lambda fs, path: fs.ls(path, detail=False, refresh=True))
        except FileNotFoundError:
            return []
        return sorted(name for name in (path.rstrip("/").rpartition("/")[2] for path in paths) if name)

    def create(self, name: str) -> "FsspecPending":
        """Begin a file by fsspec's own uncommitted writing (on S3: a multipart upload)."""

        def begin(fs: Any, path: str) -> Any:  # noqa: ANN401 - fsspec has no types
            fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            return fs.open(path, "wb", autocommit=False)

        return FsspecPending(self.url_of(name), self._call("create", name, begin))

    def remove(self, name: str) -> None:
        """Delete a file."""
        self._call("remove", name, lambda fs, path: fs.rm_file(path))

    def _check_length(self, name: str, data: bytes, start: int, end: int | None) -> None:
        if end is not None and len(data) != end - start:
            cause = f"{len(data)} bytes came for [{start}, {end}): the file ends there or the answer was cut"
            raise StoreError(self.url_of(name), "read", cause)

    def _call(self, action: str, name: str, act: Callable[[Any, str], T]) -> T:
        def run() -> T:
            fs, root = self._file_system()
            return act(fs, f"{root}/{name}" if name else root)

        return _foreign(action, self.url_of(name) if name else self.url, run)

    def _file_system(self) -> tuple[Any, str]:
        if self._opened is None or self._opened[0] != os.getpid():
            from fsspec.core import url_to_fs  # noqa: PLC0415 - opened at first use

            fs, root = url_to_fs(self.url, **self._options)
            self._opened = os.getpid(), fs, root.rstrip("/")
        return self._opened[1:]


class FsspecPending:
    """A file that fsspec has not committed yet."""

    def __init__(self, url: str, file: Any) -> None:  # noqa: ANN401 - fsspec has no types
        self._url, self._file, self._done = url, file, False

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Append the buffers."""
        _foreign("write", self._url, lambda: self._file.write(b"".join(buffers)))

    def close(self) -> None:
        """Send what is left. Idempotent."""
        if not self._file.closed:
            _foreign("write", self._url, self._file.close)

    def commit(self) -> None:
        """Complete the file on the store."""
        self.close()
        _foreign("commit", self._url, self._file.commit)
        self._done = True

    def discard(self) -> None:
        """Throw away what was sent. Idempotent."""
        if not self._done:
            self._done = True
            _foreign("discard", self._url, self._file.discard)


def _foreign(action: str, url: str, act: Callable[[], T]) -> T:
    try:
        return act()
    except FileNotFoundError as exc:
        raise FileNotFoundError(f"{url} does not exist") from exc
    except Exception as exc:  # file systems raise whatever their client library does
        raise StoreError(url, action, f"{type(exc).__name__}: {exc}") from exc
