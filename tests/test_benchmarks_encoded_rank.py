import encoded_rank
from benchmark_cases import make_images
from encoded_plan import Plan
from encoded_rank import LAST_STEPS, Bench


class Bringer:
    """Steps of 1, 10, 100, ... bytes."""

    def __init__(self):
        self.epochs = 0

    def steps(self):
        self.epochs += 1
        return iter([10**step for step in range(6)])

    def received_bytes(self):
        return self.epochs * 7

    def close(self):
        self.epochs = -1


def bench_of(tmp_path, monkeypatch, bringer):
    monkeypatch.setattr(encoded_rank, "bringer", lambda *_, **__: bringer)
    data = make_images(tmp_path / "packed", 24)
    return Bench(Plan(data=data, ranks=1, rows=4, arms=["copy"], rounds=1, passes=2, warmup_steps=1), 0)


def test_the_first_and_last_steps_are_brought_but_not_timed(tmp_path, monkeypatch):
    bench = bench_of(tmp_path, monkeypatch, Bringer())
    turn = bench.turn("copy")
    assert LAST_STEPS == 2
    assert turn.part_bytes == 2 * 1110
    assert (turn.epoch_bytes, turn.received_bytes) == (2 * 111_111, 2 * 7)
    assert turn.seconds > 0


def test_a_rank_without_work_waits(tmp_path, monkeypatch):
    turn = bench_of(tmp_path, monkeypatch, None).turn("copy")
    assert (turn.seconds, turn.part_bytes, turn.epoch_bytes, turn.received_bytes) == (0, 0, 0, 0)


def test_what_is_held_is_given_back(tmp_path, monkeypatch):
    bringer = Bringer()
    bench_of(tmp_path, monkeypatch, bringer).close()
    assert bringer.epochs == -1
