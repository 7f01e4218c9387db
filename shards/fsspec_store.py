"""A folder on any fsspec file system. The only importer of fsspec.

A read that failed is tried again where that may help (retry.py), each range by itself: no range is put together from
two answers, so an object that is replaced meanwhile cannot come mixed.
"""

import errno
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from shards.errors import StoreError, redact, secrets_in
from shards.fsspec_files import FsspecPart, FsspecUpload
from shards.retry import Attempts, Patience, ShortAnswerError, tells_absence, what_failed, worth_another_try

T = TypeVar("T")
Range = tuple[str, int, int]
"""Bytes `[start, end)` of a file: (name, start, end)."""

_log = logging.getLogger("shards")
_S3, _WEB = ("s3://", "s3a://"), ("http://", "https://")
_CONNECT_S, _SILENCE_S = 10.0, 30.0
"""How long a server may take to answer a connection, and how long its answer may stand still, in seconds."""
_WARN_AFTER_S, _WARN_EVERY_S = 5.0, 10.0
_DEFAULT, _ONCE = Patience(), Patience(total_s=0.0)

_UPLOADS = frozenset({"s3", "s3a", "gs", "gcs"})
"""Protocols whose uncommitted files nobody sees (multipart uploads). Others show them at once (memory) or write them
through the system's temporary folder (local); there a `.part` name keeps them apart."""


