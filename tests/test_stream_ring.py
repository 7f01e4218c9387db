"""stream/ring.py: places never overlap, and what was given back is used again."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.ring import Ring

law = settings(deadline=None, max_examples=300)


@law
@given(size=st.integers(1, 60), moves=st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=80))
def test_places_lie_in_the_ring_and_never_overlap(size, moves):
    ring, taken = Ring(size), {}
    for takes, number in moves:
        if takes and (start := ring.take(number)) is not None:
            here = set(range(start, start + number))
            assert here <= set(range(size))
            assert all(not here & other for other in taken.values())
            taken[start] = here
        elif not takes and taken:
            start = list(taken)[number % len(taken)]
            assert ring.give(start) == len(taken.pop(start))
        assert len(ring) == len(taken)


@law
@given(size=st.integers(1, 60), need=st.integers(1, 70), earlier=st.lists(st.integers(1, 20), max_size=8))
def test_an_empty_ring_holds_whatever_is_not_larger_than_itself(size, need, earlier):
    ring = Ring(size)
    starts = [start for number in earlier if (start := ring.take(number)) is not None]
    for start in reversed(starts):
        ring.give(start)
    assert ring.take(need) == (0 if need <= size else None)


def test_places_given_back_in_order_let_it_go_round_for_ever():
    ring = Ring(10)
    starts = [ring.take(4), ring.take(4)]
    for _ in range(20):
        ring.give(starts.pop(0))
        starts.append(ring.take(4))
    assert None not in starts


def test_a_place_waits_for_those_before_it():
    ring = Ring(10)
    first, second = ring.take(5), ring.take(5)
    ring.give(second)
    third = ring.take(5)
    assert third == 5
    ring.give(third)
    assert ring.take(6) is None
    ring.give(first)
    assert ring.take(10) == 0


def test_a_span_that_does_not_fit_behind_the_last_goes_to_the_beginning():
    ring = Ring(10)
    first, second = ring.take(4), ring.take(3)
    ring.give(first)
    assert ring.take(4) == 0
    assert ring.take(1) is None  # what is left behind `second` comes free with it
    ring.give(second)
    assert ring.take(6) == 4


def test_what_is_not_taken_cannot_be_given_back():
    ring = Ring(10)
    start = ring.take(4)
    ring.give(start)
    with pytest.raises(KeyError):
        ring.give(start)
