"""The order of an epoch of several sources, mixed by weight."""

import hashlib
import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.errors import OptionError
from stream.mix import Mix, MixOrder
from stream.order import Order
from stream.permutation import derive_key
from stream.shares import Shares

SOURCES = st.lists(
    st.tuples(st.integers(1, 6), st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any)),
    min_size=1,
    max_size=4,
)  # of each its weight and the rows of its shards
SHUFFLES = st.sampled_from([None, "window", "full"])
UNTIL = st.sampled_from(["first", "all"])
SEEDS = st.integers(0, 2**63 - 1)
law = settings(deadline=None)
PINNED = {
    "first": [3, 11, 2, 6, 5, 8, 1, 0, 9, 4],
    "all": [3, 11, 2, 6, 5, 8, 1, 0, 9, 4, 4, 10, 6, 2, 0, 7],
}
TWO = [[4, 3], [5]]  # rows of the shards of two sources
MANY = [[1000] * 30, [900, 800]]


def make(shard_rows=TWO, weights=(0.7, 0.3), *, until="first", shuffle="window", seed=0, epoch=0, window_shards=4):
    mix = Mix(Shares(weights), until)
    return MixOrder(mix, shard_rows, shuffle=shuffle, seed=seed, epoch=epoch, window_shards=window_shards)


def all_rows(order):
    return order.rows(0, len(order)).tolist()


def drawn(sources, **options):
    weights, shard_rows = zip(*sources, strict=True)
    return make(shard_rows, weights, **options), shard_rows, Shares(weights)


def starts(shard_rows):
    return np.concatenate([[0], np.cumsum([sum(rows) for rows in shard_rows])])


def times_of(order, shard_rows, source):
    """How often each row of a source is given."""
    first, end = starts(shard_rows)[source : source + 2]
    rows = np.array(all_rows(order))
    return np.bincount(rows[(first <= rows) & (rows < end)] - first, minlength=end - first).tolist()


@pytest.mark.parametrize("until", ["first", "all"])
def test_the_order_of_seven_to_three_and_seed_0_is_pinned(until):
    assert all_rows(make(until=until)) == PINNED[until]


def test_the_order_of_many_rows_is_pinned():
    digest = hashlib.sha256()
    for until in ("first", "all"):
        for shuffle in ("window", "full"):
            for epoch in (0, 1):
                order = make(MANY, until=until, shuffle=shuffle, epoch=epoch)
                digest.update(order.rows(0, len(order)).astype("<i8").tobytes())
    assert digest.hexdigest() == "4fac593067197bd0aedb0ca15c1af974b96b4243fe2fbb8bbd75b7c4517c2ffe"


def test_after_each_of_100_000_positions_seven_to_three_is_within_one_sample():
    order = make([[100_000], [30_000]])
    assert len(order) == 100_001  # the next position is source 1's draw 30,000
    ends = np.arange(1, 100_001)
    firsts = np.cumsum(order.rows(0, 100_000) < 100_000)
    assert np.abs(10 * firsts - 7 * ends).max() < 10


@law
@given(SOURCES, UNTIL, SHUFFLES, SEEDS)
def test_each_position_is_given_to_the_source_that_its_share_says(sources, until, shuffle, seed):
    order, shard_rows, shares = drawn(sources, until=until, shuffle=shuffle, seed=seed)
    source, _ = shares.of(np.arange(len(order), dtype=np.int64))
    rows = order.rows(0, len(order))
    assert (np.searchsorted(starts(shard_rows), rows, side="right") - 1).tolist() == source.tolist()
    assert order.draws == tuple(np.bincount(source, minlength=len(sources)).tolist())


@law
@given(SOURCES, SHUFFLES, SEEDS)
def test_until_first_gives_each_row_at_most_once_and_ends_when_a_source_has_none_left(sources, shuffle, seed):
    order, shard_rows, shares = drawn(sources, until="first", shuffle=shuffle, seed=seed)
    assert max(Counter(all_rows(order)).values(), default=0) <= 1
    asked = shares.source_of(len(order))
    assert order.draws[asked] == sum(shard_rows[asked])
    assert set(times_of(order, shard_rows, asked)) == {1}


