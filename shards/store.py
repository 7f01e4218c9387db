"""Where files live: a folder on a local disk, or any fsspec URL. The only importer of fsspec.

Invariants: nothing is opened before its first use; a store works after fork (local reads are positioned, fsspec file
systems are opened again in the new process); nothing is visible under a file's name before `commit`; every foreign
error leaves as FileNotFoundError or StoreError, without the storage options' secrets.
"""

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from shards.errors import StoreError, redact, secrets_in
from shards.fsspec_files import FsspecPart, FsspecUpload
from shards.local import Buffer, LocalStore

T = TypeVar("T")

_UPLOADS = frozenset({"s3", "s3a", "gs", "gcs"})
"""Protocols whose uncommitted files nobody sees (multipart uploads). Others show them at once (memory) or write them
through the system's temporary folder (local); there a `.part` name keeps them apart."""


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

    `gap_bytes` is how far apart two ranges may lie to be worth one read, `max_read_bytes` how long one read may get,
    `in_place` whether `read_into` reads straight into the buffer, without a copy: then a read is cheap, and none goes
    over rows that were not asked for.
    """

    url: str
    gap_bytes: int
    max_read_bytes: int
    in_place: bool

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

    def read_ranges_into(
        self, name: str, buffer: memoryview, ranges: Sequence[tuple[int, int]], *, wait: bool = True
    ) -> bool:
        """Fill the writable buffer with ranges of a file, one behind the other.

        Without `wait` only if the system has them in its memory: False, and some of the buffer filled, if it does not
        or does not tell.
        """

    def names(self) -> list[str]:
        """Return the names of all entries of the folder, sorted; an absent folder has none."""

    def create(self, name: str) -> PendingFile:
        """Begin a file."""

    def remove(self, name: str) -> None:
        """Delete a file; an object store does not tell when there was none."""

    def claim(self) -> Callable[[], None]:
        """Keep other writers out where the store can; return what ends that. StoreError where one is at work."""


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
    in_place = False

    def __init__(self, url: str, storage_options: Mapping[str, object]) -> None:
        bare = url.rstrip("/")
        self.url = url if bare.endswith(":") else bare
        self._options = dict(storage_options)
        self._secrets = secrets_in(self._options)
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
        if end is not None and end <= start:
            return b""  # an empty range is no valid request to most servers
        first = start or None if end is None else start  # "from byte 0 on" is no valid request for an empty file
        data: bytes = self._call("read", name, lambda fs, path: fs.cat_file(path, start=first, end=end))
        self._check_length(name, data, start, end)
        return data

    def read_many(self, wanted: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Return the ranges (name, start, end) in their order, concurrently where the file system can."""
        asked = [span for span in wanted if span[2] > span[1]]
        if not asked:
            return [b""] * len(wanted)
        starts, ends = [start for _, start, _ in asked], [end for _, _, end in asked]

        def fetch(fs: Any, root: str) -> list[bytes | Exception]:  # noqa: ANN401 - fsspec has no types
            paths = [f"{root}/{name}" for name, _, _ in asked]
            return list(fs.cat_ranges(paths, starts, ends, on_error="return"))

        found = dict(zip(asked, self._call("read", "", fetch), strict=True))
        return [self._answer(name, start, end, found.get((name, start, end), b"")) for name, start, end in wanted]

    def read_into(self, name: str, buffer: memoryview, *, start: int) -> None:
        """Fill the buffer with the bytes from `start` on."""
        buffer[:] = self.read(name, start=start, end=start + len(buffer))

    def read_ranges_into(
        self, name: str, buffer: memoryview, ranges: Sequence[tuple[int, int]], *, wait: bool = True
    ) -> bool:
        """Fill the buffer with ranges of a file, one behind the other; False, and nothing done, without `wait`."""
        if not wait:
            return False
        buffer[:] = b"".join(self.read_many([(name, start, end) for start, end in ranges]))
        return True

    def names(self) -> list[str]:
        """Return the names of all entries of the folder, sorted; an absent folder has none."""
        try:
            paths: list[str] = self._call("list", "", lambda fs, path: fs.ls(path, detail=False, refresh=True))
        except FileNotFoundError:
            return []
        return sorted(name for name in (path.rstrip("/").rpartition("/")[2] for path in paths) if name)

    def create(self, name: str) -> PendingFile:
        """Begin a file: as a multipart upload where the file system has such, else as `<name>.part`."""

        def begin(fs: Any, path: str) -> PendingFile:  # noqa: ANN401 - fsspec has no types
            fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            guard = partial(_foreign, url=self.url_of(name), secrets=self._secrets)
            protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
            if protocols & _UPLOADS:
                file = fs.open(path, "wb", autocommit=False)
                fs.transaction.files.remove(file)  # it is ours alone to commit; there it would be kept for good
                return FsspecUpload(file, guard)
            return FsspecPart(fs, path, guard)

        return self._call("create", name, begin)

    def remove(self, name: str) -> None:
        """Delete a file."""
        self._call("remove", name, lambda fs, path: fs.rm_file(path))

    def claim(self) -> Callable[[], None]:
        """Claim nothing: object stores have no locks, so two writers of one folder are the user's to avoid."""
        return lambda: None

    def _answer(self, name: str, start: int, end: int, answer: bytes | Exception) -> bytes:
        def data() -> bytes:
            if isinstance(answer, Exception):
                raise answer
            return answer

        found = _foreign("read", data, url=self.url_of(name), secrets=self._secrets)
        self._check_length(name, found, start, end)
        return found

    def _check_length(self, name: str, data: bytes, start: int, end: int | None) -> None:
        if end is not None and len(data) != end - start:
            cause = f"{len(data)} bytes came for [{start}, {end}): the file ends there or the answer was cut"
            raise StoreError(self.url_of(name), "read", cause)

    def _call(self, action: str, name: str, act: Callable[[Any, str], T]) -> T:
        def run() -> T:
            fs, root = self._file_system()
            return act(fs, f"{root}/{name}" if name else root)

        return _foreign(action, run, url=self.url_of(name) if name else self.url, secrets=self._secrets)

    def _file_system(self) -> tuple[Any, str]:
        if self._opened is None or self._opened[0] != os.getpid():
            from fsspec.core import url_to_fs  # noqa: PLC0415 - opened at first use

            fs, root = url_to_fs(self.url, **self._options)
            self._opened = os.getpid(), fs, root.rstrip("/")
        return self._opened[1:]


def _foreign(action: str, act: Callable[[], T], *, url: str, secrets: Sequence[str]) -> T:
    try:
        return act()
    except FileNotFoundError as exc:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url) from exc
    except Exception as exc:  # file systems raise whatever their client library does
        told = f"{type(exc).__name__}: {exc}"
        error = StoreError(url, action, redact(told, secrets), exc.errno if isinstance(exc, OSError) else None)
        if error.cause != told:
            raise error from None  # a traceback would tell what the message does not
        raise error from exc
