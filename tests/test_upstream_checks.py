"""accelerate's own checks, out of its wheel, in two processes against our dispatcher. All of those named pass."""

import pytest

from ranks import run_ranks

pytestmark = pytest.mark.ranks

CHECKS = (
    "central_dl_preparation_check",
    "test_gradient_accumulation",
    "test_gradient_accumulation_with_opt_and_scheduler",
    "test_dataloader_break",
    "test_torch_metrics",
    "test_gather_for_metrics_with_iterable_dataset",
    "test_gather_for_metrics_with_non_tensor_objects_iterable_dataset",
    "test_gather_for_metrics_drop_last",
    "test_pickle_accelerator",
    "_test_stateful_dataloader_resume",
    "_test_stateful_dataloader_save_state_resume",
    "test_data_loader",
)


@pytest.fixture(scope="module")
def endings(tmp_path_factory):
    """How each check ended, on each rank; they share one start of the ranks."""
    return run_ranks("upstream.py", 2, {"checks": CHECKS}, tmp_path_factory.mktemp("upstream"))


@pytest.mark.parametrize("check", CHECKS)
def test_accelerates_own_check_passes_against_our_dispatcher(endings, check):
    assert [rank[check][0] for rank in endings] == ["passed", "passed"]


@pytest.mark.parametrize("check", [check for check in CHECKS if check != "test_pickle_accelerator"])
def test_the_check_iterated_a_loader_of_ours_on_every_rank(endings, check):
    assert all(rank[check][1] > 0 for rank in endings)
