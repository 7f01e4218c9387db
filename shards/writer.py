"""Write a dataset: samples into shards, indexes and a manifest, all invisible until everything is there.

Invariants: files have no final name before `close`; the manifest gets its name last and loses it first; after an
error or a death no file of this run looks finished; a writer whose store failed can only be thrown away; the bytes are
a pure function of what was added and of the options.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

from shards.errors import ManifestError, NameRuleError, OutputNotEmptyError
from shards.index import RowInfo
from shards.local import PART, Buffer
from shards.manifest import FILE_NAME, INDEX, Manifest, ShardInfo
from shards.open_shard import OpenShard
from shards.sample import check_key, check_suffix
from shards.store import PendingFile, Store
from shards.tar import MAX_MEMBER_BYTES

DEFAULT_SHARD_BYTES = 128 * 2**20
_MAX_NAME_BYTES = 64
_SIDE_FILE = re.compile(r"[A-Za-z0-9_\-]+(\.[A-Za-z0-9_\-]+)*")


class ShardWriter:
    """Writes samples into `<name>-%06d.tar` shards of a store.

    A context manager: leaving it normally closes (publishes), by an exception aborts; after an explicit `close` or
    `abort` leaving does nothing more. Remembers every key to keep them unique (about 100 bytes a sample). Not
    thread-safe.
    """

    def __init__(
        self, store: Store, name: str, *, shard_bytes: int = DEFAULT_SHARD_BYTES, replace: bool = False
    ) -> None:
        """Look at the output; writes nothing yet.

        A shard is closed before a sample would make its file larger than `shard_bytes`; a larger sample gets a shard
        of its own. With `replace`, a former dataset of the same name gives way when the new one is complete; files
        that are not the dataset's own stay.

        Raises:
            NameRuleError: the dataset's name breaks the rules for keys or is longer than 64 bytes.
            ValueError: `shard_bytes` is below 1.
            OutputNotEmptyError: the store holds files and `replace` is False, or another dataset's manifest.
            ManifestError: with `replace`, the store holds a manifest.json that is not one of ours, or a newer one.
        """
        check_key(name)
        if len(name) > _MAX_NAME_BYTES:
            raise NameRuleError(name, f"a dataset's name has at most {_MAX_NAME_BYTES} bytes")
        if shard_bytes < 1:
            raise ValueError(f"shard_bytes is {shard_bytes}; give the most bytes of a shard, for example 128 * 2**20")
        former = store.names()
        if former and not (replace and _owner(store, former) in (name, None)):
            raise OutputNotEmptyError(store.url, former)
        self._store, self._name, self._shard_bytes, self._former = store, name, shard_bytes, former
        self._open: OpenShard | None = None
        self._pending: list[tuple[str, PendingFile]] = []
        self._infos: list[ShardInfo] = []
        self._keys: set[str] = set()
        self._suffixes: set[str] = set()  # those found good
        self._ended = False
        self._manifest: Manifest | None = None
        self._release: Callable[[], None] | None = None
        self._creating: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._abandon(error)
        elif not self._ended:
            self.close()

    def add(self, key: str, parts: Mapping[str, Buffer], info: RowInfo) -> tuple[int, ...]:
        """Append a sample and return the xxh3_64 of each part, in their order.

        `parts` maps a suffix without its dot to the bytes; they are written in its order.

        Raises:
            NameRuleError: the key or a suffix breaks the rules, or the key was added before; the writer can go on.
            ValueError: there are no parts, a part has 8 GiB or more, or the writer has ended.
            StoreError: the store failed (disk full, ...); the writer has aborted, nothing of this run is published.
        """
        flat = {suffix: _flat(part) for suffix, part in parts.items()}
        self._check(key, flat)
        try:
            digests = self._shard_for(flat).append(key, flat, info)
        except BaseException as exc:
            self._abandon(exc)
            raise
        self._keys.add(key)
        return digests

    def add_file(self, name: str, data: bytes) -> None:
        """Add a small side file that is published together with the shards, under its own name.

        Raises:
            NameRuleError: the name is no plain file name, is or looks like one of the dataset's own, or was added
                before; the writer can go on.
            ValueError: the writer has ended.
            StoreError: the store failed; the writer has aborted.
        """
        self._check_open()
        if not _SIDE_FILE.fullmatch(name) or name == FILE_NAME or name.endswith((".tar", INDEX, PART)):
            raise NameRuleError(name, "a side file has a plain name and is no shard, index, manifest or .part file")
        if name in (known for known, _ in self._pending):
            raise NameRuleError(name, "a side file of this name was added before")
        try:
            self._put(name, data)
        except BaseException as exc:
            self._abandon(exc)
            raise

    def close(self) -> Manifest:
        """Publish everything: shards and indexes get their names, then the manifest gets its own. Idempotent.

        Raises:
            ValueError: the writer has aborted.
            StoreError: the store failed; nothing of this run is left. With `replace` the former dataset may be gone
                as well, which a note on the error then says.
        """
        if self._manifest is not None:
            return self._manifest
        self._check_open()
        try:
            self._finish_shard()
            manifest = Manifest(self._name, self._infos)
            self._put(FILE_NAME, manifest.to_bytes())
            self._remove_former()
            self._publish()
        except BaseException as exc:
            self._abandon(exc)
            raise
        self._ended, self._manifest = True, manifest
        self._give_up_claim()
        return manifest

    def _give_up_claim(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()

    def abort(self) -> None:
        """Throw away all that was not published. Idempotent; does nothing after `close`.

        Raises:
            StoreError: something could not be thrown away (the first such error; all files were tried).
        """
        self._ended = True
        failures: list[OSError] = []
        if self._creating is not None and self._creating not in dict(self._pending):
            with suppress(FileNotFoundError):
                self._store.remove(self._creating + PART)
        while self._pending:
            try:
                self._pending[-1][1].discard()
            except OSError as exc:
                failures.append(exc)
            self._pending.pop()
        self._give_up_claim()
        if failures:
            raise failures[0]

    def _abandon(self, error: BaseException) -> None:
        """Abort because of `error`, which stays the one that is told."""
        try:
            self.abort()
        except OSError as exc:
            error.add_note(f"Throwing away what was written failed too: {exc}")

    def _put(self, name: str, data: bytes) -> None:
        file = self._create(name)
        file.write([data])
        file.close()

    def _check_open(self) -> None:
        if self._ended:
            raise ValueError("this writer has been closed or aborted; make a new one")

    def _check(self, key: str, parts: Mapping[str, Buffer]) -> None:
        self._check_open()
        if not parts:
            raise ValueError(f"sample {key} has no parts; give at least one")
        for suffix, part in parts.items():
            if suffix not in self._suffixes:
                self._suffixes.add(check_suffix(suffix))
            if len(part) > MAX_MEMBER_BYTES:
                raise ValueError(f"part {key}.{suffix} has {len(part)} bytes, a tar takes {MAX_MEMBER_BYTES}; split it")
        if check_key(key) in self._keys:
            raise NameRuleError(key, "the dataset already holds a sample of this key")

    def _create(self, name: str) -> PendingFile:
        if self._release is None:
            self._release = self._store.claim()
            new = sorted(set(self._store.names()) - set(self._former))
            if new:  # another writer was here since we looked
                raise OutputNotEmptyError(self._store.url, new)
        self._creating = name  # an interrupt may come before the file is in _pending
        file = self._store.create(name)
        self._pending.append((name, file))
        self._creating = None
        return file

    def _shard_for(self, parts: Mapping[str, Buffer]) -> OpenShard:
        if self._open is not None and self._open.size_with(parts) > self._shard_bytes:
            self._finish_shard()
        if self._open is None:
            name = f"{self._name}-{len(self._infos):06d}.tar"
            self._open = OpenShard(self._create(name), name)
        return self._open

    def _finish_shard(self) -> None:
        done, self._open = self._open, None
        if done is not None:
            index, info = done.finish()
            self._put(info.index_url, index)
            self._infos.append(info)

    def _publish(self) -> None:
        """Give every file its name; if that fails or is interrupted, take the names given so far away again."""
        named: list[str] = []
        try:
            for name, file in self._pending:
                named.append(name)
                file.commit()
        except BaseException as exc:
            for name in reversed(named):
                self._take_back(name, exc)
            if FILE_NAME in self._former:
                exc.add_note("The former dataset of this name was already taken away: pack again.")
            raise
        self._pending.clear()

    def _take_back(self, name: str, error: BaseException) -> None:
        try:
            self._store.remove(name)
        except FileNotFoundError:
            return  # the one whose commit failed
        except OSError as exc:
            error.add_note(f"Taking {name} back failed too: {exc}")

    def _remove_former(self) -> None:
        """Take a former dataset of this name away: its manifest first, so that it never lists missing shards."""
        new = {name for name, _ in self._pending} | {name + PART for name, _ in self._pending}
        own = re.compile(rf"{self._name}-[0-9]{{6,}}\.tar(\.index)?(\.part)?")
        stale = [name for name in self._former if own.fullmatch(name) and name not in new]
        if FILE_NAME not in self._former:  # shards without a manifest may be anybody's
            stale = [name for name in stale if name.endswith(PART)]
        for name in [FILE_NAME, *stale] if FILE_NAME in self._former else stale:
            with suppress(FileNotFoundError):
                self._store.remove(name)


def _owner(store: Store, names: list[str]) -> str | None:
    """Return the name of the dataset whose manifest lies there, None without a manifest.

    One that cannot be read may be anybody's: it is never replaced.
    """
    if FILE_NAME not in names:
        return None
    url = store.url_of(FILE_NAME)
    try:
        return Manifest.from_bytes(store.read(FILE_NAME), url=url).name
    except ManifestError as exc:
        advice = "it may be somebody else's, so it is not replaced: choose another folder, or remove it yourself"
        raise ManifestError(url, exc.problem, advice=advice) from exc


def _flat(part: Buffer) -> Buffer:
    """Return the same bytes with one element per byte, so that `len` counts bytes (TypeError where they lie apart)."""
    if isinstance(part, memoryview) and not (part.ndim == part.itemsize == 1 and part.c_contiguous):
        return part.cast("B")
    return part
