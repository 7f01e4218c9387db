"""Counters of a loader and their snapshots."""

from dataclasses import FrozenInstanceError

import pytest

import stream.stats
from stream.stats import Counters, Stats


@pytest.fixture
def clock(monkeypatch):
    """A clock that only goes on when told."""

    class Clock:
        now = 100.0

    monkeypatch.setattr(stream.stats.time, "perf_counter", lambda: Clock.now)
    return Clock


def test_nothing_is_counted_at_first():
    assert Counters().snapshot() == Stats(steps=0, wait_s=0.0, first_wait_s=0.0)


def test_only_the_time_between_asking_and_getting_counts_as_wait(clock):
    counters = Counters()
    for wait, training in ((3.0, 50.0), (0.5, 60.0), (0.25, 70.0)):
        counters.waiting()
        clock.now += wait
        counters.received()
        clock.now += training
    assert counters.snapshot() == Stats(steps=3, wait_s=3.75, first_wait_s=3.0)


def test_the_last_wait_which_brought_no_step_is_not_counted(clock):
    counters = Counters()
    counters.waiting()
    clock.now += 9.0
    assert counters.snapshot() == Stats()


def test_a_snapshot_does_not_change():
    counters = Counters()
    before = counters.snapshot()
    counters.waiting()
    counters.received()
    assert before == Stats()
    with pytest.raises(FrozenInstanceError):
        before.steps = 1
