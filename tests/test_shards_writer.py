"""The writer: what it lays out and what it refuses."""

import io
import mmap
import tarfile
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest, xxh3_128_hexdigest

from datasets_made import contents, make_dataset, make_rows
from shards.dataset import DatasetReader
from shards.errors import NameRuleError, OutputNotEmptyError, StoreError
from shards.index import RowInfo
from shards.local import LocalStore
from shards.writer import ShardWriter

ROWS = make_rows(12)
NO_INFO = RowInfo()


def writer_of(folder: Path, *, shard_bytes: int = 10240, replace: bool = False) -> ShardWriter:
    return ShardWriter(LocalStore(str(folder)), "made", shard_bytes=shard_bytes, replace=replace)


def add_all(writer: ShardWriter, rows=ROWS) -> None:
    for row in rows:
        writer.add(row.key, row.parts, row.info)


def names(folder: Path) -> list[str]:
    return LocalStore(str(folder)).names()


def test_all_rows_come_back(tmp_path):
    make_dataset(tmp_path, ROWS, shard_bytes=10240)
    found = DatasetReader(str(tmp_path)).read(range(len(ROWS)))
    assert [(s.key, {k: bytes(v) for k, v in s.parts.items()}) for s in found] == [(r.key, r.parts) for r in ROWS]


def test_metadata_comes_back(tmp_path):
    make_dataset(tmp_path, ROWS)
    index = DatasetReader(str(tmp_path)).index(0)
    found = [
        RowInfo(
            *(index.column(name)[row] for name in ("width", "height", "license")), tuple(index.caption_lengths(row))
        )
        for row in range(len(index))
    ]
    assert found == [row.info for row in ROWS]


def test_files_are_named_by_the_dataset_and_numbered(tmp_path):
    make_dataset(tmp_path, ROWS[:2], name="coco-val_2017", shard_bytes=1)
    shards = [f"coco-val_2017-{number:06d}.tar" for number in (0, 1)]
    assert names(tmp_path) == sorted([*shards, *(name + ".index" for name in shards), "manifest.json"])


def test_the_manifest_describes_the_files(tmp_path):
    manifest = make_dataset(tmp_path, ROWS, shard_bytes=10240)
    for info in manifest.shardlist:
        shard, index = (tmp_path / info.url).read_bytes(), (tmp_path / info.index_url).read_bytes()
        assert (info.filesize, info.xxh3_128) == (len(shard), xxh3_128_hexdigest(shard))
        assert (info.index_filesize, info.index_xxh3_128) == (len(index), xxh3_128_hexdigest(index))
    assert manifest.samples == len(ROWS)
    assert manifest.captions == sum(len(row.info.caption_bytes) for row in ROWS)


def test_add_returns_the_checksum_of_each_part_in_order(tmp_path):
    with writer_of(tmp_path) as writer:
        found = writer.add("a", {"txt": b"cat", "jpg": b"\xff"}, NO_INFO)
    assert found == (xxh3_64_intdigest(b"cat"), xxh3_64_intdigest(b"\xff"))


def test_members_are_plain_files_without_owner_or_time(tmp_path):
    make_dataset(tmp_path, ROWS)
    with tarfile.open(tmp_path / "made-000000.tar") as tar:
        found = {(i.type, i.mode, i.uid, i.gid, i.uname, i.gname, i.mtime, i.linkname) for i in tar}
    assert found == {(tarfile.REGTYPE, 0o644, 0, 0, "", "", 0, "")}


def test_a_shard_equals_the_archive_that_tarfile_makes(tmp_path):
    make_dataset(tmp_path, ROWS)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for row in ROWS:
            for suffix, data in row.parts.items():
                info = tarfile.TarInfo(f"{row.key}.{suffix}")
                info.size, info.mode = len(data), 0o644
                tar.addfile(info, io.BytesIO(data))
    assert (tmp_path / "made-000000.tar").read_bytes() == out.getvalue()


@pytest.mark.parametrize("shard_bytes", [10240, 20480, 30000, 10**6])
def test_no_shard_of_several_samples_is_larger_than_asked_for(tmp_path, shard_bytes):
    for info in make_dataset(tmp_path, ROWS, shard_bytes=shard_bytes).shardlist:
        assert info.filesize <= shard_bytes


def test_a_shard_is_filled_before_the_next_begins(tmp_path):
    """A sample of one small part takes 1,024 bytes, the end of an archive 1,024, a shard 10,240."""
    with writer_of(tmp_path, shard_bytes=10240) as writer:
        for number in range(19):
            writer.add(f"{number}", {"txt": b"x"}, NO_INFO)
        manifest = writer.close()
    assert [info.nsamples for info in manifest.shardlist] == [9, 9, 1]


def test_a_sample_larger_than_a_shard_gets_one_of_its_own(tmp_path):
    with writer_of(tmp_path, shard_bytes=10240) as writer:
        for key, size in (("a", 1), ("b", 40_000), ("c", 1)):
            writer.add(key, {"txt": b"x" * size}, NO_INFO)
        manifest = writer.close()
    assert [(info.nsamples, info.filesize) for info in manifest.shardlist] == [(1, 10240), (1, 51200), (1, 10240)]


def test_a_view_of_wide_elements_is_written_by_its_bytes(tmp_path):
    data = bytes(range(96))
    with writer_of(tmp_path) as writer:
        writer.add("a", {"one": memoryview(data).cast("I"), "two": memoryview(data).cast("B", (8, 12))}, NO_INFO)
    (sample,) = DatasetReader(str(tmp_path)).read([0])
    assert (sample.parts["one"], sample.parts["two"]) == (data, data)


