import pytest

from benchmark_cases import make_images
from encoded_arms import Steps, bringer, copier, pieces
from encoded_plan import Plan
from shards.dataset import DatasetReader


@pytest.mark.parametrize("arm", ["ours", "ours-verified"])
def test_a_rank_alone_gets_the_same_bytes_as_one_that_copies_them_in_every_epoch(arm, tmp_path):
    data = make_images(tmp_path / "packed", 26)
    plan = Plan(data=data, ranks=1, rows=4, arms=[arm], rounds=1, passes=1, warmup_steps=0)
    reader = DatasetReader(data)
    steps = Steps(plan, reader)
    ours = bringer(arm, plan, steps, rank=0)
    expected = list(copier(pieces(steps, reader), reader).steps())
    try:
        assert list(ours.steps()) == expected
        received = ours.received_bytes()
        assert sum(expected) <= received < 1.5 * sum(expected)
        assert list(ours.steps()) == expected
        assert ours.received_bytes() == 2 * received
    finally:
        ours.close()
