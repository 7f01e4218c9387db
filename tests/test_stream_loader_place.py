"""Where a StreamLoader is and where it goes on: state, skipping, checkpoints, and schedules planned from its steps."""

import gc
import json
import weakref

import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import GradientAccumulationPlugin
from torch.utils.data import IterableDataset

from packed import SIZE, make_packed
from ranks import left_behind
from stream.errors import OptionError
from stream.loader import StreamLoader
from stream.options import StreamOptions

pytestmark = pytest.mark.usefixtures("nothing_left")

SAMPLES = 29


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_packed(tmp_path_factory.mktemp("packed"), SAMPLES)


@pytest.fixture(params=["alone", "ours", "stock", "shard"])
def path(request):
    return request.param


class Numbers(IterableDataset):
    def __init__(self, rows=SAMPLES):
        self.rows, self.taken = rows, []

    def __iter__(self):
        for row in range(self.rows):
            self.taken.append(row)
            yield {"key": f"{row}"}


def accelerator_of(path="ours", **options):
    config = DataLoaderConfiguration(dispatch_batches=path != "shard", split_batches=options.pop("split", False))
    return Accelerator(cpu=True, dataloader_config=config, **options)


def loader_of(source, path="alone", *, accelerator=None, workers=0, **options):
    if accelerator is None and path != "alone":
        accelerator = accelerator_of(path)
    made = StreamOptions(workers=workers, transport="stock" if path == "stock" else "ours")
    options = {"batch_size": 4, "image_size": SIZE, "shuffle": "full", **options}
    return StreamLoader(source, accelerator=accelerator, options=made, **options)


def steps_of(loader):
    return [batch["key"] for batch in loader]


def states_of(loader):
    """What a checkpoint would hold with each batch of an epoch in hand, as JSON keeps it."""
    return [json.loads(json.dumps(loader.state_dict())) for _ in loader]


# --- state -----------------------------------------------------------------------------------------------------


def test_a_state_of_any_step_goes_on_behind_it(made, path):
    whole = steps_of(loader_of(made.url, path))
    states = states_of(loader_of(made.url, path))
    for number, state in enumerate(states[:-1]):
        loader = loader_of(made.url, path)
        loader.load_state_dict(state)
        assert (loader.epoch, loader.position) == (0, 4 * (number + 1))
        assert steps_of(loader) == whole[number + 1 :]
        assert loader.epoch == 1


def test_with_the_last_batch_in_hand_the_state_is_the_next_epoch(made, path):
    loader = loader_of(made.url, path)
    state = states_of(loader)[-1]
    assert (state["epoch"], state["position"]) == (1, 0)
    assert loader.state_dict() == state
    other = loader_of(made.url, path)
    other.load_state_dict(state)
    assert (steps_of(other), other.epoch) == (steps_of(loader), 2)


def test_the_state_of_a_loader_that_was_not_begun_is_its_beginning(made, path):
    state = loader_of(made.url, path).state_dict()
    assert (state["epoch"], state["position"]) == (0, 0)


def test_what_was_read_ahead_does_not_count(made, path):
    loader = loader_of(made.url, path)
    iteration = iter(loader)
    next(iteration)
    assert (loader.state_dict()["position"], loader.position) == (4, 4)
    iteration.close()


def test_a_state_is_kept_after_break(made, path):
    loader = loader_of(made.url, path)
    whole = steps_of(loader_of(made.url, path))
    for number, _ in enumerate(loader):
        if number == 2:
            break
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (0, 12)
    loader.load_state_dict(state)
    assert steps_of(loader) == whole[3:]


def test_a_state_outlives_a_change_of_batch_size_mode_and_workers(made):
    keys = [key for step in steps_of(loader_of(made.url)) for key in step]
    state = states_of(loader_of(made.url, "ours"))[2]
    loader = loader_of(made.url, "shard", batch_size=5, workers=2)
    loader.load_state_dict(state)
    assert [key for step in steps_of(loader) for key in step] == keys[12:]


def test_a_state_can_be_taken_and_loaded_again_within_the_rest_of_an_epoch(made, path):
    whole = steps_of(loader_of(made.url, path))
    state = states_of(loader_of(made.url, path))[1]
    for number in range(2, 5):
        loader = loader_of(made.url, path)
        loader.load_state_dict(state)
        assert next(iter(loader))["key"] == whole[number]
        state = loader.state_dict()


