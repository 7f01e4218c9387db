"""Reading ahead: in order, bounded, the first error ends it, and nothing goes on after the end."""

import gc
import threading
from itertools import accumulate, count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranks import left_behind, soon_left_behind
from stream.read_ahead import ReadAhead

LIMIT_S = 20
law = settings(deadline=None, max_examples=60)


class Gauge:
    """Loads items and counts: what was started, and what the consumer has asked for."""

    def __init__(self):
        self.started, self.asked = 0, 0
        self.most = []
        self.changed = threading.Condition()

    def load(self, item):
        with self.changed:
            self.started += 1
            self.most.append((self.asked, self.started))
            self.changed.notify_all()
        return item

    def next_of(self, ahead):
        with self.changed:
            self.asked += 1
        return next(ahead)

    def wait_until_started(self, number):
        with self.changed:
            assert self.changed.wait_for(lambda: self.started >= number, LIMIT_S)


@law
@given(items=st.lists(st.integers(), max_size=30), depth=st.integers(1, 5))
def test_results_come_in_the_order_of_the_items(items, depth):
    assert list(ReadAhead(lambda item: (item,), items, depth=depth)) == [(item,) for item in items]


def test_a_result_that_is_ready_earlier_waits_for_its_turn():
    second_done = threading.Event()

    def load(item):
        if item == 0:
            assert second_done.wait(LIMIT_S)
        else:
            second_done.set()
        return item

    assert list(ReadAhead(load, range(2), depth=2)) == [0, 1]


@law
@given(items=st.integers(1, 12), depth=st.integers(1, 4))
def test_it_reads_as_far_ahead_as_it_may_and_no_farther(items, depth):
    gauge = Gauge()
    with ReadAhead(gauge.load, range(items), depth=depth) as ahead:
        for number in range(items):
            assert gauge.next_of(ahead) == number
            gauge.wait_until_started(min(items, number + 1 + depth))
    assert all(started <= asked + depth for asked, started in gauge.most)


@law
@given(costs=st.lists(st.integers(0, 9), min_size=1, max_size=20), budget=st.integers(1, 15))
def test_what_is_held_stays_within_the_budget_unless_it_is_one_item(costs, budget):
    gauge = Gauge()
    ends = [0, *accumulate(costs)]
    with ReadAhead(gauge.load, costs, depth=4, cost=int, budget_bytes=budget) as ahead:
        assert [gauge.next_of(ahead) for _ in costs] == costs
    for asked, started in gauge.most:
        assert started <= asked + 1 or ends[started] - ends[asked] <= budget


def test_an_item_that_costs_more_than_the_budget_is_loaded_alone():
    gauge = Gauge()
    with ReadAhead(gauge.load, [100, 100, 1], depth=3, cost=int, budget_bytes=10) as ahead:
        assert [gauge.next_of(ahead) for _ in range(3)] == [100, 100, 1]
    assert all(started <= asked + 1 for asked, started in gauge.most[:2])


@law
@given(items=st.integers(1, 10), bad=st.integers(0, 9), depth=st.integers(1, 4))
def test_the_first_error_of_an_item_comes_in_its_place_and_then_nothing(items, bad, depth):
    bad %= items

    def load(item):
        if item >= bad:
            raise ValueError(item)
        return item

    ahead = ReadAhead(load, range(items), depth=depth)
    assert [next(ahead) for _ in range(bad)] == list(range(bad))
    with pytest.raises(ValueError, match=f"^{bad}$"):
        next(ahead)
    assert list(ahead) == []
    assert left_behind() == []


@law
@given(good=st.integers(0, 6), depth=st.integers(1, 4))
def test_an_error_of_the_sequence_of_items_comes_in_its_place_and_then_nothing(good, depth):
    def items():
        yield from range(good)
        raise OSError("the source is gone")

    ahead = ReadAhead(lambda item: item, items(), depth=depth)
    assert [next(ahead) for _ in range(good)] == list(range(good))
    with pytest.raises(OSError, match="the source is gone"):
        next(ahead)
    assert list(ahead) == []
    assert left_behind() == []


def test_an_item_whose_cost_cannot_be_told_is_an_error_in_its_place():
    def cost(item):
        return 10 // item

    ahead = ReadAhead(lambda item: item, [2, 1, 0], depth=2, cost=cost)
    assert [next(ahead), next(ahead)] == [2, 1]
    with pytest.raises(ZeroDivisionError):
        next(ahead)


def test_a_stop_iteration_of_an_item_is_no_silent_end():
    def load(item):
        return next(iter(()))

    with pytest.raises(RuntimeError, match="raised StopIteration"):
        next(ReadAhead(load, range(3), depth=1))


def test_nothing_starts_before_the_first_next():
    taken = []
    ahead = ReadAhead(taken.append, iter(taken.append, None), depth=2)
    iter(ahead)
    assert left_behind() == []
    ahead.close()
    assert list(ahead) == []
    assert taken == []


@law
@given(taken=st.integers(0, 6), depth=st.integers(1, 4))
def test_close_ends_all_threads_at_any_moment(taken, depth):
    ahead = ReadAhead(lambda item: item, count(), depth=depth)
    assert [next(ahead) for _ in range(taken)] == list(range(taken))
    ahead.close()
    ahead.close()
    assert left_behind() == []
    assert list(ahead) == []


def test_close_waits_for_a_load_that_runs_and_starts_no_other():
    gauge, go_on = Gauge(), threading.Event()

    def load(item):
        gauge.load(item)
        assert go_on.wait(LIMIT_S)
        return item

    ahead = ReadAhead(load, count(), depth=1)
    consumer = threading.Thread(target=lambda: list(ahead))
    consumer.start()
    gauge.wait_until_started(1)
    closer = threading.Thread(target=ahead.close)
    closer.start()
    closer.join(0.1)
    assert closer.is_alive()
    go_on.set()
    closer.join(LIMIT_S)
    consumer.join(LIMIT_S)
    assert not closer.is_alive()
    assert not consumer.is_alive()
    assert gauge.started == 1
    assert left_behind() == []


def test_an_error_of_the_items_after_close_is_dropped():
    asked, go_on = threading.Event(), threading.Event()

    def items():
        yield 0
        asked.set()
        go_on.wait(LIMIT_S)
        raise OSError("too late")

    ahead = ReadAhead(lambda item: item, items(), depth=2)
    assert next(ahead) == 0
    assert asked.wait(LIMIT_S)
    threading.Timer(0.05, go_on.set).start()  # close waits for the items, so they go on after it has begun
    ahead.close()
    assert list(ahead) == []


def test_the_items_are_closed_when_reading_ends():
    closed = threading.Event()

    def items():
        try:
            yield from count()
        finally:
            closed.set()

    ahead = ReadAhead(lambda item: item, items(), depth=2)
    next(ahead)
    ahead.close()
    assert closed.is_set()


def test_after_the_last_item_no_thread_is_left():
    ahead = ReadAhead(lambda item: item, range(3), depth=2)
    assert list(ahead) == [0, 1, 2]
    assert left_behind() == []
    assert list(ahead) == []


def test_an_iterator_that_is_dropped_ends_its_threads():
    ahead = ReadAhead(lambda item: item, count(), depth=3)
    next(ahead)
    del ahead
    gc.collect()
    assert soon_left_behind() == []


def test_leaving_the_with_block_by_an_error_closes():
    ahead = ReadAhead(lambda item: item, count(), depth=2)
    with pytest.raises(ZeroDivisionError), ahead:
        next(ahead) / 0
    assert left_behind() == []
