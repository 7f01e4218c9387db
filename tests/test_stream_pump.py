"""stream/pump.py: items are pulled a few ahead, in order, and the iterator is closed by its own thread."""

import threading

import pytest

from ranks import left_behind
from ranks_in_threads import until
from stream.pump import Pump


@pytest.fixture
def pump():
    made = []

    def make(items, depth=2, wake=lambda: None):
        made.append(Pump(items, depth=depth, wake=wake))
        return made[-1]

    yield make
    for each in made:
        each.end()
        assert each.join(20)
    assert left_behind() == []


def taken(pump):
    got = []
    assert until(lambda: got.append(pump.take()) or got[-1] is not None)
    return got[-1]


def test_nothing_is_pulled_before_the_start(pump):
    asked = []
    made = pump(asked.append(number) or number for number in range(3))
    assert (made.take(), asked) == (None, [])
    assert made.join(0.0)


def test_items_come_in_order_and_then_the_end(pump):
    made = pump(iter(range(5)))
    made.start()
    assert [taken(made).item for _ in range(5)] == [0, 1, 2, 3, 4]
    assert taken(made) == (None, None)
    assert made.take() is None


def test_an_error_comes_in_its_place(pump):
    def items():
        yield 1
        raise KeyError("x")

    made = pump(items())
    made.start()
    assert taken(made).item == 1
    assert isinstance(taken(made).error, KeyError)


def test_at_most_depth_items_wait(pump):
    asked = []
    made = pump((asked.append(number) or number for number in range(100)), depth=3)
    made.start()
    assert not until(lambda: len(asked) > 4, 0.1)
    taken(made)
    assert until(lambda: len(asked) == 5)


def test_whoever_takes_is_woken_for_each_item_and_for_the_end(pump):
    woken = []
    made = pump(iter(range(2)), wake=lambda: woken.append(True), depth=5)
    made.start()
    assert until(lambda: len(woken) == 3)


def test_a_generator_is_closed_in_the_thread_that_ran_it(pump):
    threads = []

    def items():
        try:
            threads.append(threading.current_thread())
            yield from range(100)
        finally:
            threads.append(threading.current_thread())

    made = pump(items())
    made.start()
    taken(made)
    made.end()
    assert made.join(20)
    assert threads[0] is threads[1] is not threading.current_thread()
    assert made.take() is None


def test_join_tells_that_an_item_does_not_come(pump):
    go = threading.Event()
    made = pump(go.wait(20) for _ in range(2))
    made.start()
    made.end()
    assert not made.join(0.05)
    go.set()
    assert made.join(20)
