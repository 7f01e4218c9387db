"""A whole dataset by global row: opened late, shared between threads and processes, never fooled by its files."""

import errno
import os
import pickle
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from datasets_made import Row, contents, make_dataset, make_rows
from shards.dataset import DatasetReader
from shards.errors import ChecksumError, IndexFormatError, ManifestError, MismatchError, ShardsError
from shards.index import RowInfo
from shards.store import open_store
from shards.tar import END, members
from shards.writer import ShardWriter

ROWS = make_rows(30)
SMALL = [Row("a", {"txt": b"cat"}, RowInfo(caption_bytes=(3,)))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """30 rows in several shards."""
    assert len(make_dataset(tmp_path / "d", ROWS, shard_bytes=20480).shardlist) > 3
    return tmp_path / "d"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """One row in one shard."""
    make_dataset(tmp_path / "s", SMALL)
    return tmp_path / "s"


def read(reader: DatasetReader, numbers) -> list[tuple[str, dict[str, bytes]]]:
    return [(s.key, {suffix: bytes(view) for suffix, view in s.parts.items()}) for s in reader.read(numbers)]


def expected(numbers) -> list[tuple[str, dict[str, bytes]]]:
    return [(ROWS[number].key, ROWS[number].parts) for number in numbers]


@pytest.mark.parametrize("numbers", [range(30), [29, 0, 15, 15, 3], [7], []])
def test_rows_come_in_the_order_asked_for_over_all_shards(folder, numbers):
    assert read(DatasetReader(str(folder)), numbers) == expected(numbers)


def test_the_length_is_the_number_of_samples(folder):
    assert len(DatasetReader(str(folder))) == 30


def test_only_the_parts_asked_for_come(folder):
    found = DatasetReader(str(folder)).read([29, 2], suffixes=["txt"])
    assert [(s.key, list(s.parts)) for s in found] == [(ROWS[29].key, ["txt"]), (ROWS[2].key, ["txt"])]


def test_the_index_of_a_shard_has_its_keys(folder):
    reader = DatasetReader(str(folder))
    keys: list[str] = []
    for number in range(len(reader.manifest.shardlist)):
        keys += reader.index(number).keys()
    assert keys == [row.key for row in ROWS]


@pytest.mark.parametrize("row", [-1, 30])
def test_a_row_that_does_not_exist_is_an_index_error(folder, row):
    with pytest.raises(IndexError, match=f"has 30 rows, not one numbered {row}"):
        DatasetReader(str(folder)).read([0, row])


@pytest.mark.parametrize("number", [-1, 99])
def test_a_shard_that_does_not_exist_is_an_index_error(folder, number):
    with pytest.raises(IndexError, match=f"shards, not one numbered {number}"):
        DatasetReader(str(folder)).index(number)


def test_nothing_is_read_before_its_first_use(tmp_path):
    assert DatasetReader(str(tmp_path / "absent")).url == str(tmp_path / "absent")


def test_an_absent_dataset_is_pythons_own_error_with_the_path(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent/manifest\.json"):
        len(DatasetReader(str(tmp_path / "absent")))


def test_a_dataset_without_samples_is_empty(tmp_path):
    make_dataset(tmp_path / "e", [])
    assert (len(DatasetReader(str(tmp_path / "e"))), DatasetReader(str(tmp_path / "e")).read([])) == (0, [])


@pytest.mark.parametrize("tail", ["", "/", "/manifest.json", "/train.json"])
def test_the_url_is_that_of_the_folder_or_of_the_manifest(folder, tail):
    shutil.copy(folder / "manifest.json", folder / "train.json")
    assert read(DatasetReader(f"{folder}{tail}"), [5]) == expected([5])


def test_a_folder_may_end_in_json_if_a_slash_says_so(folder, tmp_path):
    folder.rename(tmp_path / "d.json")
    assert read(DatasetReader(f"{tmp_path}/d.json/"), [5]) == expected([5])


def test_the_url_may_be_relative(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert read(DatasetReader("manifest.json"), [5]) == read(DatasetReader("."), [5]) == expected([5])


@pytest.mark.parametrize(
    ("url", "folder"),
    [("/manifest.json", "/"), ("memory://manifest.json", "memory://"), ("s3://bucket/manifest.json", "s3://bucket")],
)
def test_a_manifest_may_lie_in_a_root(url, folder):
    assert DatasetReader(url).url == folder


def test_a_dataset_is_read_through_fsspec(tmp_path):
    url = f"memory://{tmp_path}"
    with ShardWriter(open_store(url), "made", shard_bytes=20480) as writer:
        for row in ROWS:
            writer.add(row.key, row.parts, row.info)
    assert read(DatasetReader(url), range(30)) == expected(range(30))


def test_storage_options_are_passed_on():
    reader = DatasetReader("memory://a", storage_options={"secret": "s"})
    assert pickle.loads(pickle.dumps(reader))._store._options == {"secret": "s"}


def test_a_pickled_reader_reads_the_same_rows(folder):
    reader = DatasetReader(str(folder))
    reader.read([0])
    assert read(pickle.loads(pickle.dumps(reader)), [3, 29]) == expected([3, 29])


def test_a_pickled_reader_keeps_the_name_of_its_manifest(folder):
    (folder / "manifest.json").rename(folder / "train.json")
    reader = pickle.loads(pickle.dumps(DatasetReader(f"{folder}/train.json")))
    assert read(reader, [3]) == expected([3])


def test_a_reader_goes_to_a_fresh_process(folder):
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(read, DatasetReader(str(folder)), [3, 29]).result() == expected([3, 29])


def test_threads_read_at_once(folder):
    reader = DatasetReader(str(folder))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: read(reader, [number % 30, (7 * number) % 30]), range(120)))
    assert found == [expected([number % 30, (7 * number) % 30]) for number in range(120)]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # forking is the point
def test_a_fork_while_another_thread_opens_a_shard_does_not_hang(folder, monkeypatch):
    reader = DatasetReader(str(folder))
    assert len(reader) == 30
    parent, opening, go_on = os.getpid(), threading.Event(), threading.Event()
    real_read = reader._store.read

    def slow(name: str, **span: int) -> bytes:
        if os.getpid() == parent:
            opening.set()
            go_on.wait()
        return real_read(name, **span)

    monkeypatch.setattr(reader._store, "read", slow)
    thread = threading.Thread(target=reader.index, args=(0,))
    thread.start()
    opening.wait()
    process = get_context("fork").Process(target=lambda: os._exit(42 if read(reader, [0]) == expected([0]) else 1))
    process.start()
    process.join(60)
    hung = process.exitcode is None
    process.kill()
    go_on.set()
    thread.join()
    assert (hung, process.exitcode) == (False, 42)


def test_a_shard_cut_at_any_byte_is_a_mismatch(small):
    shard = small / "made-000000.tar"
    for length in reversed(range(shard.stat().st_size)):
        os.truncate(shard, length)
        with pytest.raises(MismatchError, match=f"the shard has {length} bytes"):
            DatasetReader(str(small)).read([0])


def test_a_shard_cut_at_any_byte_is_told_by_tar_too_unless_only_padding_is_lost(small):
    data = (small / "made-000000.tar").read_bytes()
    (member,) = members(data, url="")
    needed = member.offset + 512 + len(END)
    for length in range(len(data)):
        try:
            found = list(members(data[:length], url=""))
        except ShardsError:
            continue
        assert (length >= needed, found) == (True, [member])


def test_each_flipped_bit_of_an_index_is_refused(small):
    path = small / "made-000000.tar.index"
    data = path.read_bytes()
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises((IndexFormatError, MismatchError)):
            DatasetReader(str(small)).read([0])


def swap(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


MIXES: dict[str, Callable[[Path, Path], object]] = {
    "index of the other dataset": lambda d, o: shutil.copy(o / "made-000000.tar.index", d),
    "shard of the other dataset": lambda d, o: shutil.copy(o / "made-000000.tar", d),
    "manifest of the other dataset": lambda d, o: shutil.copy(o / "manifest.json", d),
    "shard and index of the other dataset": lambda d, o: [shutil.copy(p, d) for p in o.glob("made-000000*")],
    "swapped indexes": lambda d, o: swap(d / "made-000000.tar.index", d / "made-000001.tar.index"),
    "swapped shards": lambda d, o: swap(d / "made-000000.tar", d / "made-000001.tar"),
}


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
def test_files_that_do_not_belong_together_are_refused(tmp_path, mix):
    """Two datasets of equal names and sizes; only their bytes differ."""
    for place, letter in (("d", b"x"), ("o", b"y")):
        rows = [Row(f"{number}", {"jpg": letter * 100 + b"%d" % number}, RowInfo()) for number in range(2)]
        make_dataset(tmp_path / place, rows, shard_bytes=1)
    mix(tmp_path / "d", tmp_path / "o")
    with pytest.raises((MismatchError, ChecksumError)):
        DatasetReader(str(tmp_path / "d")).read([0, 1])


def test_a_shard_under_another_name_is_a_mismatch(tmp_path):
    make_dataset(tmp_path, SMALL, name="one")
    manifest = (tmp_path / "manifest.json").read_bytes()
    for path in list(tmp_path.iterdir()):
        path.rename(tmp_path / path.name.replace("one", "two"))
    (tmp_path / "manifest.json").write_bytes(manifest.replace(b"one", b"two"))
    with pytest.raises(MismatchError, match=r"belongs to shard one-000000\.tar"):
        DatasetReader(str(tmp_path)).read([0])


@pytest.mark.parametrize("name", ["made-000000.tar", "made-000000.tar.index"])
def test_a_file_that_is_gone_is_named(small, name):
    (small / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        DatasetReader(str(small)).read([0])


@pytest.mark.parametrize("field", ["nsamples", "filesize", "captions", "xxh3_128", "index_filesize", "index_xxh3_128"])
def test_each_number_of_the_manifest_is_compared_with_the_files(small, field):
    import msgspec

    file = msgspec.json.decode((small / "manifest.json").read_bytes())
    value = file["shardlist"][0][field]
    file["shardlist"][0][field] = value[::-1] if isinstance(value, str) else value + 1
    if field in file:
        file[field] += 1
    (small / "manifest.json").write_bytes(msgspec.json.encode(file))
    with pytest.raises(MismatchError, match="it is not the index that the manifest lists"):
        DatasetReader(str(small)).read([0])


def test_a_manifest_that_leads_elsewhere_is_refused(small):
    data = (small / "manifest.json").read_bytes()
    (small / "manifest.json").write_bytes(data.replace(b'"made-000000.tar"', b'"../made-000000.tar"'))
    with pytest.raises(ManifestError, match=r"\.\./made"):
        DatasetReader(str(small)).read([0])


def test_reading_changes_no_file(folder):
    before = contents(folder)
    DatasetReader(str(folder)).read(range(30))
    assert contents(folder) == before


def test_a_folder_without_a_dataset_says_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no packed dataset is here; .* tools/pack_coco\.py") as caught:
        len(DatasetReader(str(tmp_path)))
    assert caught.value.filename == f"{tmp_path}/manifest.json"
    assert caught.value.errno == errno.ENOENT
