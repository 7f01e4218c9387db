import time

import pytest
import torch

import end_to_end_rank
from benchmark_cases import make_images
from end_to_end_plan import Plan
from end_to_end_rank import Bench, WrongImagesError


class Alone:
    is_main_process = True


class Images:
    """As many images as are asked for, of this side, after a pause in seconds."""

    def __init__(self, side, pause_s=0.0):
        self.side, self.pause_s, self.open = side, pause_s, 0

    def images(self):
        self.open += 1
        try:
            while True:
                time.sleep(self.pause_s)
                yield torch.zeros(4, 3, self.side, self.side, dtype=torch.uint8)
        finally:
            self.open -= 1


@pytest.fixture
def bench_of(tmp_path, monkeypatch):
    def make(loader):
        monkeypatch.setattr(end_to_end_rank, "loader", lambda *_: loader)
        data = make_images(tmp_path / "packed", 6)
        known = {"rounds": 1, "warmup_steps": 1, "steps": 3, "ceiling_s": 0.02, "sleeps": 1.1}
        return Bench(Plan(data=data, ranks=1, rows=4, side=8, arms=["ceiling", "ours-uint8"], **known), Alone())

    return make


def test_a_turn_takes_its_steps_and_leaves_no_iteration_open(bench_of):
    images = Images(8, 0.001)
    turn = bench_of(images).turn("ours-uint8")
    assert turn.rows == 12
    assert turn.seconds >= 3 * 0.001
    assert images.open == 0


def test_the_ceiling_is_measured_with_the_images_of_the_dataset(bench_of):
    turn = bench_of(Images(8)).turn("ceiling")
    assert turn.rows > 0
    assert turn.seconds == 0.02


def test_a_sleeping_step_is_as_long_as_was_asked_for_and_the_waits_are_apart(bench_of):
    bench = bench_of(Images(8, 0.01))
    step_s = bench.turn("ours-uint8").seconds / 3
    waiting = bench.waiting(1.1)
    assert waiting.sleep_s == pytest.approx(1.1 * step_s)
    assert waiting.wait_s >= 3 * 0.01
    assert waiting.seconds >= waiting.wait_s + 3 * waiting.sleep_s


def test_images_of_another_size_are_refused(bench_of):
    with pytest.raises(WrongImagesError, match="by ours-uint8 are wrong"):
        bench_of(Images(9)).turn("ours-uint8")


def test_what_the_ways_hold_is_given_back(bench_of):
    closed = []
    images = Images(8)
    images.close = lambda: closed.append(True)
    bench_of(images).close()
    assert closed == [True]
