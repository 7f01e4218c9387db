"""Which source each position is given to."""

import hashlib
import math
import pickle
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.errors import OptionError
from stream.shares import LONGEST_PERIOD, Shares

COUNTS = st.lists(st.integers(1, 300), min_size=1, max_size=9)
FLOATS = st.lists(st.floats(0.05, 1), min_size=1, max_size=4)
law = settings(deadline=None)
PINNED = [0, 1, 0, 0, 0, 1, 0, 0, 1, 0]  # weights 0.7 and 0.3


def sequence(shares, count):
    return shares.of(np.arange(count, dtype=np.int64))[0]


def given_so_far(shares, count):
    """How many of the first 1, 2, ..., count positions each source has: int64 [count, sources]."""
    return np.cumsum(sequence(shares, count)[:, None] == np.arange(len(shares.counts)), axis=0)


def farthest(shares, count):
    """The largest distance of any source from its share in any prefix, times the period: a whole number."""
    ends = np.arange(1, count + 1, dtype=np.int64)
    return int(np.abs(given_so_far(shares, count) * shares.period - ends[:, None] * np.array(shares.counts)).max())


def by_the_rule(counts):
    """Tijdeman's rule, word for word, in fractions."""
    period, kinds = sum(counts), len(counts)
    least = Fraction(1, 2 * kinds - 2)
    weights = [Fraction(count, period) for count in counts]
    so_far, found = [0] * kinds, []
    for position in range(period):
        behind = [(position + 1) * weight - had for weight, had in zip(weights, so_far, strict=True)]
        may = [source for source in range(kinds) if behind[source] >= least]
        found.append(min(may, key=lambda source: ((1 - least - behind[source]) / weights[source], source)))
        so_far[found[-1]] += 1
    return found


def test_the_sequence_of_seven_to_three_is_pinned():
    assert sequence(Shares([0.7, 0.3]), 20).tolist() == PINNED * 2


def test_a_long_sequence_of_many_sources_is_pinned():
    shares = Shares([2**0.5, 3**0.5, 5**0.5, 1, 7**0.5])
    assert shares.counts == (13749, 16839, 21739, 9722, 25722)
    found = hashlib.sha256(sequence(shares, 100_000).astype("<i8").tobytes()).hexdigest()
    assert found == "ac572da038fdf63c00fad9a66cfd2b7d01a577fb5332bedaa09da13bc7b1587d"


def test_after_each_of_100_000_prefixes_seven_to_three_is_within_half_a_sample():
    assert farthest(Shares([0.7, 0.3]), 100_000) <= 5  # tenths


@law
@given(COUNTS)
def test_after_every_prefix_each_source_is_within_less_than_one_of_its_share(counts):
    shares = Shares(counts)
    assert shares.weights == tuple(Fraction(count, sum(counts)) for count in counts)
    bound = 1 - Fraction(1, 2 * len(counts) - 2) if len(counts) > 1 else 0
    assert farthest(shares, shares.period) <= bound * shares.period
    assert given_so_far(shares, shares.period)[-1].tolist() == list(shares.counts)  # so the next period is as this one


@settings(deadline=None, max_examples=25)
@given(FLOATS)
def test_any_weights_are_met_within_a_ten_thousandth_of_each(weights):
    shares = Shares(weights)
    for kept, weight in zip(shares.weights, weights, strict=True):
        assert abs(float(kept) / (weight / math.fsum(weights)) - 1) <= 1.0001e-4
    assert farthest(shares, shares.period) < shares.period


@law
@given(st.lists(st.integers(1, 12), min_size=2, max_size=5))
def test_it_is_the_published_rule(counts):
    shares = Shares(counts)
    assert sequence(shares, shares.period).tolist() == by_the_rule(shares.counts)


@law
@given(COUNTS, st.lists(st.integers(0, 10**12), max_size=20))
def test_any_position_is_reached_at_once_and_found_again(counts, positions):
    shares = Shares(counts)
    source, nth = shares.of(np.array(positions, dtype=np.int64))
    assert source.dtype == nth.dtype == np.int64
    for position, one, number in zip(positions, source.tolist(), nth.tolist(), strict=True):
        assert shares.source_of(position) == one
        assert shares.count_before(one, position) == number
        assert shares.position(one, number) == position
        assert sum(shares.count_before(other, position) for other in range(len(counts))) == position


