"""Write a dataset: samples into shards, indexes and a manifest, all invisible until everything is there.

Invariants: files have no final name before `close`; the manifest gets its name last; after an error or a death no
file of this run looks finished; the bytes are a pure function of what was added and of the options.
"""

from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

from xxhash import xxh3_64_intdigest, xxh3_128, xxh3_128_hexdigest

from shards.errors import NameRuleError, OutputNotEmptyError
from shards.index import IndexBuilder, RowInfo
from shards.local import PART, Buffer
from shards.manifest import FILE_NAME, Manifest, ShardInfo
from shards.sample import check_key, check_suffix
from shards.store import PendingFile, Store
from shards.tar import BLOCK, END, HeaderTemplate, ending, padded, padding

DEFAULT_SHARD_BYTES = 128 * 2**20
INDEX = ".index"
_MAX_NAME_BYTES = 64


class _OpenShard:
    """The shard that is being written."""

    def __init__(self, file: PendingFile, name: str) -> None:
        self.file, self.name = file, name
        self.end = 0
        self.rows = IndexBuilder()
        self.digest = xxh3_128()
        self.captions = 0

    def write(self, buffers: list[Buffer]) -> None:
        self.file.write(buffers)
        for buffer in buffers:
            self.digest.update(buffer)


class ShardWriter:
    """Writes samples into `<name>-%06d.tar` shards of a store.

    A context manager: leaving it normally closes (publishes), by an exception aborts. Remembers every key to keep
    them unique (about 100 bytes a sample). Not thread-safe.
    """

    def __init__(
        self, store: Store, name: str, *, shard_bytes: int = DEFAULT_SHARD_BYTES, replace: bool = False
    ) -> None:
        """Look at the output; writes nothing yet.

        A shard is closed before a sample would carry it over `shard_bytes`; a larger sample gets a shard of its own.
        With `replace`, a former dataset of the same name gives way when the new one is complete.

        Raises:
            NameRuleError: the dataset's name breaks the rules for keys or is longer than 64 bytes.
            OutputNotEmptyError: the store holds files and `replace` is False.
        """
        check_key(name)
        if len(name) > _MAX_NAME_BYTES:
            raise NameRuleError(name, f"a dataset's name has at most {_MAX_NAME_BYTES} bytes")
        former = store.names()
        if former and not replace:
            raise OutputNotEmptyError(store.url, former)
        self._store, self._name, self._shard_bytes, self._former = store, name, shard_bytes, former
        self._template = HeaderTemplate()
        self._open: _OpenShard | None = None
        self._pending: list[tuple[str, PendingFile]] = []
        self._infos: list[ShardInfo] = []
        self._keys: set[str] = set()
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def add(self, key: str, parts: Mapping[str, Buffer], info: RowInfo) -> tuple[int, ...]:
        """Append a sample and return the xxh3_64 of each part, in their order.

        `parts` maps a suffix without its dot to the bytes; they are written in its order.

        Raises:
            NameRuleError: the key or a suffix breaks the rules, or the key was added before.
            ValueError: there are no parts, or the writer has ended.
            StoreError: the store failed (disk full, ...); nothing of this run will be published.
        """
        self._check(key, parts)
        lengths = [len(part) for part in parts.values()]
        place = self._shard_for(sum(BLOCK + padded(length) for length in lengths))
        buffers: list[Buffer] = []
        spans: dict[str, tuple[int, int, int]] = {}
        at = place.end
        for (suffix, part), length in zip(parts.items(), lengths, strict=True):
            checksum = xxh3_64_intdigest(part)
            buffers += (self._template.header(f"{key}.{suffix}".encode(), length), part, padding(length))
            spans[suffix] = (at + BLOCK, length, checksum)
            at += BLOCK + padded(length)
        place.write(buffers)
        place.end = at
        place.rows.add(key, spans, info)
        place.captions += len(info.caption_bytes)
        return tuple(checksum for _, _, checksum in spans.values())

    def add_file(self, name: str, data: bytes) -> None:
        """Add a small side file that is published together with the shards, under its own name."""
        file = self._create(name)
        file.write([data])
        file.close()

    def close(self) -> Manifest:
        """Publish everything: shards and indexes get their names, then the manifest gets its own.

        Raises:
            StoreError: the store failed; what was not yet published is thrown away.
        """
        try:
            self._finish_shard()
            manifest = Manifest(self._name, self._infos)
            self.add_file(FILE_NAME, manifest.to_bytes())
            self._remove_former()
            self._publish()
        except BaseException:
            self.abort()
            raise
        self._ended = True
        return manifest

    def abort(self) -> None:
        """Throw away all that was not published. Idempotent."""
        self._ended = True
        for _, file in self._pending:
            file.discard()
        self._pending.clear()

    def _check(self, key: str, parts: Mapping[str, Buffer]) -> None:
        if self._ended:
            raise ValueError("this writer has been closed or aborted; make a new one")
        if not parts:
            raise ValueError(f"sample {key} has no parts; give at least one")
        for suffix in parts:
            check_suffix(suffix)
        if key in self._keys:
            raise NameRuleError(key, "the dataset already holds a sample of this key")
        self._keys.add(check_key(key))

    def _create(self, name: str) -> PendingFile:
        file = self._store.create(name)
        self._pending.append((name, file))
        return file

    def _shard_for(self, size: int) -> _OpenShard:
        if self._open is not None and self._open.end + size + len(END) > self._shard_bytes:
            self._finish_shard()
        if self._open is None:
            name = f"{self._name}-{len(self._infos):06d}.tar"
            self._open = _OpenShard(self._create(name), name)
        return self._open

    def _finish_shard(self) -> None:
        place, self._open = self._open, None
        if place is None:
            return
        last = ending(place.end)
        place.write([last])
        place.file.close()
        digest, size = place.digest.hexdigest(), place.end + len(last)
        index = place.rows.to_bytes(shard=place.name, shard_bytes=size, shard_xxh3_128=digest)
        self.add_file(place.name + INDEX, index)
        self._infos.append(
            ShardInfo(
                url=place.name,
                nsamples=len(place.rows),
                filesize=size,
                captions=place.captions,
                xxh3_128=digest,
                index_url=place.name + INDEX,
                index_filesize=len(index),
                index_xxh3_128=xxh3_128_hexdigest(index),
            )
        )

    def _publish(self) -> None:
        """Give every file its name; if that fails or is interrupted, take the names given so far away again."""
        named: list[str] = []
        try:
            for name, file in self._pending:
                named.append(name)
                file.commit()
        except BaseException:
            for name in named:
                with suppress(FileNotFoundError):
                    self._store.remove(name)
            raise

    def _remove_former(self) -> None:
        """Take a former dataset of this name away: its manifest first, so that it never lists missing shards."""
        new = {name for name, _ in self._pending} | {name + PART for name, _ in self._pending}
        stale = [name for name in self._former if name.startswith(f"{self._name}-") and name not in new]
        stale = [name for name in stale if name.endswith((".tar", ".tar" + INDEX, PART))]
        if FILE_NAME in self._former:
            self._store.remove(FILE_NAME)
        for name in stale:
            self._store.remove(name)
