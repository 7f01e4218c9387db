"""StreamLoader in one process: which batches it gives, alone and with an Accelerator in either mode."""

import random

import numpy as np
import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import Dataset, IterableDataset

from packed import SIZE, captions_of, make_packed, number_of, size_of
from stream.device import normalize
from stream.errors import OptionError
from stream.loader import StreamLoader
from stream.options import StreamOptions

SAMPLES = 29


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_packed(tmp_path_factory.mktemp("packed"), SAMPLES)


def accelerator_of(mode):
    if mode == "alone":
        return None
    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=mode == "dispatch"))


def loader_of(source, mode="alone", *, workers=0, **options):
    options = {"batch_size": 12, "image_size": SIZE, "shuffle": None, **options}
    made = StreamOptions(workers=workers, prefetch_steps=2)
    return StreamLoader(source, accelerator=accelerator_of(mode), options=made, **options)


modes = pytest.mark.parametrize("mode", ["alone", "dispatch", "shard"])
workers = pytest.mark.parametrize("workers", [0, 2])


# --- batches ---------------------------------------------------------------------------------------------------


@modes
@workers
def test_an_epoch_is_every_sample_once_in_batches(made, mode, workers):
    batches = list(loader_of(made.url, mode, workers=workers))
    assert [len(batch["key"]) for batch in batches] == [12, 12, 5]
    assert [list(batch) for batch in batches] == [["image", "caption", "key"]] * 3
    assert [key for batch in batches for key in batch["key"]] == made.keys
    assert [text for batch in batches for text in batch["caption"]] == [captions[0] for captions in made.captions]
    assert [number_of(image) for batch in batches for image in batch["image"]] == list(range(SAMPLES))


@modes
@workers
def test_pixels_and_strides_do_not_depend_on_mode_or_workers(made, mode, workers):
    reference = list(loader_of(made.url))
    for batch, expected in zip(loader_of(made.url, mode, workers=workers), reference, strict=True):
        assert batch["image"].dtype == torch.uint8
        assert batch["image"].stride() == expected["image"].stride()
        assert batch["image"].is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(batch["image"], expected["image"])


@modes
def test_without_a_size_images_are_a_list_of_whole_ones(made, mode):
    for batch in loader_of(made.url, mode, image_size=None):
        assert isinstance(batch["image"], list)
        numbers = [int(key) for key in batch["key"]]
        assert [tuple(image.shape) for image in batch["image"]] == [(3, *size_of(number)) for number in numbers]
        assert [number_of(image) for image in batch["image"]] == numbers


@modes
def test_captions_all_are_lists_of_texts(made, mode):
    batches = list(loader_of(made.url, mode, captions="all"))
    assert [texts for batch in batches for texts in batch["caption"]] == made.captions


@modes
@workers
@pytest.mark.parametrize("shuffle", [None, "window", "full"])
def test_caption_rows_are_every_pair_once(made, mode, workers, shuffle):
    loader = loader_of(made.url, mode, workers=workers, captions="each", shuffle=shuffle)
    found = [pair for batch in loader for pair in zip(batch["key"], batch["caption"], strict=True)]
    assert sorted(found) == sorted(made.pairs)
    assert (found == made.pairs) == (shuffle is None)


@modes
def test_a_random_caption_is_one_of_the_samples_own_and_differs_between_epochs(made, mode):
    loader = loader_of(made.url, mode, captions="random")
    epochs = [[text for batch in loader for text in batch["caption"]] for _ in range(2)]
    for texts in epochs:
        assert all(text in captions_of(number) for number, text in enumerate(texts))
    assert epochs[0] != epochs[1]


@modes
@pytest.mark.parametrize("form", [dict, tuple, list])
def test_a_users_collate_makes_batches_of_any_form(made, mode, form):
    def collate(examples):
        leaves = {
            "pixels": torch.stack([example["image"].float() / 255 for example in examples]),
            "text": [example["caption"].upper() for example in examples],
            "id": torch.tensor([int(example["key"]) for example in examples]),
        }
        return leaves if form is dict else form(leaves.values())

    numbers = iter(range(SAMPLES))
    for batch in loader_of(made.url, mode, collate=collate):
        assert type(batch) is form
        pixels, texts, ids = batch.values() if form is dict else batch
        for image, text, number in zip(pixels, texts, ids.tolist(), strict=True):
            assert number == next(numbers)
            assert number_of(255 * image) == number
            assert text == captions_of(number)[0].upper()


def test_a_batch_can_be_normalized(made):
    batch = normalize(next(iter(loader_of(made.url))), mean=(0.5,) * 3, std=(0.5,) * 3)
    assert batch["image"].dtype == torch.float32
    assert [number_of(127 * image + 128) for image in batch["image"]] == list(range(12))


