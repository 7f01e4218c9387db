"""A training job of two real processes: prepare, accumulated gradients, two loaders at once, refusals."""

import pytest
import torch

from packed import SIZE, make_packed, number_of
from ranks import run_ranks
from stream.loader import StreamLoader

pytestmark = pytest.mark.ranks

SAMPLES = 53
STEPS = 5
RANKS = 2


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_packed(tmp_path_factory.mktemp("packed"), SAMPLES)


@pytest.fixture(scope="module")
def found(made, tmp_path_factory):
    return run_ranks("training.py", RANKS, {"url": made.url}, tmp_path_factory.mktemp("job"))


@pytest.fixture(scope="module")
def refused(made, tmp_path_factory):
    ranks = run_ranks("refusals.py", RANKS, {"url": made.url}, tmp_path_factory.mktemp("job"))
    assert {key: value for key, value in ranks[0].items() if key != "described"} == {
        key: value for key, value in ranks[1].items() if key != "described"
    }
    return ranks


@pytest.fixture(params=["dispatch", "shard"])
def told(request, found):
    """What each rank tells of one mode."""
    return [rank[request.param] for rank in found]


def test_prepare_returns_the_same_object_registered_once_in_any_order(told):
    for rank in told:
        assert rank["prepared"] == [[True, 1, STEPS]] * 6


def test_gradients_are_synced_every_second_step_and_at_the_last_batch(told):
    for rank in told:
        assert rank["accumulated"] == [False, True, False, True, True] * 2


def test_training_gives_the_weights_that_one_process_gets(made, told):
    model = torch.nn.Linear(3, 1)
    torch.nn.init.constant_(model.weight, 0.1)
    torch.nn.init.constant_(model.bias, 0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = StreamLoader(made.url, batch_size=12, image_size=SIZE, drop_last=True)
    while loader.epoch < 2:
        for step, batch in enumerate(loader):
            means = batch["image"].float().mean(dim=(2, 3)) / 255
            target = torch.tensor([[number_of(image) / 50] for image in batch["image"]])
            ((model(means) - target).square().mean() / 2).backward()
            if step % 2:
                optimizer.step()
                optimizer.zero_grad()
    for rank in told:
        for weight, mine in zip(rank["trained"], model.parameters(), strict=True):
            torch.testing.assert_close(torch.tensor(weight), mine.detach())


def test_an_evaluation_that_is_left_by_break_does_not_disturb_training(made, told):
    for rank in told:
        assert [step["last"] for step in rank["evaluated"]] == [False] * (STEPS - 1) + [True]
        keys = [key for step in rank["evaluated"] for key in step["gathered"]]
        assert sorted(keys) == made.keys
        assert [step["eval"] for step in rank["evaluated"]] == [made.keys[:12]] * STEPS


def test_break_leaves_nothing_behind_and_the_epoch_comes_again_whole(told):
    for rank in told:
        assert rank["left_early"] == [[[], False, True, STEPS, 1, []]] * 2


def test_epochs_differ_and_can_be_chosen(told):
    for rank in told:
        assert rank["epochs"] == {"chosen": [True] * 3, "differ": True, "epoch": 2}


@pytest.mark.parametrize("mode", ["dispatch", "shard"])
def test_what_is_closed_or_dropped_ends_and_only_ranks_that_read_have_workers(found, mode):
    readers = [True, mode == "shard"]
    assert [rank[mode]["abandoned"] for rank in found] == [[[], [], int(reads), []] for reads in readers]


# --- refusals --------------------------------------------------------------------------------------------------

WRITE = "write StreamLoader(..., accelerator=accelerator) and pass it through accelerator.prepare()"


def test_a_loader_without_an_accelerator_is_refused(refused):
    assert refused[0]["without accelerator"] == (
        "NotPreparedError: loader 'train' in a job of 2 processes: it was made without the job's Accelerator; " + WRITE
    )


def test_a_loader_that_was_not_prepared_is_refused(refused):
    words = "NotPreparedError: loader 'train' in a job of 2 processes: it has not gone through accelerator.prepare(); "
    assert refused[0]["not prepared"] == [words + WRITE] * 3


def test_a_batch_size_that_cannot_be_split_is_refused_with_both_numbers(refused):
    for words in refused[0]["batch size"]:
        assert words.startswith("OptionError: batch_size=9: a step of 9 rows cannot be split over 2 ranks")


def test_uneven_portions_are_refused_by_the_stock_dispatcher(refused):
    for case in ("uneven", "uneven by default"):
        assert refused[0][case].startswith('OptionError: even_batches=False: transport "stock" cannot send uneven')


def test_every_rank_describes_itself(refused):
    for number, rank in enumerate(refused):
        lines = rank["described"].split("\n")
        assert lines[0] == f"ranks: 2 (this is rank {number})"
        assert lines[2].startswith("mode: dispatch (by default); rank 0 reads in order")
        assert lines[3] == "batch: 24 rows a step over all ranks, 2 times batch_size=12, 12 on each"
