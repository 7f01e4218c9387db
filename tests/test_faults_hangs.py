"""C: hangs of stock dispatch mode that ours must not have; ranks that die, or end, are launched afresh."""

import pytest

from fault_cases.hangs import judge_death
from fault_cases.runner import ALL

pytest_plugins = ["rank_pool"]
pytestmark = pytest.mark.ranks

ranked = pytest.mark.parametrize("ranks", [2, 4])
both_ways = pytest.mark.parametrize("side", ["loader", "installed"])
EXITS = 2


@ranked
@both_ways
def test_c1_a_read_error_is_raised_on_every_rank_in_time_and_after_the_good_steps(ours_is_right):
    ours_is_right("C1")


@ranked
@both_ways
def test_c2_a_stall_beyond_the_time_out_of_the_group_is_only_waited_for(ours_is_right):
    ours_is_right("C2")


@pytest.mark.parametrize(
    ("ranks", "dead", "side"), [(2, 0, "loader"), (2, 1, "installed"), (4, 0, "installed"), (4, 3, "loader")]
)
def test_c2_a_dead_rank_is_noticed_and_named_by_the_others(new_pool, ranks, dead, side):
    found = new_pool(ranks).call("fault_cases.runner:die", {"rank": dead, "side": side}, limit_s=60, dying=[dead])
    verdict = judge_death(found, dead)
    assert found[dead] is None
    assert verdict.right, verdict.words


@ranked
@both_ways
def test_c3_what_is_skipped_is_neither_read_by_number_nor_put_into_batches(ours_is_right):
    ours_is_right("C3")


@ranked
@pytest.mark.parametrize("side", ["loader"])
def test_c3_shards_that_hold_only_what_is_skipped_need_not_be_there(ours_is_right):
    ours_is_right("C3-packed")


@ranked
@pytest.mark.parametrize("end_training", [True, False], ids=["end_training", "no end_training"])
def test_c4_every_rank_ends_cleanly_also_with_an_iteration_that_is_held(new_pool, ranks, end_training):
    for _ in range(EXITS):
        pool = new_pool(ranks)
        answers = pool.call("fault_cases.runner:run", {"fault": "C4", "side": "loader"})
        verdict = ALL["C4"].judge([answer["found"] for answer in answers])
        assert verdict.right, verdict.words
        assert [(rank.code, rank.text) for rank in pool.end(end_training=end_training)] == [(0, "")] * ranks
