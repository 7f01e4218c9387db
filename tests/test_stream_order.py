"""The order of an epoch."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.errors import OptionError
from stream.order import Order

SHARDS = st.lists(st.integers(0, 12), max_size=12)
SHUFFLES = st.sampled_from([None, "window", "full"])
SEEDS = st.integers(0, 2**63 - 1)
PINNED = {
    "window": [10, 3, 0, 7, 9, 8, 1, 2, 11, 12, 13, 4, 6, 5],
    "full": [1, 7, 0, 6, 10, 5, 9, 8, 11, 3, 13, 4, 2, 12],
}
COCO = [95, 95, 10]  # rows of shards


def make(shard_rows, *, shuffle="window", seed=0, epoch=0, window_shards=4):
    return Order(shard_rows, shuffle=shuffle, seed=seed, epoch=epoch, window_shards=window_shards)


def all_rows(order):
    return order.rows(0, len(order)).tolist()


def shard_of(row, shard_rows):
    return int(np.searchsorted(np.cumsum(shard_rows), row, side="right"))


def test_without_shuffle_it_is_storage_order():
    assert all_rows(make([3, 0, 2], shuffle=None)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("shuffle", ["window", "full"])
def test_the_order_of_seed_0_is_pinned(shuffle):
    order = make([4, 0, 3, 5, 2], shuffle=shuffle, window_shards=2)
    assert all_rows(order) == PINNED[shuffle]


def test_the_order_of_many_rows_is_pinned():
    digest = hashlib.sha256()
    for shuffle in ("window", "full"):
        for epoch in (0, 1):
            digest.update(make([1000] * 50, shuffle=shuffle, epoch=epoch).rows(0, 50_000).astype("<i8").tobytes())
    assert digest.hexdigest() == "f846ed5c3b70a340e018ea76809f22dcee22171ec171ba7cbe0f972db56ef7df"


@given(SHARDS, SHUFFLES, SEEDS, st.integers(0, 3), st.integers(1, 6))
def test_each_row_has_one_position_and_position_finds_it(shard_rows, shuffle, seed, epoch, window_shards):
    order = make(shard_rows, shuffle=shuffle, seed=seed, epoch=epoch, window_shards=window_shards)
    rows = all_rows(order)
    assert len(order) == sum(shard_rows)
    assert sorted(rows) == list(range(len(order)))
    assert [order.position(row) for row in rows] == list(range(len(order)))
    assert [order.row(position) for position in range(len(order))] == rows


@given(SHARDS, SHUFFLES, SEEDS, st.data())
def test_any_range_and_any_positions_are_part_of_the_whole(shard_rows, shuffle, seed, data):
    order = make(shard_rows, shuffle=shuffle, seed=seed, window_shards=2)
    rows = all_rows(order)
    start = data.draw(st.integers(0, len(order)))
    stop = data.draw(st.integers(start, len(order)))
    assert order.rows(start, stop).tolist() == rows[start:stop]
    if rows:
        positions = data.draw(st.lists(st.integers(0, len(order) - 1), max_size=9))
        found = order.rows_at(np.array(positions, dtype=np.int64))
        assert found.tolist() == [rows[position] for position in positions]
        assert found.dtype == np.int64


@given(SHARDS, SEEDS, st.integers(1, 5))
def test_a_window_holds_whole_shards_so_each_is_read_once(shard_rows, seed, window_shards):
    rows = all_rows(make(shard_rows, seed=seed, window_shards=window_shards))
    rest = rows
    left = {shard for shard, count in enumerate(shard_rows) if count}
    while rest:
        # Rows of one window: the shortest beginning that holds complete shards only, at most window_shards of them.
        seen = set()
        for count, row in enumerate(rest, start=1):
            seen.add(shard_of(row, shard_rows))
            if count == sum(shard_rows[shard] for shard in seen):
                break
        assert len(seen) <= window_shards
        assert seen <= left
        left -= seen
        rest = rest[count:]
    assert not left


def test_rows_of_a_window_are_mixed_across_its_shards():
    rows = np.array(all_rows(make([100] * 8)))
    first_half = rows[:400] // 100
    assert len(set(first_half[:40].tolist())) == 4


@pytest.mark.parametrize("shuffle", ["window", "full"])
def test_another_seed_or_epoch_is_another_order(shuffle):
    orders = [all_rows(make(COCO, shuffle=shuffle, seed=s, epoch=e)) for s, e in [(0, 0), (0, 1), (1, 0), (1, 1)]]
    assert len(set(map(tuple, orders))) == 4


def test_the_windows_of_an_epoch_are_permuted_differently():
    order = make([50] * 6, window_shards=1)
    patterns = {tuple((order.rows(start, start + 50) % 50).tolist()) for start in range(0, 300, 50)}
    assert len(patterns) == 6


def test_it_depends_on_nothing_but_its_arguments():
    np.random.seed(1)  # noqa: NPY002 - the global generator is what must not matter
    first = all_rows(make(COCO))
    np.random.seed(2)  # noqa: NPY002 - as above
    assert all_rows(make(COCO)) == first


def test_a_billion_rows_need_no_memory_for_rows():
    order = make([10_000] * 100_000)
    positions = np.array([0, 123_456_789, 900_000_000, 999_999_999], dtype=np.int64)
    rows = order.rows_at(positions)
    assert [order.row(position) for position in positions.tolist()] == rows.tolist()
    assert [order.position(row) for row in rows.tolist()] == positions.tolist()


@pytest.mark.parametrize("shuffle", [None, "window", "full"])
@pytest.mark.parametrize("shard_rows", [[], [0, 0]])
def test_an_epoch_may_be_empty(shuffle, shard_rows):
    order = make(shard_rows, shuffle=shuffle)
    assert len(order) == 0
    assert all_rows(order) == []
    with pytest.raises(IndexError):
        order.row(0)


@pytest.mark.parametrize("shuffle", [None, "window", "full"])
def test_what_is_outside_of_the_epoch_is_refused(shuffle):
    order = make(COCO, shuffle=shuffle)
    for outside in (-1, 200):
        with pytest.raises(IndexError, match="200 rows of the epoch"):
            order.row(outside)
        with pytest.raises(IndexError, match="200 rows of the epoch"):
            order.position(outside)
        with pytest.raises(IndexError, match="200 rows of the epoch"):
            order.rows_at(np.array([0, outside], dtype=np.int64))
    for start, stop in [(0, 201), (-1, 3), (5, 4)]:
        with pytest.raises(IndexError, match="200 rows of the epoch"):
            order.rows(start, stop)


def test_a_shuffle_that_is_unknown_is_refused():
    with pytest.raises(OptionError, match="shuffle='windows'"):
        make(COCO, shuffle="windows")


def test_a_window_of_no_shards_is_refused():
    with pytest.raises(OptionError, match="window_shards=0"):
        make(COCO, window_shards=0)


def test_a_shard_of_negative_rows_is_refused():
    with pytest.raises(ValueError, match="shard 1 has -1 rows"):
        make([3, -1])