@pytest.mark.parametrize("key", ["", "a.b", "../a", "a/b", "k" * 91])
def test_a_bad_key_is_refused_and_the_writer_goes_on(tmp_path, key):
    with writer_of(tmp_path) as writer:
        with pytest.raises(NameRuleError):
            writer.add(key, {"txt": b"x"}, NO_INFO)
        add_all(writer)
    assert len(DatasetReader(str(tmp_path))) == len(ROWS)


@pytest.mark.parametrize("suffix", ["", "JPG", "seg.png", "/", "abcdefghij"])
def test_a_bad_suffix_is_refused_and_the_key_stays_free(tmp_path, suffix):
    with writer_of(tmp_path) as writer:
        with pytest.raises(NameRuleError):
            writer.add("a", {"txt": b"x", suffix: b"x"}, NO_INFO)
        writer.add("a", {"txt": b"x"}, NO_INFO)
    assert len(DatasetReader(str(tmp_path))) == 1


def test_a_key_is_unique_over_all_shards(tmp_path):
    with writer_of(tmp_path, shard_bytes=1) as writer:
        add_all(writer)
        with pytest.raises(NameRuleError, match="already holds a sample of this key"):
            writer.add(ROWS[0].key, {"txt": b"x"}, NO_INFO)


def test_a_sample_without_parts_is_refused(tmp_path):
    with writer_of(tmp_path) as writer, pytest.raises(ValueError, match="sample a has no parts"):
        writer.add("a", {}, NO_INFO)


def test_a_part_of_8_gib_is_refused_and_the_writer_goes_on(tmp_path):
    with (tmp_path / "sparse").open("w+b") as file:
        file.truncate(2**33)
        huge = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    with writer_of(tmp_path / "d") as writer:
        with pytest.raises(ValueError, match=r"part a\.jpg has 8589934592 bytes"):
            writer.add("a", {"jpg": huge}, NO_INFO)
        writer.add("a", {"jpg": b"x"}, NO_INFO)
    assert len(DatasetReader(str(tmp_path / "d"))) == 1


@pytest.mark.parametrize("name", ["", "a.b", "a/b", "n" * 65])
def test_a_bad_dataset_name_is_refused(tmp_path, name):
    with pytest.raises(NameRuleError):
        ShardWriter(LocalStore(str(tmp_path)), name)


@pytest.mark.parametrize("shard_bytes", [0, -1])
def test_a_shard_of_no_bytes_is_refused(tmp_path, shard_bytes):
    with pytest.raises(ValueError, match="shard_bytes"):
        writer_of(tmp_path, shard_bytes=shard_bytes)


def test_a_side_file_is_published_too(tmp_path):
    with writer_of(tmp_path) as writer:
        writer.add_file("rejected.jsonl", b"{}\n")
        assert names(tmp_path) == ["rejected.jsonl.part"]
    assert contents(tmp_path)["rejected.jsonl"] == b"{}\n"


@pytest.mark.parametrize(
    "name", ["", "a/b", "..", "manifest.json", "made-000000.tar", "x.index", "x.part", ".x", "a b"]
)
def test_a_side_file_by_a_name_of_the_dataset_or_outside_it_is_refused(tmp_path, name):
    with writer_of(tmp_path) as writer, pytest.raises(NameRuleError, match="a side file has a plain name"):
        writer.add_file(name, b"")


def test_a_side_file_twice_is_refused(tmp_path):
    with writer_of(tmp_path) as writer:
        writer.add_file("a.txt", b"1")
        with pytest.raises(NameRuleError, match="was added before"):
            writer.add_file("a.txt", b"2")
    assert contents(tmp_path)["a.txt"] == b"1"


def test_two_writers_of_one_folder_never_mix(tmp_path):
    first, second = (ShardWriter(LocalStore(str(tmp_path)), "made") for _ in range(2))
    first.add("a", {"txt": b"first"}, RowInfo())
    with pytest.raises(StoreError, match="another process is writing"):
        second.add("b", {"txt": b"second"}, RowInfo())
    first.close()
    assert [sample.key for sample in DatasetReader(str(tmp_path)).read([0])] == ["a"]


def test_a_writer_that_comes_after_another_has_finished_does_not_mix(tmp_path):
    first, second = (ShardWriter(LocalStore(str(tmp_path)), "made") for _ in range(2))
    first.add("a", {"txt": b"first"}, RowInfo())
    first.close()
    with pytest.raises(OutputNotEmptyError):
        second.add("b", {"txt": b"second"}, RowInfo())
    assert len(DatasetReader(str(tmp_path))) == 1


@pytest.mark.parametrize("end", ["close", "abort"])
def test_a_writer_that_has_ended_keeps_nobody_out(tmp_path, end):
    first = ShardWriter(LocalStore(str(tmp_path)), "made")
    first.add("a", {"txt": b"first"}, RowInfo())
    getattr(first, end)()
    with ShardWriter(LocalStore(str(tmp_path)), "made", replace=True) as second:
        second.add("b", {"txt": b"second"}, RowInfo())
    assert [sample.key for sample in DatasetReader(str(tmp_path)).read([0])] == ["b"]


def test_an_interrupt_right_after_a_file_was_begun_leaves_nothing(tmp_path, monkeypatch):
    begin = LocalStore.create

    def interrupted(store, name):
        begin(store, name)
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalStore, "create", interrupted)
    with pytest.raises(KeyboardInterrupt), ShardWriter(LocalStore(str(tmp_path)), "made") as writer:
        writer.add("a", {"txt": b"first"}, RowInfo())
    assert list(tmp_path.iterdir()) == []
