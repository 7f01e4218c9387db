"""Batches that are odd, or that their user alters, on real ranks: each rank has its own, and nobody loses a step."""

import pytest

pytestmark = pytest.mark.ranks
pytest_plugins = ["rank_pool"]


@pytest.fixture
def call(pools):
    return lambda name, **arguments: pools(2).call(f"dispatch_job:{name}", arguments)


@pytest.mark.parametrize("kind", ["stream", "install"])
def test_a_portion_whose_batch_is_none_is_a_step_like_any_other(call, kind):
    expected = [[[0, 1], [4, 5]], [None, None]]
    assert call("batches_of_nothing", kind=kind, rows=8) == [[expected[0]] * 2, [expected[1]] * 2]


def test_a_source_may_give_none(call):
    first, second = [{"number": 0}, {"number": 2}], [None, None]
    assert call("batches_of_nothing", kind="given", rows=4) == [[first] * 2, [second] * 2]


@pytest.mark.parametrize("kind", ["given", "rows"])
def test_what_one_rank_alters_is_not_in_the_padding_of_another(call, kind):
    rows = 9
    found = call("altered_in_place", kind=kind, rows=rows)
    if kind == "given":
        assert found == [[[number] for number in range(0, 9, 2)], [[1], [3], [5], [7], [0]]]
    else:
        assert found == [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [0]]]


def test_a_tensor_that_stands_in_a_batch_twice_is_two_on_every_rank(call):
    assert call("one_tensor_twice") == [[[1, 1]] * 2] * 2


def test_a_rank_without_a_row_counts_the_epoch_all_the_same(call):
    assert call("uneven_epochs", rows=1) == [[[[0]]] * 3, [[]] * 3]


def test_a_small_tensor_that_is_kept_does_not_keep_its_batch(call):
    assert call("kept_labels", rows=12) == [[8] * 3] * 2
