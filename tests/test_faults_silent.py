"""A: wrong data of stock dispatch mode that ours must not give, in 2 and in 4 real processes."""

import pytest
import torch

pytest_plugins = ["rank_pool"]
pytestmark = [pytest.mark.ranks, pytest.mark.parametrize("ranks", [2, 4])]

both_ways = pytest.mark.parametrize("side", ["loader", "installed"])
loader_only = pytest.mark.parametrize("side", ["loader"])


@both_ways
def test_a1_channels_last_images_arrive_with_equal_pixels_and_strides(ours_is_right):
    ours_is_right("A1")


@both_ways
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a1_channels_last_images_arrive_on_a_cuda_device_with_equal_pixels_and_strides(ours_is_right):
    ours_is_right("A1", device="cuda")


@both_ways
def test_a2_workers_that_end_unevenly_lose_no_row(ours_is_right):
    ours_is_right("A2")


@both_ways
def test_a3_a_pipeline_that_splits_by_node_is_read_whole(ours_is_right):
    ours_is_right("A3")


@both_ways
def test_a3_a_pipeline_with_the_default_splitter_is_read_whole(ours_is_right):
    ours_is_right("A3-default")


@both_ways
def test_a4_image_patches_stay_with_their_samples(ours_is_right):
    ours_is_right("A4")


@both_ways
def test_a5_a_list_of_tensors_is_split_between_its_elements(ours_is_right):
    ours_is_right("A5")


@loader_only
def test_a6_the_main_process_alone_writes_the_state_and_all_resume_from_it(ours_is_right):
    ours_is_right("A6")


@loader_only
def test_a7_resuming_over_a_source_with_a_state_loses_no_row(ours_is_right):
    ours_is_right("A7")


@loader_only
def test_a8_resuming_with_split_batches_loses_no_row(ours_is_right):
    ours_is_right("A8")


@both_ways
def test_a9_skipping_steps_of_map_style_data_skips_exactly_those(ours_is_right):
    ours_is_right("A9")


@loader_only
def test_a10_after_load_state_the_next_epoch_has_its_own_order(ours_is_right):
    ours_is_right("A10")


@both_ways
def test_a11_the_epoch_reaches_workers_that_live_on(ours_is_right):
    ours_is_right("A11")


@both_ways
def test_a12_ranks_beside_each_other_in_a_mesh_get_the_same_rows(ours_is_right):
    ours_is_right("A12")


@loader_only
def test_a13_what_is_no_data_loader_is_dispatched_once(ours_is_right):
    ours_is_right("A13")


@loader_only
def test_a14_drop_last_drops_less_than_a_step_and_describe_counts_it(ours_is_right):
    ours_is_right("A14")


@both_ways
def test_a15_without_even_batches_nothing_is_padded(ours_is_right):
    ours_is_right("A15")


@both_ways
def test_a16_leaving_an_evaluation_by_break_does_not_disturb_accumulation(ours_is_right):
    ours_is_right("A16")
