import pytest
import torch

import transport_rank
from transport_arms import ReadyBatches, WrongPortionError
from transport_plan import Plan
from transport_rank import Bench

PLAN = Plan(ranks=1, rows=4, side=4, dtypes=["uint8"], arms=["scatter"], rounds=1, seconds=0.001, warmup_steps=2)


class Alone:
    process_index = 0


class Here:
    """A way from a process to itself; `more` steps come than were asked for."""

    more = 0

    def __init__(self, plan, dtype, accelerator):
        self.source, self.bytes, self.asked = ReadyBatches(plan, dtype, filled=True), 0, []

    def images(self, steps):
        self.asked.append(steps)
        self.source.steps = steps + self.more
        for batch in self.source:
            self.bytes += batch["image"].nbytes
            yield batch["image"]

    def received_bytes(self):
        return self.bytes


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.setitem(transport_rank.CARRIERS, "scatter", Here)
    return Bench(PLAN, "uint8", Alone())


def test_a_turn_is_an_epoch_of_which_the_middle_is_timed(bench):
    turn = bench.turn("scatter")
    assert bench._carriers["scatter"].asked == [PLAN.warmup_steps + turn.steps + 4]
    assert turn.seconds > 0
    assert turn.received_bytes == 4 * 3 * 4 * 4


def test_the_number_of_steps_is_fitted_to_the_seconds_and_bounded(bench, monkeypatch):
    bench.fit("scatter")
    assert 4 <= bench.turn("scatter").steps <= 5000
    monkeypatch.setattr(transport_rank, "largest", lambda seconds: 1e9)
    bench.fit("scatter")
    assert bench.turn("scatter").steps == 4


def test_an_epoch_that_does_not_end_is_refused(bench, monkeypatch):
    monkeypatch.setattr(Here, "more", 1)
    with pytest.raises(WrongPortionError, match="got another step"):
        bench.turn("scatter")


def test_a_portion_of_another_step_is_refused(bench, monkeypatch):
    monkeypatch.setattr(Here, "images", lambda self, steps: iter([torch.ones(4, 3, 4, 4, dtype=torch.uint8)]))
    with pytest.raises(WrongPortionError):
        bench.turn("scatter")


def test_what_the_ways_hold_is_given_back(bench, monkeypatch):
    closed = []
    monkeypatch.setattr(Here, "close", lambda self: closed.append(True), raising=False)
    bench.close()
    assert closed == [True]
