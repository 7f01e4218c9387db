"""Check shards of a packed dataset against its manifest and indexes: sizes, rows, and every checksum.

A shard is read once from its beginning to its end, 4 MiB at a time.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from xxhash import xxh3_64, xxh3_128, xxh3_128_hexdigest

from shards.errors import IndexFormatError
from shards.findings import Findings, find
from shards.grouped import text_of
from shards.index import ShardIndex
from shards.lint import Decoder, ShardLint, lint_shard, not_read
from shards.manifest import FILE_NAME, INDEX, Manifest, ShardInfo
from shards.members import Member
from shards.store import Store

_CHUNK = 4 * 2**20
_TOGETHER = "take shard, index and manifest from one packing"
_AGAIN = "fetch the shard again, or pack it again"


class _Part(NamedTuple):
    """A part as the index has it; `name` is the member's."""

    offset: int
    size: int
    name: str
    checksum: int


def lint_packed(store: Store, info: ShardInfo, *, decoder: Decoder | None = None) -> ShardLint:
    """Check a shard that a manifest lists, with its index; what is wrong with them is in the findings."""
    members: list[tuple[int, int, str]] = []

    def seen(member: Member) -> None:
        members.append((member.offset, member.size, text_of(member)))

    shard = lint_shard(store, info.url, decoder=decoder, seen=seen)
    try:
        parts = _parts(store, info, shard.found)
    except OSError as exc:
        shard.found.add(not_read(store.url_of(info.index_url), exc))
        parts = None
    if parts is not None:
        _compare(parts, members, shard)
    try:
        if shard.read:
            _check_bytes(store, info, parts or [], shard)
    except OSError as exc:  # in data that the scan did not read
        shard.found.add(not_read(shard.url, exc))
    return shard


def lint_folder(store: Store, manifest: Manifest) -> Findings:
    """Say which files of a folder its manifest does not list; those that lack show when they are read."""
    found = Findings()
    listed = {name for info in manifest.shardlist for name in (info.url, info.index_url)}
    for name in store.names():
        if name not in listed and name.endswith((".tar", ".tar" + INDEX, ".part")):
            words = f"{FILE_NAME} does not list it, so it is never read: left over from another packing? remove it"
            found.add(find("surplus-file", store.url_of(name), words))
    return found


def _parts(store: Store, info: ShardInfo, found: Findings) -> list[_Part] | None:
    """The parts of a shard's index in the order of their bytes; None where it cannot be trusted."""
    url = store.url_of(info.index_url)
    data = store.read(info.index_url)
    try:
        index = ShardIndex(data, url=url)
        parts = sorted(_rows(index))
    except IndexFormatError as exc:
        found.add(find("bad-index", url, f"{exc.problem}; {exc.advice}"))
        return None
    except UnicodeDecodeError:
        found.add(find("bad-index", url, f"a key in it is not UTF-8; {_AGAIN}"))
        return None
    if (len(data), xxh3_128_hexdigest(data)) != (info.index_filesize, info.index_xxh3_128):
        found.add(find("bad-index", url, f"it is not the index that the manifest lists; {_TOGETHER}"))
    said = (index.shard, index.shard_bytes, index.shard_xxh3_128, len(index), index.captions_total)
    if said != (info.url, info.filesize, info.xxh3_128, info.nsamples, info.captions):
        words = "name, size, digest, rows or captions of its shard are not those of the manifest"
        found.add(find("bad-index", url, f"{words}; {_TOGETHER}"))
    return parts


def _rows(index: ShardIndex) -> Iterator[_Part]:
    for row, key in enumerate(index.keys()):
        for suffix in index.suffixes:
            offset, size = index.span(row, suffix)
            if offset:
                yield _Part(offset, size, f"{key}.{suffix}", index.checksum(row, suffix))


def _compare(parts: list[_Part], members: list[tuple[int, int, str]], shard: ShardLint) -> None:
    """Compare the parts of an index with the members that were found."""
    said = {part[:3] for part in parts}
    for offset, size, name in (member for member in members if member not in said):
        words = f"the index has no such part of {size} bytes at byte {offset}, so it is never read by row; {_TOGETHER}"
        shard.found.add(find("wrong-rows", shard.url, words, byte=offset, name=name))
    if shard.faults:
        return  # they tell why members are not found
    there = set(members)
    for offset, size, name in (part[:3] for part in parts if part[:3] not in there):
        words = f"the index has it, with {size} bytes at this byte, but readers find no such member there; {_AGAIN}"
        shard.found.add(find("wrong-rows", shard.url, words, byte=offset, name=name))


def _check_bytes(store: Store, info: ShardInfo, parts: list[_Part], shard: ShardLint) -> None:
    """Compare the bytes of a shard with the checksums of its parts, and with its own."""
    size = store.size(info.url)
    if size != info.filesize:
        words = f"it has {size} bytes, the manifest says {info.filesize}: it was cut or is of another packing; {_AGAIN}"
        shard.found.add(find("wrong-size", shard.url, words, byte=min(size, info.filesize)))
    whole = xxh3_128()
    there, sound = [part for part in parts if part.offset + part.size <= size], True
    for part, digest in _digests(_chunks(store, info.url, size, whole), there):
        if digest != part.checksum:
            sound = False
            words = f"its bytes are not those that were packed, and every reader by row fails here; {_AGAIN}"
            shard.found.add(find("wrong-checksum", shard.url, words, byte=part.offset, name=part.name))
    if sound and size == info.filesize and whole.hexdigest() != info.xxh3_128:
        words = "its bytes are not those that were packed: headers or padding differ, unless its index is wrong too"
        shard.found.add(find("wrong-digest", shard.url, f"{words}; {_AGAIN}"))


def _chunks(store: Store, name: str, size: int, whole: xxh3_128) -> Iterator[tuple[int, bytes]]:
    """Yield (byte, data) of a file from beginning to end, and add all of it to `whole`."""
    for at in range(0, size, _CHUNK):
        data = store.read(name, start=at, end=min(at + _CHUNK, size))
        whole.update(data)
        yield at, data


def _digests(chunks: Iterable[tuple[int, bytes]], parts: list[_Part]) -> Iterator[tuple[_Part, int]]:
    """Yield (part, xxh3_64 of its bytes) for parts in the order of their bytes, while the chunks pass by once.

    All parts must lie within the chunks. The digest is -1 of one that begins in bytes that went by with one before it.
    """
    waiting = iter(parts)
    part, digest, done = next(waiting, None), xxh3_64(), 0
    for at, data in chunks:
        end = at + len(data)
        while part is not None and part.offset + done <= end:
            if part.offset + done < at:
                yield part, -1  # it begins in bytes that went by
                part, digest, done = next(waiting, None), xxh3_64(), 0
                continue
            piece = data[part.offset + done - at : part.offset + part.size - at]
            digest.update(piece)
            done += len(piece)
            if done < part.size:
                break
            yield part, digest.intdigest()
            part, digest, done = next(waiting, None), xxh3_64(), 0
