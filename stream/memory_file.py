"""Memory files: shared memory without a name, handed to another process by its descriptor.

A memory file (memfd) lives as long as a descriptor or a mapping of it, so nothing of it survives the processes that
use it, and the size of /dev/shm does not matter. It is sealed: nobody can make it smaller under a mapping, which would
kill the reader of the mapping (SIGBUS). Its pages are allocated when it is created, so neither the first use in the
middle of a step nor a lack of memory comes as a surprise.
"""

import fcntl
import mmap
import os
from collections.abc import Callable

from stream.errors import SlabError

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def create(size: int) -> int:
    """Return the descriptor of a new sealed memory file of `size` bytes, all zero. The caller closes it.

    Raises:
        SlabError: the system refuses (no free descriptor, a limit), or the machine has less memory.
    """
    fd, where = -1, f"memory file of {size} bytes"
    if size > _machine_bytes():  # the kernel would not refuse it, but kill processes until it fits
        raise SlabError(where, "it is larger than this machine's memory; give the loader a smaller memory budget")
    try:
        fd = os.memfd_create("stream", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.posix_fallocate(fd, 0, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except OSError as exc:
        _close(fd)
        raise SlabError(where, f"the system refuses it ({exc}); give the loader a smaller memory budget") from exc
    except BaseException:
        _close(fd)
        raise
    return fd


def map_writable(fd: int) -> mmap.mmap:
    """Return a writable mapping of a memory file whose pages are all there. The descriptor stays the caller's.

    Raises:
        SlabError: the system refuses.
    """
    return _mapped(fd, mmap.PROT_READ | mmap.PROT_WRITE)


def map_foreign(fd: int, *, writable: bool) -> mmap.mmap:
    """Return a mapping of another process's memory file. The descriptor stays the caller's.

    Raises:
        SlabError: it is no memory file, it is not sealed, or the system refuses.
    """
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as exc:
        raise SlabError("descriptor from another process", f"it is no memory file ({exc})") from exc
    if seals & _SEALS != _SEALS:
        problem = f"its size is not sealed (seals {seals:#x}), so reading it could kill this process; it was not mapped"
        raise SlabError("memory file from another process", problem)
    return _mapped(fd, mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))


def _machine_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _mapped(fd: int, access: int) -> mmap.mmap:
    try:
        return mmap.mmap(fd, os.fstat(fd).st_size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=access)
    except (OSError, ValueError) as exc:
        raise SlabError("memory file", f"it cannot be mapped ({exc})") from exc


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)


class MemoryFile:
    """A memory file of this process.

    Attributes:
        number: What both sides call it.
        size: Its bytes.
        fd: Its descriptor; -1 once closed.
        map: Its writable mapping.
        known: Whether the other side has got the descriptor.
        alias: What a helper process calls it, once it was told of it.
    """

    __slots__ = ("_forget", "alias", "fd", "known", "map", "number", "size")

    def __init__(self, number: int, size: int) -> None:
        self.number, self.size, self.known = number, size, False
        self.alias: int | None = None
        self._forget: Callable[[int], object] | None = None
        self.fd = create(size)
        try:
            self.map = map_writable(self.fd)
        except BaseException:
            os.close(self.fd)
            raise

    def share(self, add: Callable[[int], int], forget: Callable[[int], object]) -> int:
        """Return its `alias`: what `add` returned for its descriptor when it was first asked; `close` forgets it."""
        if self.alias is None:
            self.alias, self._forget = add(self.fd), forget
        return self.alias

    def close(self) -> None:
        """Give the memory back once no array of it lives: who still fills one writes where nobody looks. Idempotent."""
        fd, self.fd = self.fd, -1
        _close(fd)
        forget, self._forget = self._forget, None
        if forget is not None and self.alias is not None:
            forget(self.alias)
