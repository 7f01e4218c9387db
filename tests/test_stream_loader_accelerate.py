"""StreamLoader beside an Accelerator in one process: prepare, gradient state, refusals, what it tells of itself."""

import contextlib
import copy
import gc
import itertools
import pickle
import weakref

import accelerate.accelerator
import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration, find_executable_batch_size, skip_first_batches
from accelerate.state import GradientState
from torch.utils.data import DataLoader, IterableDataset

import stream.loader
from packed import SIZE, make_packed, number_of
from ranks import left_behind
from stream.errors import NotPreparedError, OptionError
from stream.loader import StreamLoader
from stream.options import StreamOptions

SAMPLES = 29


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_packed(tmp_path_factory.mktemp("packed"), SAMPLES)


@pytest.fixture(params=["dispatch", "shard"])
def mode(request):
    return request.param


@pytest.fixture(autouse=True)
def _nothing_left():
    yield
    gc.collect()
    assert left_behind() == []
    assert not GradientState().in_dataloader


class Endless(IterableDataset):
    def __iter__(self):
        return itertools.count()


def accelerator_of(mode, **options):
    config = DataLoaderConfiguration(dispatch_batches={"dispatch": True, "shard": False, None: None}[mode])
    return Accelerator(cpu=True, dataloader_config=config, **options)


def loader_of(source, accelerator=None, **options):
    options = {"batch_size": 12, "image_size": SIZE, "shuffle": None, **options}
    return StreamLoader(source, accelerator=accelerator, **options)


# --- prepare ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_prepare_returns_the_same_object_registered_once_in_any_order(made, mode, order):
    accelerator = accelerator_of(mode)
    loader, model = loader_of(made.url, accelerator), torch.nn.Linear(3, 1)
    given = [loader, model, torch.optim.SGD(model.parameters(), lr=0.1)]
    for _ in range(2):
        prepared = accelerator.prepare(*(given[place] for place in order))
        assert prepared[order.index(0)] is loader
        assert [known for known in accelerator._dataloaders if known is loader] == [loader]


def test_a_prepared_loader_gives_its_batches_and_says_so(made, mode):
    accelerator = accelerator_of(mode)
    loader = loader_of(made.url, accelerator)
    assert "not prepared yet: pass it through accelerator.prepare()" in loader.describe()
    loader = accelerator.prepare(loader)
    assert "prepared" in loader.describe()
    assert "not prepared" not in loader.describe()
    assert [number_of(image) for batch in loader for image in batch["image"]] == list(range(SAMPLES))


def test_a_state_is_saved_and_loaded_with_a_loader_prepared(made, mode, tmp_path):
    accelerator = accelerator_of(mode)
    model = torch.nn.Linear(3, 1)
    model, loader = accelerator.prepare(model, loader_of(made.url, accelerator))
    next(iter(loader))
    accelerator.save_state(str(tmp_path))
    accelerator.load_state(str(tmp_path))
    assert len(list(loader)) == 2  # behind the batch that was taken


def test_an_accelerator_with_a_loader_can_be_pickled(made, mode):
    accelerator = accelerator_of(mode)
    loader = accelerator.prepare(loader_of(made.url, accelerator))
    assert len(list(loader)) == 3
    copied = pickle.loads(pickle.dumps(accelerator))
    [loader] = copied._dataloaders
    assert len(list(loader)) == 3


def test_a_copy_of_a_prepared_loader_is_another_loader(made, mode):
    accelerator = accelerator_of(mode)
    loader = accelerator.prepare(loader_of(made.url, accelerator))
    next(iter(loader))
    copied = copy.copy(loader)
    assert "not prepared yet" in copied.describe()
    assert copied.position == 12
    assert len(list(copied)) == 3
    assert (loader.epoch, loader.position, copied.epoch, copied.stats.steps) == (0, 12, 1, 4)


def test_free_memory_lets_a_loader_go(made, mode):
    accelerator = accelerator_of(mode)
    loader = accelerator.prepare(loader_of(made.url, accelerator))
    seen = weakref.ref(loader)
    next(iter(loader))
    [loader] = accelerator.free_memory(loader)
    assert (loader, seen()) == (None, None)
    assert left_behind() == []
    [again] = [accelerator.prepare(loader_of(made.url, accelerator))]
    assert len(list(again)) == 3