class FsspecStore:
    """See `store.Store`. The file system is opened in the process and at the moment it is first used. Thread-safe."""

    gap_bytes = 256 * 2**10
    max_read_bytes = 16 * 2**20
    in_place = False

    def __init__(self, url: str, storage_options: Mapping[str, object], patience: Patience = _DEFAULT) -> None:
        bare = url.rstrip("/")
        self.url = url if bare.endswith(":") else bare
        self._options = dict(storage_options)
        self._secrets = secrets_in(self._options)
        self._patience = patience
        self._warned = -_WARN_EVERY_S
        self._opened: tuple[int, Any, str] | None = None

    def __reduce__(self) -> tuple[type["FsspecStore"], tuple[str, dict[str, object], Patience]]:
        return FsspecStore, (self.url, self._options, self._patience)

    def __repr__(self) -> str:
        return f"FsspecStore({self.url!r})"

    def url_of(self, name: str) -> str:
        """Return the full URL of a file."""
        return f"{self.url}/{name}"

    def size(self, name: str) -> int:
        """Return a file's size in bytes."""
        size = self._call("size of", name, lambda fs, path: fs.info(path)["size"], self._patience)
        if size is None:
            raise StoreError(self.url_of(name), "size of", "the server does not tell it")
        return int(size)

    def read(self, name: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Return exactly the bytes `[start, end)`, to the end of the file without `end`."""
        # Without an end nothing would tell an answer that was cut from a whole one
        return self.read_many([(name, start, self.size(name) if end is None else end)])[0]

    def read_many(self, wanted: Sequence[Range]) -> list[bytes]:
        """Return the ranges (name, start, end) in their order, concurrently where the file system can."""
        # An empty range is no valid request to most servers
        left = list(dict.fromkeys(span for span in wanted if span[2] > span[1]))
        found: dict[Range, bytes] = {}
        attempts = self._attempts("read", self.url_of(left[0][0]) if left else self.url, self._patience)
        while left:
            failed: dict[Range, Exception] = {}
            for span, answer in zip(left, self._fetch(left), strict=True):
                problem = answer if isinstance(answer, Exception) else self._checked(span, answer)
                if isinstance(answer, bytes) and problem is None:
                    found[span] = answer
                elif problem is not None:
                    failed[span] = problem
            if len(failed) < len(left):
                attempts.progressed()
            if failed:
                self._wait(failed, attempts)
            left = list(failed)
        return [found.get(span, b"") for span in wanted]

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

        def listed(fs: Any, path: str) -> list[str]:  # noqa: ANN401 - fsspec has no types
            return list(fs.ls(path, detail=False, refresh=True))

        try:
            paths = self._call("list", "", listed, self._patience)
        except FileNotFoundError:
            return []
        return sorted(name for name in (path.rstrip("/").rpartition("/")[2] for path in paths) if name)

    def create(self, name: str) -> FsspecPart | FsspecUpload:
        """Begin a file: as a multipart upload where the file system has such, else as `<name>.part`."""

        def begin(fs: Any, path: str) -> FsspecPart | FsspecUpload:  # noqa: ANN401 - fsspec has no types
            fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            guard = partial(_foreign, url=self.url_of(name), secrets=self._secrets)
            protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
            if protocols & _UPLOADS:
                file = fs.open(path, "wb", autocommit=False)
                fs.transaction.files.remove(file)  # it is ours alone to commit; there it would be kept for good
                return FsspecUpload(file, guard)
            return FsspecPart(fs, path, guard)

        return self._call("create", name, begin, _ONCE)

    def remove(self, name: str) -> None:
        """Delete a file."""
        self._call("remove", name, lambda fs, path: fs.rm_file(path), _ONCE)

    def claim(self) -> Callable[[], None]:
        """Claim nothing: object stores have no locks, so two writers of one folder are the user's to avoid."""
        return lambda: None

    def _fetch(self, spans: Sequence[Range]) -> list[bytes | Exception]:
        """Ask once for each range; what fails stands in its place."""
        starts, ends = [start for _, start, _ in spans], [end for _, _, end in spans]
        try:
            fs, root = self._file_system()
            return list(fs.cat_ranges([f"{root}/{name}" for name, _, _ in spans], starts, ends, on_error="return"))
        except Exception as exc:  # noqa: BLE001 - as that of each range
            return [exc] * len(spans)

    def _checked(self, span: Range, answer: bytes) -> Exception | None:
        """Return what is wrong with an answer.

        Raises:
            StoreError: the file has no such bytes, or the server gives others than it was asked for.
        """
        name, start, end = span
        if len(answer) == end - start:
            return None
        came = f"{len(answer)} bytes came for [{start}, {end})"
        if len(answer) > end - start:
            raise StoreError(self.url_of(name), "read", f"{came}: the server does not serve ranges")
        size = self.size(name)
        if size < end:
            raise StoreError(self.url_of(name), "read", f"{came}: the file ends at byte {size}")
        return ShortAnswerError(f"{came}: the answer was cut")

    def _wait(self, failed: Mapping[Range, Exception], attempts: Attempts) -> None:
        """Wait before what failed is asked for again; raise what is not worth it, or the first once time is up."""
        spans = list(failed)
        name, start, end = next((span for span in spans if not worth_another_try(failed[span])), spans[0])
        error = failed[name, start, end]

        def again() -> None:
            attempts.failed(error)

        where = f" in bytes [{start}, {end}){attempts.said}"
        _foreign("read", again, url=self.url_of(name), secrets=self._secrets, where=where)

    def _call(self, action: str, name: str, act: Callable[[Any, str], T], patience: Patience) -> T:
        url = self.url_of(name) if name else self.url
        attempts = self._attempts(action, url, patience)
        while True:
            try:
                fs, root = self._file_system()
                return act(fs, f"{root}/{name}" if name else root)
            except Exception as exc:  # noqa: BLE001 - told below
                _foreign(action, partial(attempts.failed, exc), url=url, secrets=self._secrets, where=attempts.said)

    def _attempts(self, action: str, url: str, patience: Patience) -> Attempts:
        def tell(error: BaseException, since: float, left: float) -> None:
            told = redact(f"{type(error).__name__}: {error}", self._secrets)
            _log.info("%s %s failed and is tried again: %s", action, url, told)
            now = time.monotonic()
            if since >= _WARN_AFTER_S and now - self._warned >= _WARN_EVERY_S:
                self._warned = now
                _log.warning("%s %s has failed for %.0f s (%s); trying for %.0f s more", action, url, since, told, left)

        return Attempts(patience, tell=tell)

    def _file_system(self) -> tuple[Any, str]:
        if self._opened is None or self._opened[0] != os.getpid():
            from fsspec.core import url_to_fs  # noqa: PLC0415 - opened at first use

            fs, root = url_to_fs(self.url, **_limited(self.url, self._options))
            if self.url.startswith(_S3):
                fs.retries = 1  # its own instance, see `_limited`
            self._opened = os.getpid(), fs, root.rstrip("/")
        return self._opened[1:]


def _limited(url: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with limits of ours where the user gave none.

    A web server that hangs would be waited for 5 minutes. s3fs and botocore try again too, 5 times each: a request of
    theirs would last longer than the time that is given to all tries.
    """
    if url.startswith(_S3):
        given = dict(options.get("config_kwargs") or {})
        limits: dict[str, Any] = {"retries": {"max_attempts": 0}, "connect_timeout": _CONNECT_S, **given}
        return {"skip_instance_cache": True, **options, "config_kwargs": {"read_timeout": _SILENCE_S, **limits}}
    if url.startswith(_WEB):
        from aiohttp import ClientTimeout  # noqa: PLC0415 - what fsspec's web file system is made of

        given = dict(options.get("client_kwargs") or {})
        timeout = ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S)
        return {**options, "client_kwargs": {"timeout": timeout, **given}}
    return dict(options)


def _foreign(action: str, act: Callable[[], T], *, url: str, secrets: Sequence[str], where: str = "") -> T:
    try:
        return act()
    except Exception as exc:  # file systems raise whatever their client library does
        if isinstance(exc, StoreError):
            raise
        cause = what_failed(exc)
        if tells_absence(cause):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url) from exc
        told = f"{type(cause).__name__}: {cause}"
        number = cause.errno if isinstance(cause, OSError) else None
        error = StoreError(url, action, redact(told, secrets) + where, number)
        if error.cause != told + where:
            raise error from None  # a traceback would tell what the message does not
        raise error from exc
