"""A folder on a local disk: positioned reads, vectored writes, files renamed into place.

Invariants: reads share no file position and no lock, so threads and forked processes may read at once; a descriptor
closes when its last user lets go; a file has its `.part` name until it is committed.
"""

import errno
import fcntl
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeAlias, TypeVar

from shards.errors import StoreError

Buffer: TypeAlias = bytes | bytearray | memoryview
T = TypeVar("T")

PART = ".part"
"""What a local file's name ends with until it is committed."""
_OPEN_FILES = 64
_NOT_CACHED = frozenset({errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
"""What reading without waiting ends with where the page cache has it not, or the system cannot read so."""
_MAX_BUFFERS = 1024
"""The most buffers that Linux takes in one writev (IOV_MAX)."""


class _Handle:
    """A file descriptor that closes when its last user lets go, so that eviction never closes one in use."""

    def __init__(self, path: str) -> None:
        self.fd = -1
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # at the interpreter's exit there is no `os`
        if self.fd >= 0:
            close(self.fd)


class LocalStore:
    """A folder on a local disk. Thread-safe: reads are positioned, up to 64 files stay open."""

    gap_bytes = 8 * 2**10
    max_read_bytes = 8 * 2**20
    in_place = True

    def __init__(self, path: str) -> None:
        self.url = os.path.abspath(path)  # noqa: PTH100 - strings all the way: this is a hot path
        self._handles: OrderedDict[str, _Handle] = OrderedDict()

    def __reduce__(self) -> tuple[type["LocalStore"], tuple[str]]:
        return LocalStore, (self.url,)

    def __repr__(self) -> str:
        return f"LocalStore({self.url!r})"

    def url_of(self, name: str) -> str:
        """Return the full path of a file."""
        return f"{self.url}/{name}"

    def size(self, name: str) -> int:
        """Return a file's size in bytes."""
        path = self.url_of(name)
        return int(_local("size of", path, os.stat, path).st_size)

    def read(self, name: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Return exactly the bytes `[start, end)`, to the end of the file without `end`."""
        path = self.url_of(name)
        handle = _local("open", path, self._open, path)
        stop = os.fstat(handle.fd).st_size if end is None else end
        length = max(stop - start, 0)
        data = _local("read", path, os.pread, handle.fd, length, start)
        if len(data) == length:
            return data
        rest = bytearray(length)  # rare: the system caps one read at 2 GiB, a signal may cut it
        self.read_into(name, memoryview(rest), start=start)
        return bytes(rest)

    def read_many(self, wanted: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Return the ranges (name, start, end) in their order."""
        return [self.read(name, start=start, end=end) for name, start, end in wanted]

    def read_into(self, name: str, buffer: memoryview, *, start: int) -> None:
        """Fill the buffer with the bytes from `start` on, by preadv."""
        self.read_ranges_into(name, buffer, [(start, start + len(buffer))])

    def read_ranges_into(
        self, name: str, buffer: memoryview, ranges: Sequence[tuple[int, int]], *, wait: bool = True
    ) -> bool:
        """Fill the buffer with ranges of a file, one behind the other, by preadv.

        Without `wait` only if they are in the page cache: False, and some of the buffer filled, if they are not or the
        file system does not tell.
        """
        path = self.url_of(name)
        if not wait and path not in self._handles:
            return False  # to open it may have to wait
        handle = _local("open", path, self._open, path)
        try:
            return _read_ranges(handle.fd, buffer, ranges, flags=0 if wait else os.RWF_NOWAIT)
        except _CutError as exc:
            raise StoreError(path, "read", f"{exc}: the file ends there, it was cut") from None
        except OSError as exc:
            if not wait and exc.errno in _NOT_CACHED:
                return False
            raise _store_error(path, "read", exc) from exc

    def names(self) -> list[str]:
        """Return the names of all entries of the folder, sorted; an absent folder has none."""
        try:
            return sorted(_local("list", self.url, os.listdir, self.url))
        except FileNotFoundError:
            return []

    def create(self, name: str) -> "LocalPending":
        """Begin a file as `<name>.part` beside its final name; makes the folder if it is absent."""
        _local("make folder", self.url, partial(os.makedirs, exist_ok=True), self.url)
        path = self.url_of(name)
        return LocalPending(path, forget=partial(self._handles.pop, path, None))

    def claim(self) -> Callable[[], None]:
        """Keep other writers out of the folder by a lock that the kernel frees when its holder dies (flock)."""
        _local("make folder", self.url, partial(os.makedirs, exist_ok=True), self.url)
        fd: int = _local("open", self.url, os.open, self.url, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(fd)
            raise StoreError(self.url, "write to", "another process is writing a dataset there", exc.errno) from exc
        return partial(os.close, fd)

    def remove(self, name: str) -> None:
        """Delete a file."""
        path = self.url_of(name)
        _local("remove", path, os.unlink, path)
        self._handles.pop(path, None)

    def _open(self, path: str) -> _Handle:
        """Open, or take what is open. Each step is atomic; no lock, since a fork could copy a held one."""
        handle = self._handles.pop(path, None) or _Handle(path)
        self._handles[path] = handle
        if len(self._handles) > _OPEN_FILES:
            with suppress(KeyError):  # other threads may have emptied it
                self._handles.popitem(last=False)
        return handle


class LocalPending:
    """A local file under its `.part` name; synced to disk when closed, renamed into place by commit.

    `forget` is called after the rename: what was open under that name is another file now.
    """

    def __init__(self, path: str, *, forget: Callable[[], object]) -> None:
        self._path, self._part, self._forget = path, path + PART, forget
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._fd: int = _local("create", self._part, os.open, self._part, flags, 0o644)
        self._exists = True

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Append the buffers by writev, 1,024 at a time; a short write goes on where it stopped."""
        for first in range(0, len(buffers), _MAX_BUFFERS):
            self._write(buffers[first : first + _MAX_BUFFERS])

    def _write(self, buffers: Sequence[Buffer]) -> None:
        written = _local("write", self._part, os.writev, self._fd, buffers)
        if written == sum(map(len, buffers)):
            return
        rest = memoryview(b"".join(buffers))[written:]
        while rest:
            rest = rest[_local("write", self._part, os.write, self._fd, rest) :]

    def close(self) -> None:
        """Sync to disk and close. Idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            try:
                _local("sync", self._part, os.fsync, fd)
            finally:
                os.close(fd)

    def commit(self) -> None:
        """Rename into place and sync the folder."""
        self.close()
        _local("rename", self._part, os.replace, self._part, self._path)
        self._exists = False
        self._forget()
        folder = os.open(os.path.dirname(self._path), os.O_RDONLY | os.O_CLOEXEC)  # noqa: PTH120 - see LocalStore
        try:
            _local("sync", self._path, os.fsync, folder)
        finally:
            os.close(folder)

    def discard(self) -> None:
        """Close without syncing and delete the `.part` file. Idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
        if self._exists:
            self._exists = False
            with suppress(FileNotFoundError):
                _local("remove", self._part, os.unlink, self._part)


class _CutError(Exception):
    """A file ends before a range does."""


def _read_ranges(fd: int, buffer: memoryview, ranges: Sequence[tuple[int, int]], *, flags: int) -> bool:
    """Fill the buffer; False if a read with flags came short, which one that may not wait does in a cold place."""
    at, read = 0, os.preadv
    for start, end in ranges:
        size = end - start
        done = count = read(fd, [buffer[at : at + size]], start, flags)
        while done < size:
            if count == 0:
                raise _CutError(f"{done} bytes came for [{start}, {end})")
            if flags:
                return False
            count = read(fd, [buffer[at + done : at + size]], start + done, flags)
            done += count
        at += size
    return True


def _local(action: str, path: str, act: Callable[..., T], *arguments: object) -> T:
    try:
        return act(*arguments)
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise _store_error(path, action, exc) from exc


def _store_error(path: str, action: str, exc: OSError) -> StoreError:
    return StoreError(path, action, os.strerror(exc.errno) if exc.errno else str(exc), exc.errno)