@law
@given(COUNTS, st.data())
def test_the_draws_of_a_source_are_counted_in_the_order_of_their_positions(counts, data):
    shares = Shares(counts)
    source = data.draw(st.integers(0, len(counts) - 1))
    places = [shares.position(source, nth) for nth in range(2 * shares.counts[source])]
    assert places == np.flatnonzero(sequence(shares, 2 * shares.period) == source).tolist()


@pytest.mark.parametrize(
    ("weights", "counts"),
    [
        ([5], (1,)),
        ([2, 2], (1, 1)),
        ([70, 30], (7, 3)),
        ([0.7, 0.3], (7, 3)),
        ([np.float64(0.7), np.float64(0.3)], (7, 3)),
        ([np.int64(7), 3], (7, 3)),
        ([0.1, 0.2, 0.3, 0.4], (1, 2, 3, 4)),
        ([1 / 3, 2 / 3], (1, 2)),
        ([1 / 6, 5 / 6], (1, 5)),
        ([Fraction(1, 7), Fraction(6, 7)], (1, 6)),
        ([10**400, 3 * 10**400], (1, 3)),
        ([0.00001, 0.99999], (1, 99_999)),
        ([1] * 1000, (1,) * 1000),
        ([118_287, 5_000], (89_354, 3_777)),
    ],
)
def test_weights_become_the_smallest_whole_counts(weights, counts):
    assert Shares(weights).counts == counts


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(1, LONGEST_PERIOD // 4), min_size=1, max_size=4))
def test_counts_up_to_the_longest_period_are_met_exactly(counts):
    divisor = math.gcd(*counts)
    assert Shares(counts).counts == tuple(count // divisor for count in counts)


def test_the_longest_period_keeps_the_law():
    shares = Shares([1, 2, 3, 12_345, 87_649])
    assert shares.period == LONGEST_PERIOD
    assert farthest(shares, shares.period) <= shares.period * 7 // 8


def test_it_can_be_pickled_and_not_be_changed():
    shares = pickle.loads(pickle.dumps(Shares([0.7, 0.3])))
    assert sequence(shares, 10).tolist() == PINNED
    with pytest.raises(ValueError, match="read-only"):
        Shares([0.7, 0.3])._table[0] = 1


def test_no_positions_have_no_sources():
    source, nth = Shares([1, 2]).of(np.empty(0, dtype=np.int64))
    assert source.tolist() == nth.tolist() == []


def test_no_weights_are_refused():
    with pytest.raises(OptionError, match="give one positive number for each source"):
        Shares([])


@pytest.mark.parametrize("weight", [0, -1, 0.0, -0.5, math.nan, math.inf, True, "1", None, Decimal(1), 1j])
def test_a_weight_that_is_no_positive_number_is_refused(weight):
    with pytest.raises(OptionError, match=r"weights\[1\]=.*must be a positive finite number; leave out a source"):
        Shares([1, weight])


@pytest.mark.parametrize("weights", [[1, 10**6], [1e-300, 1.0], [5e-324, 1e308], [1, 1, 1e-7]])
def test_weights_that_cannot_be_met_are_refused_with_some_that_can(weights):
    with pytest.raises(OptionError, match=r"within 1/10,000 .* round them, e\.g\. to \(") as caught:
        Shares(weights)
    assert caught.value.option == "weights"
    suggested = [int(word) for word in caught.value.problem.rpartition("(")[2].rstrip(")").split(", ")]
    assert len(Shares(suggested).counts) == len(weights)


def test_what_is_outside_of_the_sequence_is_refused():
    shares = Shares([0.7, 0.3])
    with pytest.raises(IndexError, match="position -1 is below 0"):
        shares.source_of(-1)
    with pytest.raises(IndexError, match="position -1 is below 0"):
        shares.of(np.array([3, -1], dtype=np.int64))
    with pytest.raises(IndexError, match="position -1 is below 0"):
        shares.count_before(0, -1)
    with pytest.raises(IndexError, match="nth -1 is below 0"):
        shares.position(0, -1)
    for source in (-1, 2):
        with pytest.raises(IndexError, match=f"source {source} of 2 sources"):
            shares.position(source, 0)
        with pytest.raises(IndexError, match=f"source {source} of 2 sources"):
            shares.count_before(source, 0)
