"""What a state counts up to while gradients accumulate."""

import itertools
import logging
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.state import GradientState

from packed import SIZE, make_packed
from stream.loader import StreamLoader
from stream.synced import Synced, align

SAMPLES = 29


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_packed(tmp_path_factory.mktemp("packed"), SAMPLES)


@pytest.fixture(autouse=True)
def _a_new_gradient_state():
    yield
    GradientState._reset_state()


def job(made, *, accumulation=3, dispatch=True, **options):
    config = DataLoaderConfiguration(dispatch_batches=dispatch)
    accelerator = Accelerator(cpu=True, dataloader_config=config, gradient_accumulation_steps=accumulation)
    options = {"batch_size": 4, "image_size": SIZE, "shuffle": "full", **options}
    loader = StreamLoader(made.url, accelerator=accelerator, **options)
    model = torch.nn.Linear(1, 1)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0), loader)
    return SimpleNamespace(accelerator=accelerator, model=model, optimizer=optimizer, loader=loader)


def train(job, batch):
    with job.accelerator.accumulate(job.model):
        job.accelerator.backward(job.model(batch["image"].float().mean().view(1, 1)).sum())
        job.optimizer.step()
        job.optimizer.zero_grad()


def position(loader):
    state = loader.state_dict()
    return state["epoch"], state["position"]


@pytest.mark.parametrize("dispatch", [True, False])
def test_a_state_counts_the_rows_of_optimizer_steps(made, dispatch):
    one, found = job(made, dispatch=dispatch), []
    for batch in one.loader:
        train(one, batch)
        found.append(position(one.loader))
    # 8 steps; the third and sixth end a group, and accelerate ends one at the last batch
    assert found == [(0, 0), (0, 0), (0, 12), (0, 12), (0, 12), (0, 24), (0, 24), (1, 0)]


def test_without_accumulation_every_step_counts(made):
    one, found = job(made, accumulation=1), []
    for batch in one.loader:
        train(one, batch)
        found.append(position(one.loader))
    assert found == [*((0, 4 * step) for step in range(1, 8)), (1, 0)]


def test_it_is_said_once(made, caplog):
    caplog.set_level(logging.INFO, logger="stream")
    one = job(made)
    for batch in one.loader:
        train(one, batch)
        one.loader.state_dict()
    said = [record.getMessage() for record in caplog.records if "last optimizer step" in record.getMessage()]
    assert len(said) == 1
    assert "(epoch 0, position 0), not where it is (epoch 0, position 4)" in said[0]


def test_an_evaluation_between_two_optimizer_steps_is_not_held_back(made):
    one = job(made)
    val = StreamLoader(made.url, batch_size=4, image_size=SIZE, accelerator=one.accelerator, name="val", shuffle=None)
    one.accelerator.prepare(val)
    for number, batch in enumerate(one.loader):
        train(one, batch)
        if number == 1:
            for _ in val:
                pass
            assert position(val) == (1, 0)
            assert position(one.loader) == (0, 0)
            break


def test_a_restored_loader_begins_a_group_of_its_own(made, tmp_path):
    one = job(made)
    for number, batch in enumerate(one.loader):
        train(one, batch)
        if number == 4:  # two steps into the second group
            one.accelerator.save_state(str(tmp_path / "state"))
            break
    other = job(made)
    other.accelerator.load_state(str(tmp_path / "state"))
    assert (other.loader.position, other.accelerator.step) == (12, 5)
    synced = []
    for batch in other.loader:
        train(other, batch)
        synced.append(other.accelerator.sync_gradients)
    assert synced == [False, False, True, False, True]


def test_a_state_that_is_loaded_forgets_what_was_pending(made):
    one = job(made)
    state = one.loader.state_dict()
    for number, batch in enumerate(one.loader):
        train(one, batch)
        if number == 3:
            break
    one.loader.load_state_dict({**state, "position": 20})
    assert position(one.loader) == (0, 20)


def test_an_epoch_that_ends_within_a_group_goes_on_in_the_next():
    """As with `sync_with_dataloader=False`: the last rows of an epoch belong to a group of the next one."""
    accelerator = SimpleNamespace(step=0, gradient_state=SimpleNamespace(sync_gradients=True, num_steps=2))
    synced = Synced("train", accelerator)
    synced.begin((0, 0))
    synced.handed_out((0, 4))
    accelerator.step, accelerator.gradient_state.sync_gradients = 1, False
    synced.over((1, 0))
    assert synced.saved((1, 0)) == (0, 0)
    synced.begin((1, 0))
    synced.handed_out((1, 4))
    assert synced.saved((1, 4)) == (0, 0)
    accelerator.step, accelerator.gradient_state.sync_gradients = 2, True
    assert synced.saved((1, 4)) == (1, 4)
    synced.handed_out((1, 8))
    accelerator.step, accelerator.gradient_state.sync_gradients = 3, False
    assert synced.saved((1, 8)) == (1, 4)


def test_a_loader_that_is_drawn_once_a_group_counts_what_its_steps_were_made_of(made):
    one = job(made, accumulation=2)
    aux = StreamLoader(made.url, batch_size=2, image_size=SIZE, accelerator=one.accelerator, name="aux", shuffle=None)
    one.accelerator.prepare(aux)
    rows, found = iter(aux), []
    for number, batch in enumerate(one.loader):
        if number % 2:
            next(rows)
        train(one, batch)
        found.append((position(one.loader), position(aux)))
    # 8 steps, 4 groups; the epoch's end is a group's too
    assert found[:4] == [((0, 0), (0, 0)), ((0, 8), (0, 2)), ((0, 8), (0, 2)), ((0, 16), (0, 4))]
    assert found[-1] == ((1, 0), (0, 8))


def test_batches_that_are_drawn_before_they_are_accumulated_count_when_their_group_ends(made):
    """As Hugging Face's Trainer does: some batches first, then a micro-step for each."""
    one, found = job(made, accumulation=3), []
    iteration = iter(one.loader)
    for _ in range(2):
        for batch in list(itertools.islice(iteration, 3)):
            train(one, batch)
            found.append(position(one.loader))
    assert found == [(0, 0), (0, 0), (0, 12), (0, 12), (0, 12), (0, 24)]


def test_an_evaluation_that_was_left_counts_the_same_wherever_training_is(made):
    one = job(made)
    val = StreamLoader(made.url, batch_size=4, image_size=SIZE, accelerator=one.accelerator, name="val", shuffle=None)
    one.accelerator.prepare(val)
    for number, batch in enumerate(one.loader):
        train(one, batch)
        for seen, _ in enumerate(val):
            if seen == 1:
                break
        assert position(val) == (0, 8)
        if number == 3:
            break


@pytest.mark.parametrize(("step", "size", "expected"), [(5, 3, 3), (6, 3, 6), (7, 1, 7), (0, 4, 0)])
def test_aligning_goes_back_to_where_a_group_begins(step, size, expected):
    accelerator = SimpleNamespace(step=step, gradient_state=SimpleNamespace(num_steps=size))
    align(accelerator)
    assert accelerator.step == expected