def test_each_batch_size_that_is_tried_has_a_loader_of_its_own(made, mode, tmp_path):
    accelerator, tried = accelerator_of(mode), []

    @find_executable_batch_size(starting_batch_size=6)
    def train(batch_size):
        accelerator.free_memory()
        loader = accelerator.prepare(loader_of(made.url, accelerator, batch_size=batch_size))
        tried.append(batch_size)
        for batch in loader:
            if len(batch["key"]) > 5:
                raise RuntimeError("CUDA out of memory.")
        accelerator.save_state(str(tmp_path))
        return loader.epoch

    assert (train(), tried) == (1, [6, 5])
    assert (tmp_path / "stream_train.json").exists()


def test_skip_first_batches_is_refused_with_what_to_write(made, mode):
    accelerator = accelerator_of(mode)
    skipping = skip_first_batches(accelerator.prepare(loader_of(made.url, accelerator)), 1)
    with pytest.raises(TypeError, match=r"loader\.skip\(steps\)"):
        next(iter(skipping))


# --- uneven inputs ---------------------------------------------------------------------------------------------


@pytest.fixture
def many_devices(monkeypatch):
    """Let an Accelerator of one process do what it does for several, but for torch's Join."""
    monkeypatch.setattr(Accelerator, "multi_device", property(lambda accelerator: True))
    monkeypatch.setattr(accelerate.accelerator, "Join", lambda *args, **options: contextlib.nullcontext())


@pytest.mark.parametrize("options", [{}, {"batch_size": None}])
@pytest.mark.parametrize("even_batches", [True, False, None])
def test_join_uneven_inputs_overrides_even_batches_while_it_lasts(many_devices, even_batches, options):
    accelerator = accelerator_of("dispatch")
    loader = accelerator.prepare(loader_of(Endless(), accelerator, shuffle="window", **{"batch_size": 4, **options}))
    with accelerator.join_uneven_inputs([], even_batches=even_batches):
        assert loader.batch_sampler.even_batches == (even_batches is not False)
    assert loader.batch_sampler.even_batches is True


def test_an_override_of_even_batches_is_taken_up_by_the_next_iteration(made, mode, many_devices, monkeypatch):
    begun = []
    real = stream.loader.begin_epoch

    def begin(plan, *args, **options):
        begun.append(plan.job.even_batches)
        return real(plan, *args, **options)

    monkeypatch.setattr(stream.loader, "begin_epoch", begin)
    accelerator = accelerator_of(mode)
    loader = accelerator.prepare(loader_of(made.url, accelerator))
    with accelerator.join_uneven_inputs([], even_batches=False):
        assert len(list(loader)) == 3
    assert len(list(loader)) == 3
    assert begun == [False, True]


# --- configuration ---------------------------------------------------------------------------------------------


def test_what_is_set_in_vain_is_said(made):
    config = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=3, use_stateful_dataloader=True)
    loader = loader_of(made.url, Accelerator(cpu=True, dataloader_config=config))
    assert loader.describe().splitlines()[-3:] == [
        "use_seedable_sampler: without effect, the order comes from seed",
        "data_seed: without effect, the order comes from seed",
        "use_stateful_dataloader: without effect, the loader has state_dict() itself",
    ]


def test_nothing_is_said_of_what_was_not_set(made, mode):
    assert "without effect" not in loader_of(made.url, accelerator_of(mode)).describe()


def test_the_order_does_not_depend_on_accelerates_samplers(made):
    config = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=3)
    loaders = [
        loader_of(made.url, Accelerator(cpu=True, dataloader_config=given), shuffle="full")
        for given in (config, DataLoaderConfiguration())
    ]
    found = [[key for batch in loader for key in batch["key"]] for loader in loaders]
    assert found[0] == found[1] != made.keys


# --- gradient state --------------------------------------------------------------------------------------------


def synced(accelerator, loader, model, *, each_step=lambda: None):
    """At which steps of an epoch gradients are synced."""
    found = []
    for _ in loader:
        with accelerator.accumulate(model):
            found.append(accelerator.sync_gradients)
        each_step()
    return found


def test_gradients_are_synced_at_the_last_batch(made, mode):
    accelerator = accelerator_of(mode, gradient_accumulation_steps=2)
    model, loader = accelerator.prepare(torch.nn.Linear(3, 1), loader_of(made.url, accelerator))
    assert synced(accelerator, loader, model) == [False, True, True]
    assert synced(accelerator, loader, model) == [False, True, True]


def test_an_evaluation_that_is_left_by_break_does_not_disturb_training(made, mode):
    accelerator = accelerator_of(mode, gradient_accumulation_steps=2)
    model = accelerator.prepare(torch.nn.Linear(3, 1))
    loader, evaluation = accelerator.prepare(
        loader_of(made.url, accelerator), loader_of(made.url, accelerator, name="eval", batch_size=5)
    )

    def evaluate():
        for _ in evaluation:
            break

    assert synced(accelerator, loader, model, each_step=evaluate) == [False, True, True]
    assert evaluation.epoch == 0


