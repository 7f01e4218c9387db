"""D: what stock dispatch mode costs and ours must not, in 2 and in 4 real processes; counted, never timed."""

import pytest
import torch

pytest_plugins = ["rank_pool"]
pytestmark = [pytest.mark.ranks, pytest.mark.parametrize("ranks", [2, 4])]

both_ways = pytest.mark.parametrize("side", ["loader", "installed"])


@both_ways
def test_d1_a_rank_receives_its_portion_only(ours_is_right):
    ours_is_right("D1")


@both_ways
def test_d2_a_batch_holds_its_own_memory_only(ours_is_right):
    ours_is_right("D2")


@both_ways
def test_d3_the_source_is_read_while_the_user_holds_a_batch(ours_is_right):
    ours_is_right("D3")


@both_ways
def test_d4_the_first_batch_needs_one_step_and_one_sample(ours_is_right):
    ours_is_right("D4")


@both_ways
def test_d5_workers_start_beside_the_reader_only(ours_is_right):
    ours_is_right("D5")


@both_ways
def test_d6_a_step_needs_no_collective(ours_is_right):
    ours_is_right("D6")


@both_ways
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_d7_copies_to_the_device_come_out_of_pinned_memory(ours_is_right):
    ours_is_right("D7", device="cuda")
