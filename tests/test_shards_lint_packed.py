"""Packed shards against their manifest and index: each fault is told, and of a sound dataset nothing is."""

import random

import pytest
from xxhash import xxh3_64_intdigest

from datasets_made import make_dataset, make_rows
from shards import lint_packed as module
from shards.errors import StoreError
from shards.lint_packed import _digests, _Part, lint_folder, lint_packed
from shards.manifest import FILE_NAME, Manifest
from shards.store import open_store

PLACES = pytest.mark.parametrize("place", [0, 1, 2], ids=["first", "middle", "last"])


@pytest.fixture
def folder(tmp_path):
    make_dataset(tmp_path, make_rows(60), shard_bytes=40 * 2**10)
    return tmp_path


def lint(folder) -> list[tuple[str, str, int | None, str]]:
    """(code, name of the file, byte, member) of each finding."""
    store = open_store(str(folder))
    manifest = Manifest.from_bytes((folder / FILE_NAME).read_bytes(), url="manifest")
    assert len(manifest.shardlist) >= 3
    found = [f for info in manifest.shardlist for f in lint_packed(store, info).found.listed()]
    found += lint_folder(store, manifest).listed()
    return [(f.code, f.url.rpartition("/")[2], f.byte, f.name) for f in found]


def shard(folder, place: int):
    paths = sorted(folder.glob("*.tar"))
    return paths[(0, len(paths) // 2, -1)[place]]


def index(folder, place: int):
    path = shard(folder, place)
    return path.with_name(path.name + ".index")


def change(path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_of_a_sound_dataset_nothing_is_told(folder):
    assert lint(folder) == []


def test_parts_longer_than_what_is_read_at_once_are_checked(folder, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", 100)
    assert lint(folder) == []
    change(shard(folder, 1), 512)
    assert [code for code, *_ in lint(folder)] == ["wrong-checksum"]


@PLACES
def test_a_changed_part_is_told(folder, place):
    path = shard(folder, place)
    change(path, 512)
    ((code, name, byte, member),) = lint(folder)
    assert (code, name, byte) == ("wrong-checksum", path.name, 512)
    assert member.endswith(".jpg")


@PLACES
def test_a_changed_padding_is_told(folder, place):
    path = shard(folder, place)
    data = path.read_bytes()
    change(path, data.index(b"\0", 512 + int(data[124:135], 8)))
    assert lint(folder) == [("wrong-digest", path.name, None, "")]


@PLACES
def test_a_changed_header_is_told(folder, place):
    path = shard(folder, place)
    change(path, 3)
    assert [found[:3] for found in lint(folder)][:2] == [
        ("wrong-digest", path.name, None),
        ("bad-header", path.name, 0),
    ]


@PLACES
def test_a_renamed_member_is_told(folder, place):
    path = shard(folder, place)
    data = bytearray(path.read_bytes())
    data[10], data[11] = ord("9"), ord("8")
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    path.write_bytes(data)
    codes = [(code, byte) for code, _, byte, _ in lint(folder)]
    assert codes.count(("wrong-rows", 512)) == 2  # the name that is there, and the one that should be
    assert ("wrong-digest", None) in codes


@PLACES
@pytest.mark.parametrize("cut", [1, 10240, 20000])
def test_a_cut_shard_is_told(folder, place, cut):
    path = shard(folder, place)
    path.write_bytes(path.read_bytes()[:-cut])
    found = lint(folder)
    assert ("wrong-size", path.name, path.stat().st_size, "") in found
    assert {name for _, name, *_ in found} == {path.name}


@PLACES
@pytest.mark.parametrize("file", [shard, index])
def test_missing_files_are_told(folder, place, file):
    missing = file(folder, place)
    missing.unlink()
    assert lint(folder) == [("missing-file", missing.name, None, "")]


@PLACES
def test_a_changed_index_is_told(folder, place):
    path = index(folder, place)
    change(path, random.Random(place).randrange(path.stat().st_size))
    assert lint(folder) == [("bad-index", path.name, None, "")]


def test_an_index_of_another_packing_is_told(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    make_dataset(other, make_rows(60, seed=1), shard_bytes=40 * 2**10)
    index(folder, 0).write_bytes(index(other, 0).read_bytes())
    codes = {code for code, *_ in lint(folder)}
    assert {"bad-index", "wrong-rows"} <= codes


def test_surplus_files_are_told(folder):
    for name in ("made-000099.tar", "old.tar.index", "made-000001.tar.part", "rejected.jsonl"):
        (folder / name).write_bytes(b"")
    found = [(code, name) for code, name, *_ in lint(folder)]
    assert found == [("surplus-file", "made-000001.tar.part")]
    told = lint_folder(open_store(str(folder)), Manifest.from_bytes((folder / FILE_NAME).read_bytes(), url=""))
    assert told.listed()[0].more == 2


def test_a_part_that_a_row_does_not_have_is_none(tmp_path):
    rows = make_rows(5)
    del rows[2].parts["json"]
    make_dataset(tmp_path, rows, shard_bytes=2**20)
    store = open_store(str(tmp_path))
    (info,) = Manifest.from_bytes((tmp_path / FILE_NAME).read_bytes(), url="").shardlist
    assert [f.code for f in lint_packed(store, info).found.listed()] == ["half-sample"]


def test_an_index_that_is_whole_but_no_text_is_told(folder):
    path = index(folder, 1)
    key = shard(folder, 1).read_bytes()[:12]
    body = path.read_bytes()[:-8].replace(key, b"\xff" * 12, 1)
    path.write_bytes(body + xxh3_64_intdigest(body).to_bytes(8, "little"))
    ((code, name, *_),) = lint(folder)
    assert (code, name) == ("bad-index", path.name)


@pytest.mark.parametrize("fails_from", [0, 2**20])
def test_a_shard_that_cannot_be_read_is_told_once(folder, fails_from, monkeypatch):
    """From 2**20 on the scan's small reads succeed, and reading the whole fails."""
    store = open_store(str(folder))
    info = Manifest.from_bytes((folder / FILE_NAME).read_bytes(), url="").shardlist[0]
    monkeypatch.setattr(module, "_CHUNK", 2**30)
    reads = []

    def read(name, *, start=0, end=None):
        reads.append(name)
        if name == info.url and (not fails_from or reads.count(name) > 1):
            raise StoreError(name, "read", "Input/output error")
        return type(store).read(store, name, start=start, end=end)

    monkeypatch.setattr(store, "read", read)
    assert [f.code for f in lint_packed(store, info).found.listed()] == ["unreadable"]


@pytest.mark.parametrize("chunk", [1, 3, 8, 100])
def test_parts_are_digested_while_the_chunks_pass_by(chunk):
    data = bytes(range(40))
    spans = [(0, 5), (5, 0), (7, 20), (30, 1), (31, 9), (40, 0)]
    parts = [_Part(offset, size, "a", xxh3_64_intdigest(data[offset : offset + size])) for offset, size in spans]
    chunks = [(at, data[at : at + chunk]) for at in range(0, len(data), chunk)]
    assert list(_digests(chunks, parts)) == [(part, part.checksum) for part in parts]


def test_a_part_that_begins_in_another_has_no_digest_where_its_bytes_went_by():
    data = bytes(range(20))
    found = list(
        _digests([(0, data[:8]), (8, data[8:])], [_Part(0, 10, "a", 0), _Part(5, 10, "b", 0), _Part(16, 2, "c", 0)])
    )
    assert [digest for _, digest in found] == [xxh3_64_intdigest(data[:10]), -1, xxh3_64_intdigest(data[16:18])]
