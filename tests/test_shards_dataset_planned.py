"""Rows planned, filled and opened in three places are the rows that are read in one."""

import os
import random
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasets_made import law, make_dataset, make_rows
from shards.dataset import DatasetReader
from shards.errors import ChecksumError, IndexFormatError
from shards.planned import DatasetPlan
from shards.rows import PlacedSample
from shards.sample import Sample
from shards.store import open_store
from shards.writer import ShardWriter

ROWS = make_rows(30)
SUFFIXES = [None, ["jpg", "txt"], ["json", "absent"], []]


@pytest.fixture(scope="module", params=["local", "memory"])
def reader(request, tmp_path_factory) -> DatasetReader:
    """30 rows in several shards, on a store that reads in place and on one that does not."""
    folder = tmp_path_factory.mktemp("planned")
    url = str(folder) if request.param == "local" else f"memory://{folder}"
    with ShardWriter(open_store(url), "made", shard_bytes=20480) as writer:
        for row in ROWS:
            writer.add(row.key, row.parts, row.info)
        assert len(writer.close().shardlist) > 3
    return DatasetReader(url)


def opened(plan: DatasetPlan, memory: bytes | bytearray, *, verify: bool = True) -> dict[int, Sample]:
    view = memoryview(memory).toreadonly()
    return {sample.row: sample.open(view, url=plan.urls[sample.shard], verify=verify) for sample in plan.samples}


def filled(reader: DatasetReader, plan: DatasetPlan) -> bytearray:
    memory = bytearray(plan.size)
    reader.fill(plan, memoryview(memory))
    return memory


@law
@given(st.lists(st.integers(0, 29), unique=True), st.sampled_from(SUFFIXES))
def test_planned_rows_are_the_rows_that_are_read(reader, rows, suffixes):
    plan = reader.plan(rows, suffixes=suffixes)
    found = opened(plan, filled(reader, plan))
    assert [found[row] for row in rows] == reader.read(rows, suffixes=suffixes)
    assert [list(found[row].parts) for row in rows] == [list(s.parts) for s in reader.read(rows, suffixes=suffixes)]


@pytest.mark.parametrize("scheme", ["local", "memory"])
def test_rows_with_empty_parts_come_whole_in_any_order(tmp_path, scheme):
    url = str(tmp_path) if scheme == "local" else f"memory://{tmp_path}"
    rows = [replace(row, parts={**row.parts, "txt": b""}) if n % 3 == 0 else row for n, row in enumerate(ROWS)]
    with ShardWriter(open_store(url), "made", shard_bytes=20480) as writer:
        for row in rows:
            writer.add(row.key, row.parts, row.info)
        writer.close()
    reader, rng = DatasetReader(url), random.Random(0)
    for _ in range(50):
        asked = rng.sample(range(30), 12)
        plan = reader.plan(asked, suffixes=["jpg", "txt"])
        found = opened(plan, filled(reader, plan))
        assert [found[row].parts["jpg"] for row in asked] == [rows[row].parts["jpg"] for row in asked]
        assert [found[row].parts["txt"] for row in asked] == [rows[row].parts["txt"] for row in asked]


@law
@given(st.lists(st.integers(0, 29), unique=True), st.sampled_from(SUFFIXES))
def test_rows_that_the_page_cache_holds_are_filled_without_waiting(reader, rows, suffixes):
    reader.read(range(30))  # so that they are there, and all shards open
    plan = reader.plan(rows, suffixes=suffixes)
    memory = bytearray(plan.size)
    told = reader.fill_at_once(plan, memoryview(memory))
    assert told or not plan.reads or reader.url.startswith("memory:") or not _tells_what_it_holds(reader.url)
    if told:
        assert memory == filled(reader, plan)
        assert reader.local_reads(plan) == [(f"{reader.url}/{name}", ranges) for name, ranges in plan.reads]


