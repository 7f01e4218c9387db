"""Rows of one shard: the right parts by few reads, verified."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from datasets_made import make_dataset, make_rows
from shards.dataset import DatasetReader
from shards.errors import ChecksumError, MismatchError, StoreError
from shards.index import RowInfo, ShardIndex
from shards.local import LocalStore
from shards.rows import ShardReader
from shards.store import open_store
from shards.writer import ShardWriter

ROWS = make_rows(20)


class Recorder(LocalStore):
    """A local folder that remembers what was read."""

    reads: list[tuple[int, int]]

    def read_many(self, wanted: Sequence[tuple[str, int, int]]) -> list[bytes]:
        self.reads = [(start, end) for _, start, end in wanted]
        return super().read_many(wanted)

    def read_into(self, name: str, buffer: memoryview, *, start: int) -> None:
        self.reads.append((start, start + len(buffer)))
        super().read_into(name, buffer, start=start)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_dataset(tmp_path, ROWS)
    return tmp_path


@pytest.fixture
def reader(folder: Path) -> ShardReader:
    index = ShardIndex((folder / "made-000000.tar.index").read_bytes(), url="index")
    store = Recorder(str(folder))
    store.reads = []
    return ShardReader(store, "made-000000.tar", index)


def plain(samples) -> list[tuple[str, dict[str, bytes]]]:
    return [(sample.key, {suffix: bytes(view) for suffix, view in sample.parts.items()}) for sample in samples]


def expected(numbers: Sequence[int], suffixes=("jpg", "txt", "json")) -> list[tuple[str, dict[str, bytes]]]:
    return [(ROWS[n].key, {s: ROWS[n].parts[s] for s in ROWS[n].parts if s in suffixes}) for n in numbers]


@pytest.mark.parametrize("numbers", [[0], [19], [3, 3, 3], [7, 0, 19, 7], list(range(20)), []])
def test_rows_come_in_the_order_asked_for(reader, numbers):
    assert plain(reader.read(numbers)) == expected(numbers)


def test_a_row_is_an_item(reader):
    assert plain([reader[4]]) == expected([4])


def test_all_rows_by_iteration(reader):
    assert plain(reader) == expected(range(len(reader)))


def test_parts_come_in_tar_order(reader):
    assert list(reader[0].parts) == ["jpg", "txt", "json"]


@pytest.mark.parametrize("suffixes", [("txt",), ("json", "jpg"), ("txt", "gif"), ("gif",), ()])
def test_only_the_parts_asked_for_come(reader, suffixes):
    assert plain(reader.read([2, 1], suffixes=suffixes)) == expected([2, 1], suffixes)


@pytest.mark.parametrize("row", [-1, 20])
def test_a_row_that_does_not_exist_is_an_index_error(reader, row):
    with pytest.raises(IndexError, match=f"has 20 rows, not one numbered {row}"):
        reader.read([0, row])
    with pytest.raises(IndexError, match=f"not one numbered {row}"):
        reader[row]


def test_neighbours_are_one_read(reader):
    reader.read(range(5, 10))
    assert len(reader.store.reads) == 1


def test_a_plan_tells_the_bytes_it_will_read(reader):
    plan = reader.plan([3, 17])
    reader.read([3, 17])
    assert sum(end - start for start, end in reader.store.reads) == plan.bytes


def test_a_read_stays_within_the_limit_of_its_store(reader):
    reader.store.max_read_bytes = 4000
    reader.read(range(20))
    assert max(end - start for start, end in reader.store.reads) <= 4000
    assert plain(reader.read(range(20))) == expected(range(20))


def test_far_rows_are_reads_of_their_own(reader):
    reader.store.gap_bytes = 1024
    reader.read([0, 10])
    assert len(reader.store.reads) == 2


@pytest.mark.parametrize("in_place", [True, False])
def test_a_local_read_goes_over_no_other_row(reader, in_place):
    reader.store.gap_bytes, reader.store.in_place = 2**20, in_place
    reader.read([0, 1, 3, 4, 7])
    spans = [[reader.index.span(row, suffix) for suffix in reader.index.suffixes] for row in range(20)]
    first = {row: min(offset for offset, _ in each if offset) for row, each in enumerate(spans)}
    begins = [row for row, start in first.items() if start in {start for start, _ in reader.store.reads}]
    assert begins == ([0, 3, 7] if in_place else [0])


def test_rows_are_read_into_a_given_buffer(reader):
    buffer = bytearray(reader.plan([9, 2]).bytes + 5)
    samples = reader.read_into(memoryview(buffer), [9, 2])
    assert plain(samples) == expected([9, 2])
    assert samples[0].parts["jpg"].obj is buffer


def test_a_buffer_that_is_too_short_is_refused(reader):
    with pytest.raises(ValueError, match=r"a buffer of 10 bytes cannot take \d+ bytes"):
        reader.read_into(memoryview(bytearray(10)), [0])


def test_samples_own_their_bytes(reader):
    first = reader.read([0])
    for row in range(20):
        reader.read([row])
    assert plain(first) == expected([0])


@pytest.mark.parametrize("suffix", ["jpg", "txt", "json"])
def test_each_flipped_bit_of_a_payload_is_told_with_key_suffix_and_byte(reader, folder, suffix):
    path = folder / "made-000000.tar"
    offset, size = reader.index.span(7, suffix)
    with path.open("r+b", buffering=0) as file:
        for bit in range(0, 8 * size, 1 if size < 100 else 7):
            at, byte = offset + bit // 8, ROWS[7].parts[suffix][bit // 8]
            file.seek(at)
            file.write(bytes([byte ^ 1 << bit % 8]))
            with pytest.raises(ChecksumError) as caught:
                reader.read([7])
            error = caught.value
            assert (error.url, error.key, error.suffix, error.offset) == (str(path), ROWS[7].key, suffix, offset)
            file.seek(at)
            file.write(bytes([byte]))


def test_a_flipped_payload_harms_no_other_part(reader, folder):
    offset, _ = reader.index.span(7, "jpg")
    with (folder / "made-000000.tar").open("r+b") as file:
        file.seek(offset)
        file.write(b"\0\0\0\0")
    assert plain(reader.read([6, 8])) == expected([6, 8])
    assert plain(reader.read([7], suffixes=["txt"])) == expected([7], ["txt"])


def test_without_verification_changed_bytes_are_given_as_they_are(reader, folder):
    trusting = ShardReader(reader.store, reader.name, reader.index, verify=False)
    offset, _ = reader.index.span(7, "txt")
    with (folder / "made-000000.tar").open("r+b") as file:
        file.seek(offset)
        file.write(b"\0")
    assert bytes(trusting[7].parts["txt"]) == b"\0" + ROWS[7].parts["txt"][1:]


def test_a_read_into_a_buffer_is_verified_too(reader, folder):
    offset, _ = reader.index.span(7, "txt")
    with (folder / "made-000000.tar").open("r+b") as file:
        file.seek(offset)
        file.write(b"\0")
    with pytest.raises(ChecksumError):
        reader.read_into(memoryview(bytearray(10_000)), [7])


def test_an_index_of_another_shard_is_refused(reader):
    with pytest.raises(MismatchError, match=r"belongs to shard made-000000\.tar"):
        ShardReader(reader.store, "made-000001.tar", reader.index)


def test_a_shard_of_another_size_is_refused(reader, folder):
    reader.check_size()
    with (folder / "made-000000.tar").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(MismatchError, match=r"has \d+ bytes, its index index says"):
        reader.check_size()


def test_a_shard_cut_after_it_was_opened_is_a_store_error(reader, folder):
    with (folder / "made-000000.tar").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(StoreError, match=r"0 bytes came for \[\d+, \d+\): the file ends there"):
        reader.read([5])


def test_rows_may_have_different_parts_and_empty_ones(tmp_path):
    samples = [("a", {"jpg": b"1", "txt": b""}), ("b", {"png": b"22"}), ("c", {"txt": b"3", "jpg": b""})]
    with ShardWriter(open_store(str(tmp_path / "d")), "odd") as writer:
        for key, parts in samples:
            writer.add(key, parts, RowInfo())
    reader = DatasetReader(str(tmp_path / "d"))
    found = plain(reader.read([0, 1, 2]))
    assert found == samples
    assert [list(parts) for _, parts in found] == [list(parts) for _, parts in samples]
    assert plain(reader.read([0], suffixes=["txt"])) == [("a", {"txt": b""})]