@law
@given(SOURCES, SHUFFLES, SEEDS)
def test_until_all_gives_one_source_once_and_each_other_row_evenly_often(sources, shuffle, seed):
    order, shard_rows, shares = drawn(sources, until="all", shuffle=shuffle, seed=seed)
    last = shares.source_of(len(order) - 1)
    for source, rows in enumerate(map(sum, shard_rows)):
        times = times_of(order, shard_rows, source)
        whole, more = divmod(order.draws[source], rows)
        assert whole >= 1
        assert sorted(times) == [whole] * (rows - more) + [whole + 1] * more
        if source == last:
            assert (whole, more) == (1, 0)


@law
@given(SOURCES, UNTIL, SHUFFLES, SEEDS, st.data())
def test_any_range_and_any_positions_are_part_of_the_whole(sources, until, shuffle, seed, data):
    order, _, _ = drawn(sources, until=until, shuffle=shuffle, seed=seed, window_shards=2)
    rows = all_rows(order)
    assert [order.row(position) for position in range(len(order))] == rows
    start = data.draw(st.integers(0, len(order)))
    stop = data.draw(st.integers(start, len(order)))
    assert order.rows(start, stop).tolist() == rows[start:stop]
    if rows:
        positions = data.draw(st.lists(st.integers(0, len(order) - 1), max_size=9))
        found = order.rows_at(np.array(positions, dtype=np.int64))
        assert found.tolist() == [rows[position] for position in positions]
        assert found.dtype == np.int64


@law
@given(SOURCES, UNTIL, SHUFFLES, SEEDS)
def test_positions_finds_each_row_wherever_it_stands(sources, until, shuffle, seed):
    order, shard_rows, _ = drawn(sources, until=until, shuffle=shuffle, seed=seed)
    rows = np.array(all_rows(order))
    for row in range(int(starts(shard_rows)[-1])):
        where = np.flatnonzero(rows == row).tolist()
        found = order.positions(row)
        assert found.dtype == np.int64
        assert found.tolist() == where
        if where:
            assert order.position(row) == where[0]
        else:
            with pytest.raises(IndexError, match=r"is not among the \d+ rows of this epoch"):
                order.position(row)


@law
@given(SOURCES, UNTIL, SHUFFLES, SEEDS, st.integers(0, 2**32 - 1))
def test_a_source_keeps_its_own_order_in_each_pass(sources, until, shuffle, seed, epoch):
    order, shard_rows, shares = drawn(sources, until=until, shuffle=shuffle, seed=seed, epoch=epoch)
    source, _ = shares.of(np.arange(len(order), dtype=np.int64))
    rows = order.rows(0, len(order))
    for number, shards in enumerate(shard_rows):
        own = (rows[source == number] - starts(shard_rows)[number]).tolist()
        for place in range(0, len(own), sum(shards)):
            alone = Order(
                shards,
                shuffle=shuffle,
                seed=derive_key(4, seed, number),
                epoch=epoch + place // sum(shards) * 2**32,
                window_shards=4,
            )
            assert own[place : place + sum(shards)] == all_rows(alone)[: len(own) - place]


@law
@given(SOURCES, UNTIL)
def test_the_length_is_known_without_an_order(sources, until):
    order, shard_rows, shares = drawn(sources, until=until)
    mix, rows = Mix(shares, until), [sum(shards) for shards in shard_rows]
    assert mix.length(rows) == len(order) == sum(mix.draws(rows))
    assert mix.draws(rows) == order.draws


def test_sources_of_equal_shards_are_not_permuted_alike():
    order = make([[50], [50]], [1, 1], shuffle="full")
    rows = np.array(all_rows(order))
    assert rows[rows < 50].tolist() != (rows[rows >= 50] - 50).tolist()


@pytest.mark.parametrize("shuffle", ["window", "full"])
def test_each_pass_and_each_epoch_is_another_order(shuffle):
    seen = set()
    for epoch in range(3):
        rows = np.array(all_rows(make([[50], [300]], [1, 1], until="all", shuffle=shuffle, epoch=epoch)))
        own = rows[rows < 50]
        assert len(own) == 300
        seen |= {tuple(own[start : start + 50].tolist()) for start in range(0, 300, 50)}
    assert len(seen) == 18