def test_loading_a_state_ends_the_live_iteration(made, path):
    loader = loader_of(made.url, path)
    iteration = iter(loader)
    next(iteration)
    loader.load_state_dict(loader.state_dict())
    assert list(iteration) == []
    assert loader.position == 4


def test_a_state_of_other_data_is_refused(made, tmp_path):
    other = make_packed(tmp_path, SAMPLES, shard_bytes=48 * 2**10)
    with pytest.raises(OptionError, match=r"state\['digest'\].*other data"):
        loader_of(made.url).load_state_dict(loader_of(other.url).state_dict())


@pytest.mark.parametrize("other", [{"seed": 1}, {"shuffle": None}, {"captions": "each"}])
def test_a_state_of_another_order_is_refused_and_changes_nothing(made, other):
    loader = loader_of(made.url)
    with pytest.raises(OptionError, match=rf"state\['{next(iter(other))}'\]"):
        loader.load_state_dict(loader_of(made.url, **other).state_dict())
    assert (loader.epoch, loader.position) == (0, 0)


def test_a_state_of_another_version_is_refused(made):
    loader = loader_of(made.url)
    with pytest.raises(OptionError, match=r"state\['version'\]=2: this loader reads version 1"):
        loader.load_state_dict({**loader.state_dict(), "version": 2})


@pytest.mark.parametrize("path", ["alone", "ours", "stock"])
def test_a_sequence_goes_on_behind_the_rows_that_were_handed_out(path):
    whole = steps_of(loader_of(Numbers(), path, shuffle="window"))
    for number, state in enumerate(states_of(loader_of(Numbers(), path, shuffle="window"))[:-1]):
        loader = loader_of(Numbers(), path, shuffle="window")
        loader.load_state_dict(state)
        assert steps_of(loader) == whole[number + 1 :]


@pytest.mark.parametrize("path", ["alone", "ours", "stock"])
def test_with_the_last_batch_of_a_sequence_in_hand_the_state_is_the_next_epoch(path):
    state = states_of(loader_of(Numbers(), path, shuffle="window"))[-1]
    assert (state["epoch"], state["position"]) == (1, 0)


# --- skipping --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 3, 7])
def test_skipping_leaves_out_exactly_so_many_steps(made, path, steps):
    whole = steps_of(loader_of(made.url, path))
    loader = loader_of(made.url, path)
    loader.skip(steps)
    assert steps_of(loader) == whole[steps:]
    assert steps_of(loader) != whole[steps:]  # once: the next epoch is whole


def test_skipping_more_than_an_epoch_is_an_empty_rest(made, path):
    loader = loader_of(made.url, path)
    loader.skip(100)
    assert steps_of(loader) == []
    assert loader.epoch == 1


def test_skipping_counts_from_where_the_next_iteration_begins(made):
    whole = steps_of(loader_of(made.url))
    loader = loader_of(made.url)
    loader.load_state_dict(states_of(loader_of(made.url))[1])
    loader.skip(2)
    assert steps_of(loader) == whole[4:]


@pytest.mark.parametrize("path", ["alone", "ours", "stock"])
def test_what_a_sequence_skips_is_read_and_dropped(path):
    numbers = Numbers()
    loader = loader_of(numbers, path, shuffle="window")
    loader.skip(2)
    assert steps_of(loader)[0] == ["8", "9", "10", "11"]
    assert numbers.taken == list(range(SAMPLES))


@pytest.mark.parametrize("steps", [-1, 1.5, True, None])
def test_a_number_of_steps_that_is_none_is_refused(made, steps):
    with pytest.raises(OptionError, match="steps="):
        loader_of(made.url).skip(steps)


def test_an_epoch_that_is_set_begins_at_its_first_row(made, path):
    loader = loader_of(made.url, path)
    loader.skip(3)
    loader.set_epoch(1)
    assert len(steps_of(loader)) == 8
    assert loader.epoch == 2


def test_a_state_after_setting_another_epoch_in_mid_iteration_is_that_epochs_beginning(made, path):
    loader = loader_of(made.url, path)
    iteration = iter(loader)
    next(iteration)
    loader.set_epoch(5)
    next(iteration)
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (5, 0)
    iteration.close()


