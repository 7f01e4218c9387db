"""B: crashes of stock dispatch mode that ours must not have, in 2 and in 4 real processes."""

import pytest

pytest_plugins = ["rank_pool"]
pytestmark = [pytest.mark.ranks, pytest.mark.parametrize("ranks", [2, 4])]

both_ways = pytest.mark.parametrize("side", ["loader", "installed"])


@both_ways
def test_b1_plain_values_are_carried_beside_tensors(ours_is_right):
    ours_is_right("B1")


@both_ways
def test_b2_batches_may_have_another_shape_on_each_rank(ours_is_right):
    ours_is_right("B2")


@both_ways
def test_b3_a_tensor_of_no_dimension_is_carried_as_it_is(ours_is_right):
    ours_is_right("B3")


@both_ways
def test_b4_a_source_of_nothing_is_an_empty_epoch(ours_is_right):
    ours_is_right("B4")


@both_ways
def test_b5_one_sample_is_padded_for_every_rank_and_gathered_once(ours_is_right):
    ours_is_right("B5")


@both_ways
def test_b6_rare_types_are_carried_and_what_cannot_be_is_named(ours_is_right):
    ours_is_right("B6")


@both_ways
def test_b7_batches_made_by_the_source_are_split(ours_is_right):
    ours_is_right("B7")


@pytest.mark.parametrize("side", ["installed"])
def test_b8_skip_first_batches_keeps_what_the_loader_was_prepared_with(ours_is_right):
    ours_is_right("B8")


@both_ways
def test_b9_the_size_of_a_whole_step_is_a_number(ours_is_right):
    ours_is_right("B9")