@modes
def test_drop_last_leaves_out_the_rows_that_fill_no_step(made, mode):
    loader = loader_of(made.url, mode, drop_last=True)
    assert [key for batch in loader for key in batch["key"]] == made.keys[:24]
    assert len(loader) == 2


@modes
def test_an_epoch_without_steps_is_empty(made, mode):
    loader = loader_of(made.url, mode, batch_size=100, drop_last=True)
    assert list(loader) == []
    assert (len(loader), loader.epoch) == (0, 1)


# --- order -----------------------------------------------------------------------------------------------------


@modes
@pytest.mark.parametrize("shuffle", ["window", "full"])
def test_a_shuffled_epoch_is_another_permutation_each_time_and_the_same_for_one_seed(made, mode, shuffle):
    def epochs(seed):
        loader = loader_of(made.url, mode, shuffle=shuffle, seed=seed)
        return [[key for batch in loader for key in batch["key"]] for _ in range(2)]

    first, second = epochs(0)
    assert sorted(first) == sorted(second) == made.keys
    assert first != made.keys
    assert first != second
    assert epochs(0) == [first, second]
    assert epochs(1)[0] != first


@workers
def test_modes_give_the_same_steps(made, workers):
    found = [
        [batch["key"] for batch in loader_of(made.url, mode, workers=workers, shuffle="window")]
        for mode in ("alone", "dispatch", "shard")
    ]
    assert found[0] == found[1] == found[2]


# --- other sources ---------------------------------------------------------------------------------------------


class Numbers(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, number):
        return {"number": number, "text": str(number)}


class OneAfterAnother(IterableDataset):
    def __iter__(self):
        return (Numbers()[number] for number in range(10))


class WithLength(OneAfterAnother):
    def __len__(self):
        return 10


@modes
@workers
@pytest.mark.parametrize("source", [Numbers(), [Numbers()[number] for number in range(10)]])
def test_a_map_style_dataset_is_read_in_both_modes(mode, workers, source):
    loader = loader_of(source, mode, workers=workers, batch_size=4)
    assert len(loader) == 3
    batches = list(loader)
    assert [batch["number"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [text for batch in batches for text in batch["text"]] == [str(number) for number in range(10)]


def test_a_map_style_dataset_is_shuffled():
    [batch] = loader_of(Numbers(), shuffle="full", batch_size=10)
    assert batch["number"].tolist() != list(range(10))
    assert sorted(batch["number"].tolist()) == list(range(10))


@pytest.mark.parametrize("mode", ["alone", "dispatch"])
@pytest.mark.parametrize("source", [OneAfterAnother(), WithLength()])
def test_an_iterable_keeps_its_own_order(mode, source):
    loader = loader_of(source, mode, batch_size=4, shuffle="window")
    for _ in range(2):
        assert [batch["number"].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert loader.epoch == 2


@pytest.mark.parametrize("mode", ["alone", "dispatch"])
@pytest.mark.parametrize("drop_last", [False, True])
def test_an_iterable_without_rows_is_an_empty_epoch(mode, drop_last):
    loader = loader_of({}.values(), mode, drop_last=drop_last)
    assert list(loader) == []
    assert loader.epoch == 1


def test_an_iterable_is_refused_in_shard_mode():
    with pytest.raises(OptionError, match=r"mode='shard': .*dispatch_batches=True"):
        loader_of(OneAfterAnother(), "shard")


# --- randomness ------------------------------------------------------------------------------------------------


@modes
@workers
def test_the_users_random_generators_are_not_touched(made, mode, workers):
    def states():
        name, keys, *rest = np.random.get_state()  # noqa: NPY002 - the user's global generator
        return torch.get_rng_state().tolist(), random.getstate(), (name, keys.tolist(), *rest)

    before = states()
    loader = loader_of(made.url, mode, workers=workers, shuffle="window", captions="random")
    assert len(list(loader)) == 3
    assert states() == before


@pytest.mark.parametrize("wrong", [{"options": {"workers": 2}}, {"options": {}}, {"collate": 3}])
def test_what_is_no_option_at_all_is_refused_by_name(wrong):
    with pytest.raises(OptionError, match=next(iter(wrong))):
        StreamLoader([1, 2, 3], batch_size=2, **wrong)


@pytest.mark.parametrize("epoch", [-1, 1.5, "1", True, None])
def test_an_epoch_is_a_whole_number(epoch):
    with pytest.raises(OptionError, match="epoch"):
        StreamLoader([1, 2, 3], batch_size=2).set_epoch(epoch)