# --- checkpoints -----------------------------------------------------------------------------------------------


def test_a_checkpoint_carries_every_loader_of_its_accelerator(made, tmp_path):
    accelerator = accelerator_of()
    train = loader_of(made.url, accelerator=accelerator)
    evaluation = loader_of(made.url, accelerator=accelerator, name="eval", batch_size=5)
    for number, _ in enumerate(train):
        if number == 1:
            break
    next(iter(evaluation))
    accelerator.save_state(str(tmp_path))
    assert sorted(path.name for path in tmp_path.glob("stream_*")) == ["stream_eval.json", "stream_train.json"]
    other = accelerator_of()
    again = [loader_of(made.url, accelerator=other), loader_of(made.url, accelerator=other, name="eval", batch_size=5)]
    other.load_state(str(tmp_path))
    assert [loader.position for loader in again] == [8, 5]


def test_two_loaders_of_one_name_are_refused_when_a_state_is_saved(made, tmp_path):
    accelerator = accelerator_of()
    loaders = [loader_of(made.url, accelerator=accelerator) for _ in range(2)]
    with pytest.raises(OptionError, match="name='train': two loaders of this Accelerator"):
        accelerator.save_state(str(tmp_path))
    del loaders


def test_a_loader_that_is_deleted_is_not_saved_and_its_links_are_closed(made, tmp_path):
    accelerator = accelerator_of()
    loader = loader_of(made.url, accelerator=accelerator)
    steps_of(loader)
    exchange, seen = loader._place.exchange, weakref.ref(loader)
    assert exchange.reached == {0: "this process"}
    del loader
    gc.collect()
    assert seen() is None
    assert exchange.reached == {}
    accelerator.save_state(str(tmp_path))
    assert list(tmp_path.glob("stream_*")) == []


def test_a_checkpoint_without_this_loader_loads_with_one_warning(made, tmp_path, caplog):
    accelerator_of().save_state(str(tmp_path))
    accelerator = accelerator_of()
    loader = loader_of(made.url, accelerator=accelerator)
    accelerator.load_state(str(tmp_path))
    [said] = [record.getMessage() for record in caplog.records if record.name == "stream"]
    assert "no place of loader 'train'" in said
    assert loader.position == 0


# --- schedules -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("drop_last", "steps"), [(False, 8), (True, 7)])
def test_the_steps_of_an_epoch_are_known_before_prepare(made, path, drop_last, steps):
    loader = loader_of(made.url, path, drop_last=drop_last)
    assert loader.steps_per_epoch == steps
    assert left_behind() == []
    assert len(steps_of(loader)) == steps


def test_a_source_of_unknown_length_has_neither_steps_nor_a_schedule():
    loader = loader_of(Numbers(), shuffle="window")
    with pytest.raises(TypeError, match="unknown length"):
        loader.steps_per_epoch  # noqa: B018 - asking is the test
    with pytest.raises(TypeError, match="does not tell its length"):
        loader.scheduler_steps()


@pytest.mark.parametrize("path", ["ours", "shard"])
@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("accumulation", [1, 2, 3])
def test_a_prepared_schedule_is_stepped_as_often_as_was_told(made, path, split, drop_last, accumulation):
    accelerator = accelerator_of(path, split=split, gradient_accumulation_steps=accumulation)
    loader = loader_of(made.url, accelerator=accelerator, drop_last=drop_last)
    told = loader.scheduler_steps(epochs=2)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=told, start_factor=1.0, end_factor=0.5)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for _ in range(2):
        for _ in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(torch.ones(1, 1)).sum())
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    assert schedule.scheduler.last_epoch == told
    assert schedule.get_last_lr() == pytest.approx([0.5])


def test_the_accumulation_of_a_plugin_is_the_accelerators(made):
    plugin = GradientAccumulationPlugin(num_steps=4)
    loader = loader_of(made.url, accelerator=accelerator_of(gradient_accumulation_plugin=plugin))
    assert loader.scheduler_steps() == 2
    assert loader.scheduler_steps(accumulation=1) == 8


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"accumulation": 0}, {"epochs": 1.0}])
def test_a_schedule_of_no_whole_steps_is_refused(made, wrong):
    with pytest.raises(OptionError, match=next(iter(wrong))):
        loader_of(made.url).scheduler_steps(**wrong)
