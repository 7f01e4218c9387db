"""stream/filling.py: quick portions are filled at once, slow ones aside."""

import threading

import pytest

from ranks import left_behind
from ranks_in_threads import until
from stream.filling import Filling
from stream.owning import new_memory
from stream.underway import Load


class Step:
    def __init__(self, *loads):
        self._loads, self.done = loads, []

    def loads(self, _):
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
    step = Step(*[Load(lambda: threads.append(threading.current_thread()), slow=False, size=1)] * 2)
    filling.begin(step)
    assert threads == [threading.current_thread()] * 2
    assert step.done == []
    filling.settle()
    assert (step.done, filling.woken) == ([None, None], [])
    filling.settle()
    assert step.done == [None, None]


def test_what_is_slow_is_filled_aside_and_wakes_the_feeder(filling):
    go = threading.Event()
    step = Step(Load(lambda: go.wait(20), slow=True, size=1))
    filling.begin(step)
    filling.settle()
    assert step.done == []
    go.set()
    assert until(lambda: filling.woken)
    filling.settle()
    assert step.done == [None]


def test_a_large_copy_is_made_aside_too_so_that_the_feeder_goes_on_answering(filling):
    threads = []
    step = Step(Load(lambda: threads.append(threading.current_thread()), slow=False, size=1 << 20))
    filling.begin(step)
    assert until(lambda: filling.settle() or step.done)
    assert threads != [threading.current_thread()]


@pytest.mark.parametrize("slow", [True, False])
def test_an_error_is_told_to_its_step(filling, slow):
    def fail():
        raise OSError("disk")

    step = Step(Load(fail, slow=slow, size=1))
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

    filling.begin(Step(*[Load(fill, slow=True, size=1)] * 20))
    assert started.acquire(timeout=20)
    threading.Timer(0.05, go.set).start()
    filling.close()
    assert 1 <= len(ran) < 20
    assert left_behind() == []
