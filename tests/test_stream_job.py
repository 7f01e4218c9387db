"""What a loader assumes about the job when nobody told it."""

import pytest
import torch

from stream.job import Job


def test_alone_a_loader_is_the_one_rank_of_a_job_on_the_cpu():
    job = Job()
    assert (job.ranks, job.rank, job.host_ranks) == (1, 0, 1)
    assert job.device == torch.device("cpu")
    assert not job.on_device


def test_alone_the_batch_size_counts_the_whole_step_and_the_mode_is_not_chosen():
    assert Job().split_batches
    assert Job().even_batches
    assert Job().dispatch_batches is None


def test_alone_nothing_is_accumulated_and_nothing_was_set_in_vain():
    assert Job().accumulation == 1
    assert Job().without_effect == ()


@pytest.mark.parametrize(("rank", "portion"), [(0, 0), (1, 0), (2, 1), (5, 2)])
def test_the_ranks_of_a_group_share_a_portion(rank, portion):
    job = Job(ranks=6, rank=rank, group=2)
    assert (job.portions, job.portion) == (3, portion)
