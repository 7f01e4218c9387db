"""Where files live: a folder on a local disk, or any fsspec URL.

Invariants: nothing is opened before its first use; a store works after fork (local reads are positioned, fsspec file
systems are opened again in the new process); nothing is visible under a file's name before `commit`; every foreign
error leaves as FileNotFoundError or StoreError, without the storage options' secrets; a remote read that failed is
tried again where that may help (retry.py), each range by itself, and what came is never put together from two answers.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from shards.fsspec_store import FsspecStore
from shards.local import Buffer, LocalStore
from shards.retry import Patience

_DEFAULT = Patience()


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


def open_store(
    url: str, *, storage_options: Mapping[str, object] | None = None, patience: Patience = _DEFAULT
) -> Store:
    """Return the store of a folder: a path, `file://...`, or any URL that fsspec knows (`s3://bucket/folder`).

    `storage_options` goes to the fsspec file system as it is (keys, endpoint, ...); it never appears in a message.
    `patience` says how long a remote read that fails is tried again.
    """
    if url.startswith("file://"):
        url = url.removeprefix("file://")
    if "://" in url or "::" in url:
        return FsspecStore(url, storage_options or {}, patience)
    return LocalStore(url)