def test_another_seed_is_another_order():
    assert all_rows(make(MANY, seed=0)) != all_rows(make(MANY, seed=1))


def test_a_single_source_is_given_whole_once():
    for until in ("first", "all"):
        assert sorted(all_rows(make([[4, 0, 3]], [5], until=until))) == list(range(7))


def test_a_billion_rows_need_no_memory_for_rows():
    order = make([[10_000] * 70_000, [10_000] * 30_000], until="all", shuffle="window")
    assert len(order) == 1_000_000_000
    positions = np.array([0, 123_456_789, 900_000_000, 999_999_999], dtype=np.int64)
    rows = order.rows_at(positions)
    assert [order.position(row) for row in rows.tolist()] == positions.tolist()


def test_a_small_source_may_be_repeated_often():
    order = make([[3], [2_000]], [0.5, 0.5], until="all")
    assert order.draws == (2_000, 2_000)
    row = order.row(3_000)
    assert row < 3
    assert 3_000 in order.positions(row).tolist()


def test_it_can_be_pickled():
    assert all_rows(pickle.loads(pickle.dumps(make(until="all")))) == PINNED["all"]


def test_the_first_source_to_end_may_end_the_epoch_before_another_one_has_begun():
    order = make([[1], [1]], [1, 99])
    assert order.draws == (0, 1)
    assert order.positions(0).tolist() == []


def test_no_positions_have_no_rows():
    assert make().rows_at(np.empty(0, dtype=np.int64)).tolist() == []
    assert make().rows(3, 3).tolist() == []


def test_what_is_outside_of_the_epoch_is_refused():
    order = make()
    for outside in (-1, len(order)):
        with pytest.raises(IndexError, match=f"not within the {len(order)} rows of the epoch"):
            order.row(outside)
        with pytest.raises(IndexError, match=f"not within the {len(order)} rows of the epoch"):
            order.rows_at(np.array([0, outside], dtype=np.int64))
    for start, stop in [(0, len(order) + 1), (-1, 3), (5, 4)]:
        with pytest.raises(IndexError, match=f"not within the {len(order)} rows of the epoch"):
            order.rows(start, stop)
    for row in (-1, 12):
        with pytest.raises(IndexError, match="12 rows of the mixture's sources"):
            order.position(row)
        with pytest.raises(IndexError, match="12 rows of the mixture's sources"):
            order.positions(row)


def test_an_ending_that_is_unknown_is_refused():
    with pytest.raises(OptionError, match='until=\'last\': must be "first" or "all"'):
        make(until="last")


def test_sources_without_a_weight_are_refused():
    with pytest.raises(OptionError, match=r"weights=\[0.7, 0.3\]: are 2, but there are 3 sources; give one for each"):
        make([[1], [2], [3]])


@pytest.mark.parametrize("empty", [[], [0, 0]])
def test_a_source_without_rows_is_refused(empty):
    with pytest.raises(OptionError, match=r"sources\[1\]='0 rows': nothing can be drawn of it; leave it out"):
        make([[3], empty])


@pytest.mark.parametrize("epoch", [-1, 2**32])
def test_an_epoch_that_passes_would_run_into_is_refused(epoch):
    with pytest.raises(OptionError, match=f"epoch={epoch}: must be from 0"):
        make(epoch=epoch)


def test_a_source_that_is_repeated_beyond_all_measure_is_refused():
    with pytest.raises(OptionError, match=r"sources\[0\]='1 rows': is repeated 2\*\*32 times and more"):
        make([[1], [2**33]], [1, 1], until="all", shuffle="full")


def test_the_options_of_its_orders_are_checked():
    with pytest.raises(OptionError, match="shuffle='windows'"):
        make(shuffle="windows")
    with pytest.raises(OptionError, match="window_shards=0"):
        make(window_shards=0)
    with pytest.raises(ValueError, match="shard 1 has -1 rows"):
        make([[3, -1], [4]])
