"""stream/filling.py: quick portions are filled at once, slow ones aside."""

import os
import threading

import pytest

from ranks import left_behind
from ranks_in_threads import until
from stream.filling import Filling
from stream.owning import new_memory
from stream.underway import Load

QUICK = {"at_once": None, "waits": False, "size": 1}
SLOW = {"at_once": None, "waits": True, "size": 1}


class Step:
    def __init__(self, *loads):
        self._loads, self.done = loads, []

    def loads(self, empty, reader):
        self.asked = empty, reader
        return self._loads

    def loaded(self, error):
        self.done.append(error)


@pytest.fixture
def filling():
    woken = []
    filling = Filling(lambda: woken.append(True), new_memory)
    filling.woken = woken
    yield filling
    filling.close()
    assert left_behind() == []


def test_what_is_quick_is_filled_before_begin_returns_and_told_when_settled(filling):
    threads = []
    step = Step(*[Load(lambda: threads.append(threading.current_thread()), **QUICK)] * 2)
    filling.begin(step)
    assert threads == [threading.current_thread()] * 2
    assert step.done == []
    filling.settle()
    assert (step.done, filling.woken) == ([None, None], [])
    filling.settle()
    assert step.done == [None, None]


def test_what_is_slow_is_filled_aside_and_wakes_the_feeder(filling):
    go = threading.Event()
    step = Step(Load(lambda: go.wait(20), **SLOW))
    filling.begin(step)
    filling.settle()
    assert step.done == []
    go.set()
    assert until(lambda: filling.woken)
    filling.settle()
    assert step.done == [None]


def test_a_large_copy_is_made_aside_too_so_that_the_feeder_goes_on_answering(filling):
    threads = []
    step = Step(Load(lambda: threads.append(threading.current_thread()), **{**QUICK, "size": 1 << 20}))
    filling.begin(step)
    assert until(lambda: filling.settle() or step.done)
    assert threads != [threading.current_thread()]


@pytest.mark.parametrize("slow", [True, False])
def test_an_error_is_told_to_its_step(filling, slow):
    def fail():
        raise OSError("disk")

    step = Step(Load(fail, at_once=None, waits=slow, size=1))
    filling.begin(step)
    assert until(lambda: filling.settle() or step.done)
    assert str(step.done[0]) == "disk"


def test_closing_waits_for_what_runs_and_drops_the_rest():
    filling = Filling(lambda: None, new_memory)
    started, go, ran = threading.Semaphore(0), threading.Event(), []

    def fill():
        started.release()
        go.wait(20)
        ran.append(True)

    filling.begin(Step(*[Load(fill, **SLOW)] * 20))
    assert started.acquire(timeout=20)
    threading.Timer(0.05, go.set).start()
    filling.close()
    assert 1 <= len(ran) < 20
    assert left_behind() == []


def test_the_feeder_helps_with_what_waits_for_a_thread_and_with_nothing_else(filling):
    go, threads = threading.Event(), []

    def slowly():
        threads.append(threading.current_thread())
        go.wait(20)

    large = {**QUICK, "size": 1 << 20}
    filling.begin(Step(*[Load(slowly, **large)] * 8))
    assert until(lambda: len(threads) == min(3, max(1, len(os.sched_getaffinity(0)) - 1)))
    assert filling.has_work
    step = Step(Load(lambda: threads.append("read"), **SLOW))
    filling.begin(step)
    assert until(lambda: filling.settle() or step.done)
    go.set()
    while filling.has_work:
        filling.help()
    assert threading.current_thread() in threads
    filling.help()


@pytest.mark.parametrize("cached", [True, False], ids=["in the page cache", "on a disk"])
def test_a_read_is_first_tried_without_waiting_and_then_waited_for_elsewhere(filling, cached):
    done = []

    def at_once():
        done.append(("at once", threading.current_thread().name.split("_")[0]))
        return cached

    def fill():
        done.append(("waiting", threading.current_thread().name.split("_")[0]))

    step = Step(Load(fill, at_once, waits=True, size=1))
    filling.begin(step)
    assert until(lambda: filling.settle() or step.done)
    assert step.done == [None]
    assert done == [("at once", "stream-fill")] + [("waiting", "stream-read")] * (not cached)


def test_an_error_of_a_read_that_does_not_wait_is_told_to_its_step_and_not_tried_again(filling):
    def at_once():
        raise OSError("cut")

    step = Step(Load(lambda: pytest.fail("tried again"), at_once, waits=True, size=1))
    filling.begin(step)
    assert until(lambda: filling.settle() or step.done)
    assert str(step.done[0]) == "cut"