def test_the_remainder_of_the_last_step_is_told(made, mode):
    accelerator = accelerator_of(mode)
    loader = accelerator.prepare(loader_of(made.url, accelerator))
    state = accelerator.gradient_state
    seen = [(state.end_of_dataloader, state.remainder) for _ in loader]
    assert seen == [(False, -1), (False, -1), (True, 5)]


def test_metrics_are_gathered_for_every_row_once(made, mode):
    accelerator = accelerator_of(mode)
    loader = accelerator.prepare(loader_of(made.url, accelerator))
    keys, numbers = [], []
    for batch in loader:
        keys += accelerator.gather_for_metrics(batch["key"])
        numbers += accelerator.gather_for_metrics(torch.tensor([int(key) for key in batch["key"]])).tolist()
    assert keys == made.keys
    assert numbers == list(range(SAMPLES))


# --- refusals --------------------------------------------------------------------------------------------------


def refused(loader):
    with pytest.raises(NotPreparedError) as caught:
        iter(loader)
    assert caught.value.ranks == 2
    assert "write StreamLoader(..., accelerator=accelerator) and pass it through accelerator.prepare()" in str(
        caught.value
    )
    return caught.value.problem


def test_a_loader_without_an_accelerator_refuses_a_job_of_several_processes(made, monkeypatch):
    loader = loader_of(made.url)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert refused(loader) == "it was made without the job's Accelerator"


def test_an_accelerator_that_is_alone_in_a_job_of_several_processes_is_refused(made, mode, monkeypatch):
    accelerator = accelerator_of(mode)
    loader = accelerator.prepare(loader_of(made.url, accelerator))
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "Accelerator(cpu=True)" in refused(loader)


@pytest.mark.parametrize("said", ["1", "", "many"])
def test_a_launcher_that_started_one_process_is_no_reason_to_refuse(made, monkeypatch, said):
    monkeypatch.setenv("WORLD_SIZE", said)
    assert len(list(loader_of(made.url))) == 3


def test_one_process_needs_no_prepare(made, mode):
    assert len(list(loader_of(made.url, accelerator_of(mode)))) == 3


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"captions": "second"}, "captions"),
        ({"image_size": (0, 5)}, "image_size"),
        ({"seed": -1}, "seed"),
        ({"shuffle": "none"}, "shuffle"),
    ],
)
def test_an_option_that_cannot_work_is_refused_at_once(made, options, option):
    with pytest.raises(OptionError) as caught:
        loader_of(made.url, **options)
    assert caught.value.option == option


def test_a_user_who_asks_for_what_is_not_there_gets_an_attribute_error(made):
    with pytest.raises(AttributeError):
        loader_of(made.url).dataloader_config  # noqa: B018 - asking is the test


# --- what it tells of itself -----------------------------------------------------------------------------------


def test_it_tells_its_sizes(made, mode):
    loader = loader_of(made.url, accelerator_of(mode))
    assert isinstance(loader, DataLoader)
    assert (len(loader), loader.batch_size, loader.total_batch_size, loader.total_dataset_length) == (
        3,
        12,
        12,
        SAMPLES,
    )
    assert len(loader_of(made.url, captions="each")) == -(-len(made.pairs) // 12)


def test_a_source_of_unknown_length_has_no_length():
    loader = loader_of(Endless())
    with pytest.raises(TypeError, match="unknown length"):
        len(loader)
    with pytest.raises(TypeError, match="unknown length"):
        loader.total_dataset_length  # noqa: B018 - asking is the test
    assert "as long as the source lasts" in loader.describe()


@pytest.mark.parametrize(
    ("asked", "words"),
    [("dispatch", "mode: dispatch;"), (None, "mode: dispatch (by default);"), ("shard", "mode: shard;")],
)
def test_it_says_which_mode_it_is_in(made, asked, words):
    assert words in loader_of(made.url, accelerator_of(asked)).describe()


def test_it_says_what_it_reads(made):
    assert f"'train' over {made.url}, without an accelerator" in loader_of(made.url).describe()
    assert "'val' over a list," in loader_of([1, 2, 3], name="val").describe()
    assert "over a Endless," in loader_of(Endless()).describe()


def test_pinned_memory_without_an_accelerator_is_no_warning(made, mode):
    loader = loader_of(made.url, accelerator_of(mode), options=StreamOptions(pin_memory=True, workers=2))
    assert "pinned memory: no accelerator to pin for" in loader.describe()
    assert len(list(loader)) == 3
