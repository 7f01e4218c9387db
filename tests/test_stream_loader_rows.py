"""What a loader's rows are made of: chosen rows, chosen members, transformed examples; the same in every mode."""

import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import TensorDataset

from packed import SIZE, captions_of, key_of, make_packed, number_of, size_of
from stream.errors import OptionError, SourceError
from stream.keep import key_split
from stream.loader import StreamLoader
from stream.options import StreamOptions

pytestmark = pytest.mark.usefixtures("nothing_left")

SAMPLES = 29
WIDE = [number for number in range(SAMPLES) if size_of(number)[1] == 128]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_packed(tmp_path_factory.mktemp("packed"), SAMPLES)


@pytest.fixture(params=["ours", "shard"])
def path(request):
    return request.param


@pytest.fixture(params=["alone", "ours", "stock", "shard", "workers", "process"])
def everywhere(request):
    return request.param


def loader_of(source, path="alone", **options):
    config = DataLoaderConfiguration(dispatch_batches=path != "shard")
    accelerator = None if path == "alone" else Accelerator(cpu=True, dataloader_config=config)
    made = StreamOptions(
        workers=2 * (path == "workers"),
        transport="stock" if path == "stock" else "ours",
        decode_in="process" if path == "process" else "thread",
    )
    options = {"batch_size": 4, "image_size": SIZE, "shuffle": "full", **options}
    return StreamLoader(source, accelerator=accelerator, options=made, **options)


def numbers_of(loader):
    return [int(key) for batch in loader for key in batch["key"]]


def is_wide(rows):
    return rows.width == 128


# --- keep and limit --------------------------------------------------------------------------------------------