def _tells_what_it_holds(folder):
    """Whether this file system can read without waiting; a memory disk cannot."""
    file = Path(folder) / "asked"
    file.write_bytes(b"x")
    with file.open("rb") as opened:
        try:
            return os.preadv(opened.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT) == 1
        except OSError:
            return False
        finally:
            file.unlink()


def test_a_shard_that_is_not_open_is_not_opened_where_nothing_may_wait(tmp_path):
    make_dataset(tmp_path, ROWS, shard_bytes=20480)
    reader = DatasetReader(str(tmp_path))
    plan = reader.plan([0])
    assert reader.fill_at_once(plan, memoryview(bytearray(plan.size))) is False


def test_a_row_that_is_asked_for_twice_is_there_twice(reader):
    plan = reader.plan([5, 5])
    assert [sample.row for sample in plan.samples] == [5, 5]
    assert opened(plan, filled(reader, plan))[5] == reader.read([5])[0]


def test_no_rows_need_no_memory(reader):
    plan = reader.plan([])
    reader.fill(plan, memoryview(bytearray()))
    assert plan == DatasetPlan(0, [], [], [])


@pytest.mark.parametrize("row", [-1, 30])
def test_a_row_that_does_not_exist_is_an_index_error(reader, row):
    with pytest.raises(IndexError, match=f"has 30 rows, not one numbered {row}"):
        reader.plan([0, row])


def test_a_short_memory_is_refused_before_anything_is_read(reader):
    plan = reader.plan([0])
    memory = bytearray(plan.size - 1)
    with pytest.raises(ValueError, match=f"{plan.size - 1} bytes cannot take {plan.size} bytes"):
        reader.fill(plan, memoryview(memory))
    assert not any(memory)


def test_a_changed_byte_is_named_as_by_read_or_passed_over(reader):
    plan = reader.plan([29, 3], suffixes=["jpg"])
    memory = filled(reader, plan)
    [part] = plan.samples[1].parts
    memory[part.at] ^= 1
    with pytest.raises(ChecksumError) as caught:
        opened(plan, memory)
    told = caught.value
    assert (told.url, told.key, told.suffix) == (f"{reader.url}/made-000000.tar", ROWS[3].key, "jpg")
    assert told.offset == reader.index(0).span(3, "jpg")[0]
    assert opened(plan, memory, verify=False)[3].parts["jpg"][1:] == ROWS[3].parts["jpg"][1:]


def test_a_placed_sample_travels_as_plain_numbers_and_texts(reader):
    [sample] = reader.plan([7]).samples
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sample), type=PlacedSample) == sample


def test_a_store_that_is_not_in_place_brings_all_parts_by_one_call_and_the_given_copy(tmp_path, monkeypatch):
    make_dataset(tmp_path, ROWS, shard_bytes=20480)
    reader = DatasetReader(str(tmp_path))
    asked, copied = [], []
    store = type(reader.shard(0).store)
    read_many = store.read_many
    monkeypatch.setattr(store, "in_place", False)
    monkeypatch.setattr(store, "read_many", lambda self, wanted: asked.append(wanted) or read_many(self, wanted))
    plan = reader.plan([29, 0], suffixes=["jpg", "txt"])
    memory = bytearray(plan.size)

    def copy(into: memoryview, data: memoryview) -> None:
        copied.append(len(data))
        into[:] = data

    reader.fill(plan, memoryview(memory), copy=copy)
    assert len(asked) == 1
    assert (len(copied), sum(copied)) == (4, plan.size)
    assert opened(plan, memory)[29].parts == {suffix: ROWS[29].parts[suffix] for suffix in ("jpg", "txt")}


def test_a_part_that_ends_behind_its_shard_is_refused_when_it_is_planned(tmp_path, monkeypatch):
    make_dataset(tmp_path, ROWS, shard_bytes=20480)
    reader = DatasetReader(str(tmp_path))
    monkeypatch.setattr(reader.index(0), "shard_bytes", 600)
    with pytest.raises(IndexFormatError, match="ends at byte"):
        reader.plan([0])
