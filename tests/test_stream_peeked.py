"""Looking ahead."""

from itertools import count

import pytest

from stream.peeked import Peeked


def failing(good):
    yield from range(good)
    raise OSError("the connection was reset")


def test_items_come_in_their_order_whatever_was_looked_at():
    ahead = Peeked(iter(range(5)))
    assert ahead.has(3)
    assert ahead.peek(2) == [0, 1]
    assert ahead.take(4) == [0, 1, 2, 3]
    assert list(ahead) == [4]


def test_it_reads_no_farther_than_it_was_asked_to_look():
    numbers = count()
    ahead = Peeked(numbers)
    assert ahead.has(2)
    assert next(numbers) == 2


def test_at_the_end_there_is_less_than_was_asked_for():
    ahead = Peeked(iter(range(2)))
    assert not ahead.has(3)
    assert ahead.take(3) == [0, 1]
    assert not ahead.has(1)


def test_an_error_counts_as_something_that_follows():
    assert Peeked(failing(0)).has(9)


def test_an_error_waits_until_the_items_before_it_are_taken():
    ahead = Peeked(failing(2))
    assert ahead.has(3)
    assert ahead.take(2) == [0, 1]
    for _ in range(2):
        with pytest.raises(OSError, match="reset"):
            ahead.take(1)


def test_what_an_error_leaves_incomplete_is_not_given():
    with pytest.raises(OSError, match="reset"):
        Peeked(failing(2)).take(3)