def test_an_epoch_is_the_rows_that_are_kept(made, path):
    loader = loader_of(made.url, path, keep=is_wide)
    assert (len(loader), loader.total_dataset_length) == (-(-len(WIDE) // 4), len(WIDE))
    epochs = [numbers_of(loader) for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [WIDE, WIDE]
    assert epochs[0] != epochs[1]
    loader.close()


def test_pixels_and_captions_are_those_of_the_rows_that_are_kept(made, everywhere):
    loader = loader_of(made.url, everywhere, keep=is_wide, captions="each")
    pairs = []
    for batch in loader:
        assert [number_of(image) for image in batch["image"]] == [int(key) for key in batch["key"]]
        pairs += zip(batch["key"], batch["caption"], strict=True)
    assert sorted(pairs) == sorted((key_of(number), text) for number in WIDE for text in captions_of(number))
    loader.close()


@pytest.mark.parametrize("keep", [None, is_wide])
def test_a_limit_is_the_first_rows(made, path, keep):
    loader = loader_of(made.url, path, keep=keep, limit=6, drop_last=False)
    assert sorted(numbers_of(loader)) == (list(range(6)) if keep is None else WIDE[:6])
    assert len(loader) == 2
    loader.close()


def test_the_first_rows_of_a_dataset_by_number(path):
    if path in ("alone", "ours", "shard"):
        loader = loader_of(TensorDataset(torch.arange(20)), path, limit=6)
        assert sorted(int(row) for (rows,) in loader for row in rows) == list(range(6))


def test_a_subset_goes_on_where_it_was(made, path):
    whole = [batch["key"] for batch in loader_of(made.url, path, keep=is_wide)]
    loader = loader_of(made.url, path, keep=is_wide)
    states = [loader.state_dict() for _ in loader]
    for number, state in enumerate(states[:-1]):
        other = loader_of(made.url, path, keep=[key_of(one) for one in WIDE])
        other.load_state_dict(state)
        assert [batch["key"] for batch in other] == whole[number + 1 :]
        other.close()
    loader.close()


def test_a_state_of_other_rows_is_refused_unless_it_is_asked_for(made):
    loader = loader_of(made.url, keep=is_wide)
    next(iter(loader))
    state = loader.state_dict()
    for options in ({}, {"keep": is_wide, "limit": 5}, {"keep": key_split("val", 0.5)}):
        other = loader_of(made.url, **options)
        with pytest.raises(OptionError, match=r"state\['subset'\].*use the keep and limit that the state is of"):
            other.load_state_dict(state)
        assert (other.epoch, other.position) == (0, 0)
        other.load_state_dict(state, strict=False)
        assert (other.epoch, other.position) == (0, 4)


def test_a_position_behind_the_end_of_other_data_is_refused(made):
    loader = loader_of(made.url)
    with pytest.raises(OptionError, match=r"state\['position'\]=12: an epoch has 5 rows here"):
        loader_of(made.url, limit=5).load_state_dict({**loader.state_dict(), "position": 12}, strict=False)


def test_both_sides_of_a_split_are_the_dataset(made):
    sides = [numbers_of(loader_of(made.url, keep=key_split(part, 0.3))) for part in ("train", "val")]
    assert sorted(sides[0] + sides[1]) == list(range(SAMPLES))
    assert all(sides)


@pytest.mark.parametrize("option", [{"keep": is_wide}, {"limit": 3}, {"parts": ("txt",)}])
def test_what_needs_an_index_is_refused_without_one(option):
    with pytest.raises(OptionError, match="this source"):
        loader_of(_Sequence(), **option)


class _Sequence:
    def __iter__(self):
        return iter(range(3))


# --- parts -----------------------------------------------------------------------------------------------------


def test_captions_alone_come_without_images(made, everywhere):
    loader = loader_of(made.url, everywhere, parts=("txt",))
    found = {}
    for batch in loader:
        assert list(batch) == ["caption", "key"]
        found |= zip(batch["key"], batch["caption"], strict=True)
    assert found == {key_of(number): captions_of(number)[0] for number in range(SAMPLES)}
    loader.close()


def test_images_alone_come_without_captions(made, path):
    loader = loader_of(made.url, path, parts=("jpg",))
    for batch in loader:
        assert list(batch) == ["image", "key"]
        assert [number_of(image) for image in batch["image"]] == [int(key) for key in batch["key"]]
    loader.close()


def test_captions_of_json_need_that_member(made):
    loader = loader_of(made.url, captions="all", parts=("json",))
    assert {key: texts for batch in loader for key, texts in zip(batch["key"], batch["caption"], strict=True)} == {
        key_of(number): captions_of(number) for number in range(SAMPLES)
    }
    with pytest.raises(OptionError, match=r"name an image \(.*\), or .json."):
        loader_of(made.url, captions="all", parts=("txt",))


@pytest.mark.parametrize("parts", ["txt", (), ["txt"], (1,)])
def test_parts_are_a_tuple_of_suffixes(made, parts):
    with pytest.raises(OptionError, match="a tuple of suffixes"):
        loader_of(made.url, parts=parts)


# --- transform -------------------------------------------------------------------------------------------------


def shifted(example, generator):
    """Mirror half of the images and draw a number: both from the row's own generator."""
    mirror = bool(torch.randint(2, (), generator=generator))
    image = example["image"].flip(-1) if mirror else example["image"]
    return {"pixels": image, "drawn": torch.rand((), generator=generator), "name": example["key"]}


def drawn_of(loader):
    return {
        name: (float(drawn), pixels.sum(0).tolist())
        for batch in loader
        for name, drawn, pixels in zip(batch["name"], batch["drawn"], batch["pixels"], strict=True)
    }


def test_a_transform_makes_other_examples_which_are_put_together(made, path):
    loader = loader_of(made.url, path, transform=shifted)
    for batch in loader:
        assert list(batch) == ["pixels", "drawn", "name"]
        assert batch["pixels"].shape[1:] == (3, *SIZE)
        assert batch["drawn"].shape == (len(batch["name"]),)
    loader.close()


def test_what_is_drawn_depends_on_the_row_alone(made, everywhere):
    torch.manual_seed(5)
    expected = drawn_of(loader_of(made.url, transform=shifted, batch_size=7))
    torch.manual_seed(6)
    before = torch.get_rng_state()
    loader = loader_of(made.url, everywhere, transform=shifted)
    found = [drawn_of(loader) for _ in range(2)]
    assert found[0] == expected
    assert found[1] != expected
    if everywhere in ("ours", "process"):
        assert torch.equal(torch.get_rng_state(), before)  # torch's own loader draws a seed from it
    loader.close()


def test_what_is_drawn_is_the_same_after_a_resume(made, path):
    expected = drawn_of(loader_of(made.url, transform=shifted))
    loader = loader_of(made.url, path, transform=shifted)
    for _ in loader:
        state = loader.state_dict()
        break
    other = loader_of(made.url, path, transform=shifted, batch_size=5)
    other.load_state_dict(state)
    found = drawn_of(other)
    assert len(found) == SAMPLES - 4
    assert found == {key: expected[key] for key in found}
    loader.close()
    other.close()


def test_rows_of_one_sample_are_transformed_by_themselves(made, path):
    def inked(example, generator):
        example["image"].fill_(int(torch.randint(256, (), generator=generator)))
        return example

    loader = loader_of(made.url, path, transform=inked, captions="each", shuffle=None, batch_size=8)
    fills = [int(image[0, 0, 0]) for batch in loader for image in batch["image"]]
    flat = [bool((image == image[0, 0, 0]).all()) for batch in loader for image in batch["image"]]
    assert all(flat)
    assert len(set(fills)) > SAMPLES
    loader.close()


def test_transformed_examples_go_to_a_collate(made, path):
    loader = loader_of(
        made.url, path, transform=lambda example, _: {"number": int(example["key"])}, collate=_numbers_alone
    )
    assert sorted(number for batch in loader for number in batch["numbers"].tolist()) == list(range(SAMPLES))
    loader.close()


def _numbers_alone(examples):
    return {"numbers": torch.tensor([example["number"] for example in examples])}


def test_values_that_cannot_be_stacked_are_lists(made):
    loader = loader_of(made.url, transform=lambda example, _: {"wide": torch.zeros(int(example["key"]))}, shuffle=None)
    assert [len(one) for batch in loader for one in batch["wide"]] == list(range(SAMPLES))


@pytest.mark.parametrize(
    ("transform", "problem"),
    [
        (lambda example, _: None, "must return an example, a dict with names of its own; got a NoneType"),
        (lambda example, _: {example["key"]: 1}, "has the names"),
    ],
)
def test_a_transform_that_returns_no_example_is_an_error(made, path, transform, problem):
    loader = loader_of(made.url, path, transform=transform)
    with pytest.raises(SourceError, match=problem):
        list(loader)
    loader.close()


def test_a_transform_of_a_foreign_dataset_is_refused():
    with pytest.raises(OptionError, match="transform them there"):
        loader_of(TensorDataset(torch.arange(20)), transform=shifted)


def test_transformed_images_keep_their_memory_format(made, path):
    loader = loader_of(made.url, path, transform=lambda example, _: example)
    for batch in loader:
        assert batch["image"].is_contiguous(memory_format=torch.channels_last)
        assert [number_of(image) for image in batch["image"]] == [int(key) for key in batch["key"]]
    loader.close()


def test_an_error_of_a_transform_names_its_row(made):
    def fail(example, _):
        raise RuntimeError("no idea")

    with pytest.raises(RuntimeError, match="no idea") as caught:
        list(loader_of(made.url, transform=fail))
    assert any(note.startswith("in transform of shard ") for note in caught.value.__notes__)
