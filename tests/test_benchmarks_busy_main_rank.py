import pytest

import busy_main_rank
from benchmark_cases import make_images
from busy_main_plan import Plan
from busy_main_rank import Bench, spin
from meeting import joined


@pytest.fixture
def bench(tmp_path, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    data = make_images(tmp_path / "packed", 24)
    known = {"rounds": 1, "warmup_steps": 1, "steps": 3}
    plan = Plan(data=data, ranks=1, rows=4, side=32, decode_in=["thread"], **known)
    made = Bench(plan, "thread", joined(1))
    yield made
    made.close()


def test_python_takes_a_while():
    assert spin(1000) > 0


def test_the_python_of_a_step_is_half_of_its_loading(bench, monkeypatch):
    monkeypatch.setattr(bench, "_steps", lambda work: 3 * 0.2)
    monkeypatch.setattr(busy_main_rank, "_alone", lambda turns: turns * 1e-6)
    bench.fit()
    assert bench._turns == 100_000


def test_a_turn_measures_calm_and_busy_steps_and_python_alone(bench):
    bench._turns = 2000
    turn = bench.turn()
    assert turn.decode_in == "thread"
    assert min(turn.calm_s, turn.alone_s) > 0
    assert turn.busy_s > 3 * turn.python_s * 0.5
    assert turn.python_s > 0
