"""Places of loaders in checkpoints: what is written by whom, what is read, and that loaders are held weakly."""

import gc
import json
import logging
import pickle

import pytest

from stream.errors import OptionError
from stream.saving import Saving


class Hooks:
    """As much of an Accelerator as is asked for."""

    def __init__(self, *, main=True):
        self.is_main_process = main
        self.saving, self.loading = [], []

    def register_save_state_pre_hook(self, hook):
        self.saving.append(hook)

    def register_load_state_pre_hook(self, hook):
        self.loading.append(hook)

    def save(self, folder):
        for hook in self.saving:
            hook([], [], str(folder))

    def load(self, folder):
        for hook in self.loading:
            hook([], str(folder))


class Loader:
    def __init__(self, name, position=0):
        self.name, self.position = name, position

    def state_dict(self):
        return {"position": self.position}

    def saved_state(self):
        return self.state_dict()

    def load_state_dict(self, state):
        self.position = state["position"]


def added(accelerator, *loaders):
    for loader in loaders:
        Saving.add(accelerator, loader)
    return loaders


def test_the_hooks_are_asked_for_once(tmp_path):
    accelerator = Hooks()
    loaders = added(accelerator, Loader("train"), Loader("eval"))
    assert (len(accelerator.saving), len(accelerator.loading), len(loaders)) == (1, 1, 2)


def test_each_place_is_a_file_by_the_loaders_name(tmp_path):
    accelerator = Hooks()
    loaders = added(accelerator, Loader("train", 8), Loader("eval", 3))
    accelerator.save(tmp_path)
    assert {path.name: json.loads(path.read_text()) for path in tmp_path.iterdir()} == {
        f"stream_{loader.name}.json": {"position": loader.position} for loader in loaders
    }


def test_places_come_back(tmp_path):
    accelerator = Hooks()
    train, evaluation = added(accelerator, Loader("train", 8), Loader("eval", 3))
    accelerator.save(tmp_path)
    train.position = evaluation.position = 0
    accelerator.load(tmp_path)
    assert (train.position, evaluation.position) == (8, 3)


def test_only_the_main_process_writes_and_every_rank_reads(tmp_path, caplog):
    main, other = Hooks(), Hooks(main=False)
    kept = added(main, Loader("train", 8))
    [there] = added(other, Loader("train", 5))
    other.save(tmp_path)
    assert list(tmp_path.iterdir()) == []
    main.save(tmp_path)
    other.load(tmp_path)
    assert (there.position, len(kept)) == (8, 1)
    assert caplog.records == []


def test_a_checkpoint_without_a_place_is_loaded_with_a_warning_of_the_main_process(tmp_path, caplog):
    main, other = Hooks(), Hooks(main=False)
    kept = [*added(main, Loader("train", 8)), *added(other, Loader("train", 8))]
    main.load(tmp_path)
    other.load(tmp_path)
    [record] = caplog.records
    assert (record.name, record.levelno) == ("stream", logging.WARNING)
    assert "no place of loader 'train' (no stream_train.json)" in record.getMessage()
    assert [loader.position for loader in kept] == [8, 8]


def test_two_loaders_of_one_name_are_refused(tmp_path):
    accelerator = Hooks()
    loaders = added(accelerator, Loader("train"), Loader("eval"), Loader("train"))
    with pytest.raises(OptionError, match="name='train': two loaders"):
        accelerator.save(tmp_path)
    with pytest.raises(OptionError, match="name='train': two loaders"):
        accelerator.load(tmp_path)
    assert list(tmp_path.iterdir()) == []
    del loaders


def test_a_loader_that_is_gone_is_neither_saved_nor_in_the_way_of_its_successor(tmp_path):
    accelerator = Hooks()
    loaders = added(accelerator, Loader("train", 8))
    del loaders
    gc.collect()
    accelerator.save(tmp_path)
    assert list(tmp_path.iterdir()) == []
    [loader] = added(accelerator, Loader("train", 4))
    accelerator.save(tmp_path)
    assert json.loads((tmp_path / "stream_train.json").read_text()) == {"position": loader.position}


def test_loaders_of_two_accelerators_may_have_one_name(tmp_path):
    one, other = Hooks(), Hooks()
    kept = [*added(one, Loader("train", 1)), *added(other, Loader("train", 2))]
    one.save(tmp_path)
    assert json.loads((tmp_path / "stream_train.json").read_text()) == {"position": 1}
    assert len(kept) == 2


def test_an_accelerator_that_is_pickled_with_its_loaders_saves_the_copies(tmp_path):
    accelerator = Hooks()
    kept = added(accelerator, Loader("train", 8))
    copied, [loader] = pickle.loads(pickle.dumps((accelerator, kept)))
    loader.position = 9
    copied.save(tmp_path)
    assert json.loads((tmp_path / "stream_train.json").read_text()) == {"position": 9}
