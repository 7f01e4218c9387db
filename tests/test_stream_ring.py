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


def test_the_lowest_place_that_is_large_enough_is_taken():
    ring = Ring(20)
    starts = [ring.take(4) for _ in range(5)]
    for start in (starts[1], starts[3]):
        ring.give(start)
    assert [ring.take(5), ring.take(3), ring.take(4), ring.take(1)] == [None, starts[1], starts[3], starts[1] + 3]


def test_spans_of_one_size_use_the_same_few_places():
    ring = Ring(100)
    starts = [ring.take(4), ring.take(4)]
    seen = set(starts)
    for _ in range(20):
        ring.give(starts.pop(0))
        starts.append(ring.take(4))
        seen.add(starts[-1])
    assert seen == {0, 4}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1)])
def test_neighbours_that_are_free_become_one_place(order):
    ring = Ring(9)
    starts = [ring.take(3) for _ in range(3)]
    for number in order:
        ring.give(starts[number])
    assert ring.take(9) == 0


def test_what_is_not_taken_cannot_be_given_back():
    ring = Ring(10)
    start = ring.take(4)
    ring.give(start)
    with pytest.raises(KeyError):
        ring.give(start)
