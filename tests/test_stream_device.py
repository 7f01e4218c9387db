"""stream/device.py: uint8 pixels become what a model takes, and the rest of the batch stays."""

import pytest
import torch

from stream.device import CLIP_MEAN, CLIP_STD, IMAGENET_MEAN, IMAGENET_STD, normalize
from stream.errors import OptionError

MEAN, STD = (0.5, 0.25, 0.125), (0.5, 0.25, 2.0)


def images(*shape):
    """uint8 [..., 3, H, W] over the memory [..., H, W, 3], as the loader has it."""
    memory = torch.randint(0, 256, (*shape, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return memory.movedim(-1, -3)


def expected(image):
    exact = image.double() / 255
    return (exact - torch.tensor(MEAN).double().view(3, 1, 1)) / torch.tensor(STD).double().view(3, 1, 1)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-6), (torch.float64, 1e-12), (torch.bfloat16, 2**-8), (torch.float16, 2**-11)],
)
def test_the_formula_holds_in_each_type(dtype, tolerance):
    batch = {"image": images(4, 5, 7)}
    result = normalize(batch, mean=MEAN, std=STD, dtype=dtype)["image"]
    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), expected(batch["image"]), rtol=tolerance, atol=tolerance)


def test_black_and_white_by_hand():
    image = torch.tensor([0, 255], dtype=torch.uint8).expand(1, 3, 1, 2)
    result = normalize({"image": image}, mean=MEAN, std=STD)["image"]
    assert result[0, :, 0].tolist() == [[-1, 1], [-1, 3], [-0.0625, 0.4375]]


@pytest.mark.parametrize("shape", [(4, 5, 7), (1, 5, 7), (2, 1, 9), (2, 9, 1)])
def test_channels_last_stays(shape):
    batch = {"image": images(*shape)}
    result = normalize(batch, mean=MEAN, std=STD)["image"]
    assert result.stride() == batch["image"].stride()
    assert result.is_contiguous(memory_format=torch.channels_last)


def test_planar_stays_planar():
    result = normalize({"image": images(2, 5, 7).contiguous()}, mean=MEAN, std=STD)["image"]
    assert result.is_contiguous()


def test_a_list_of_sizes_stays_a_list():
    batch = {"image": [images(5, 7), images(6, 4)]}
    result = normalize(batch, mean=MEAN, std=STD)["image"]
    assert [item.shape for item in result] == [(3, 5, 7), (3, 6, 4)]
    for item, image in zip(result, batch["image"], strict=True):
        torch.testing.assert_close(item.double(), expected(image), rtol=1e-6, atol=1e-6)
        assert item.stride() == image.stride()


def test_the_other_entries_are_the_same_objects_and_the_batch_is_not_changed():
    batch = {"image": images(2, 5, 7), "caption": ["a", "b"], "key": ["1", "2"]}
    before = batch["image"].clone()
    result = normalize(batch, mean=MEAN, std=STD)
    assert list(result) == list(batch)
    assert result["caption"] is batch["caption"]
    assert result["key"] is batch["key"]
    assert batch["image"].dtype == torch.uint8
    assert torch.equal(batch["image"], before)


def test_an_empty_batch_stays_empty():
    assert normalize({"image": images(0, 5, 7)}, mean=MEAN, std=STD)["image"].shape == (0, 3, 5, 7)


def test_the_result_is_on_the_device_of_the_batch():
    batch = {"image": torch.empty((2, 3, 5, 7), dtype=torch.uint8, device="meta")}
    assert normalize(batch, mean=MEAN, std=STD)["image"].device.type == "meta"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_a_cuda_device_gives_what_the_cpu_gives():
    batch = {"image": images(2, 5, 7)}
    result = normalize({"image": batch["image"].cuda()}, mean=MEAN, std=STD)["image"]
    torch.testing.assert_close(result.cpu(), normalize(batch, mean=MEAN, std=STD)["image"])


@pytest.mark.parametrize(("mean", "std"), [(IMAGENET_MEAN, IMAGENET_STD), (CLIP_MEAN, CLIP_STD)])
def test_named_constants_are_three_shares_of_one(mean, std):
    for values in (mean, std):
        assert len(values) == 3
        assert all(0 < value < 1 for value in values)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"mean": (0.5, 0.5)}, "mean"),
        ({"std": (0.5,) * 4}, "std"),
        ({"std": (0.5, 0.5, 0.0)}, "std"),
        ({"dtype": torch.uint8}, "dtype"),
    ],
)
def test_an_option_that_cannot_work_is_refused(options, option):
    with pytest.raises(OptionError) as caught:
        normalize({"image": images(1, 5, 7)}, **{"mean": MEAN, "std": STD, **options})
    assert caught.value.option == option


@pytest.mark.parametrize(
    "image",
    [torch.zeros(1, 3, 5, 7), torch.zeros((1, 5, 7, 3), dtype=torch.uint8), torch.zeros(7, dtype=torch.uint8), "text"],
    ids=["float", "channels behind", "one dimension", "no tensor"],
)
def test_an_image_that_is_none_is_refused(image):
    with pytest.raises(OptionError) as caught:
        normalize({"image": image}, mean=MEAN, std=STD)
    assert caught.value.option == "image"


def test_a_batch_without_image_is_refused_with_what_it_has():
    with pytest.raises(OptionError, match=r"\['caption', 'key'\]"):
        normalize({"key": [], "caption": []}, mean=MEAN, std=STD)
