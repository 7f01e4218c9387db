"""Read a file of a store by ranges, a little ahead: who walks a tar asks for its headers, not for all of it.

Invariants: one window of at most 1 MiB is held; nothing is asked for behind the end that the file had at first.
"""

from shards.store import Store

AHEAD = 2**20
"""Bytes that one read brings, and the most that may be taken at once."""
_HEAD = 8 * 2**10
"""Bytes that one read brings far behind the last: a header, and the small members that often follow it."""


class Blocks:
    """The bytes of one file. Not thread-safe.

    Raises:
        FileNotFoundError, StoreError: from every method: the file is gone, was cut meanwhile, or cannot be read.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name
        self.size = store.size(name)
        self._start, self._window = 0, b""

    def take(self, at: int, length: int) -> bytes:
        """Return the bytes `[at, at + length)`, fewer where the file ends. `length` is at most 1 MiB."""
        end = min(at + length, self.size)
        if at >= end:
            return b""
        if not (self._start <= at and end <= self._start + len(self._window)):
            self._read(at, end)
        return self._window[at - self._start : end - self._start]

    def _read(self, at: int, end: int) -> None:
        near = self._start <= at <= self._start + len(self._window) + self._store.gap_bytes
        stop = min(max(end, at + (AHEAD if near else _HEAD)), self.size)
        self._window = b""  # so that two windows are never held
        self._start, self._window = at, self._store.read(self._name, start=at, end=stop)
