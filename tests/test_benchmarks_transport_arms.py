import pytest
import torch

from transport_arms import BATCHES, ReadyBatches, WrongPortionError, check
from transport_plan import Plan

PLAN = Plan(ranks=2, rows=6, side=4, dtypes=["uint8"], arms=["stock"], rounds=1, seconds=0.01, warmup_steps=0)


def batches(dtype="uint8", steps=BATCHES + 1):
    source = ReadyBatches(PLAN, dtype, filled=True)
    source.steps = steps
    return [batch["image"] for batch in source]


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_every_portion_of_a_batch_is_told_from_all_others(dtype):
    for step, image in enumerate(batches(dtype)):
        for rank in range(2):
            check(image[3 * rank : 3 * rank + 3], PLAN, dtype, step=step, rank=rank)
            with pytest.raises(WrongPortionError):
                check(image[3 * rank : 3 * rank + 3], PLAN, dtype, step=step, rank=1 - rank)
            with pytest.raises(WrongPortionError):
                check(image[3 * rank : 3 * rank + 3], PLAN, dtype, step=step + 1, rank=rank)


def test_the_same_batches_come_again_without_a_copy():
    images = batches()
    assert images[0].data_ptr() == images[BATCHES].data_ptr()
    assert len({image.data_ptr() for image in images}) == BATCHES


def test_a_rank_that_only_receives_makes_no_batches():
    source = ReadyBatches(PLAN, "uint8", filled=False)
    source.steps = 3
    assert list(source) == []


@pytest.mark.parametrize("wrong", [torch.zeros(3, 3, 4, 4), torch.zeros(6, 3, 4, 4, dtype=torch.uint8)])
def test_another_type_or_size_is_no_portion(wrong):
    with pytest.raises(WrongPortionError, match="the portion of step 0 is wrong"):
        check(wrong, PLAN, "uint8", step=0, rank=0)
