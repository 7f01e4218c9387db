"""Several datasets read as one: the rows of each, numbered on, whatever stores they lie in."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasets_made import law, make_rows
from shards.dataset import DatasetReader
from shards.joined import JoinedReader
from shards.store import open_store
from shards.writer import ShardWriter

COUNTS = (9, 0, 12, 5)
ROWS = make_rows(sum(COUNTS))


@pytest.fixture(scope="module", params=["local", "memory", "both"])
def reader(request, tmp_path_factory) -> JoinedReader:
    folder, readers, first = tmp_path_factory.mktemp("joined"), [], 0
    for number, count in enumerate(COUNTS):
        in_memory = {"local": False, "memory": True, "both": number % 3 == 2}[request.param]
        url = f"memory://{folder}/{number}" if in_memory else f"{folder}/{number}"
        with ShardWriter(open_store(url), f"made{number}", shard_bytes=20480) as writer:
            for row in ROWS[first : first + count]:
                writer.add(row.key, row.parts, row.info)
        readers.append(DatasetReader(url))
        first += count
    return JoinedReader(readers)


def keys(samples):
    return [sample.key for sample in samples]


def test_rows_are_numbered_over_all_datasets(reader):
    assert len(reader) == len(ROWS)
    assert keys(reader.read(range(len(ROWS)))) == [row.key for row in ROWS]
    assert [reader.first_row(number) for number in range(4)] == [0, 9, 9, 21]
    assert [Path(reader.shard_url(row)).parent.name for row in (0, 8, 9, 20, 21)] == ["0", "0", "2", "2", "3"]
    assert reader.sample_bytes(9) == reader.readers[2].sample_bytes(0) > 0


@law
@given(st.lists(st.integers(0, len(ROWS) - 1), unique=True), st.sampled_from([None, ["jpg", "txt"], []]))
def test_planned_and_filled_rows_are_those_that_are_read(reader, rows, suffixes):
    plan = reader.plan(rows, suffixes=suffixes)
    memory = bytearray(plan.size)
    reader.fill(plan, memoryview(memory))
    view = memoryview(memory)
    found = {one.row: one.open(view, url=plan.urls[one.shard], verify=True) for one in plan.samples}
    assert [found[row] for row in rows] == reader.read(rows, suffixes=suffixes)
    assert [plan.urls[one.shard] for one in plan.samples] == [reader.shard_url(one.row) for one in plan.samples]


def test_what_is_local_can_be_read_elsewhere_or_at_once(reader):
    rows = [3, 25, 10, 20]
    plan = reader.plan(rows)
    reads = reader.local_reads(plan)
    memory = bytearray(plan.size)
    if any(one.url.startswith("memory:") for one in reader.readers):
        assert reads is None
        assert not reader.fill_at_once(plan, memoryview(memory))
        return
    reader.fill(plan, memoryview(memory))
    data = b"".join(Path(path).read_bytes()[start:end] for path, ranges in reads for start, end in ranges)
    assert data == bytes(memory)
    again = bytearray(plan.size)
    if reader.fill_at_once(plan, memoryview(again)):  # where the file system has it in its cache
        assert again == memory


@pytest.mark.parametrize("row", [-1, len(ROWS)])
def test_a_row_outside_is_refused(reader, row):
    with pytest.raises(IndexError, match=f"have {len(ROWS)} rows, not one numbered"):
        reader.read([row])


def test_a_memory_that_is_too_short_is_refused(reader):
    plan = reader.plan([0, 25])
    with pytest.raises(ValueError, match="give a longer one"):
        reader.fill(plan, memoryview(bytearray(plan.size - 1)))


def test_a_copy_reads_the_same(reader):
    assert keys(pickle.loads(pickle.dumps(reader)).read([0, 12])) == keys(reader.read([0, 12]))


def test_no_rows_are_an_empty_plan(reader):
    plan = reader.plan([])
    assert (plan.size, plan.urls, plan.samples) == (0, [], [])
    assert replace(plan) == plan
    reader.fill(plan, memoryview(b""))
