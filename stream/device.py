"""From the uint8 pixels of a batch to what a model takes, on the device where the batch is.

uint8 travels: it is a quarter of float32. The arithmetic is one multiplication and one addition a value.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from stream.errors import OptionError

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of the models of torchvision and timm (torchvision.transforms.v2, reference/classification/presets.py)."""

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
"""Of the models of OpenAI's CLIP (clip/clip.py) and OpenCLIP."""

_CHANNELS = 3


def normalize(
    batch: Mapping[str, Any], *, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """Return the batch with ``image`` as ``(image / 255 - mean) / std``; the other entries are the same objects.

    Args:
        batch: ``image`` is uint8 [B, 3, H, W], or a list of uint8 [3, H, W]; it is not changed.
        mean: Of red, green and blue, in units of 0 to 1.
        std: As ``mean``; above 0.
        dtype: Of the result, a floating point type. 16-bit types are computed in float32 and rounded once.

    Returns:
        A new dict. Each tensor keeps its device and its strides (channels_last stays channels_last).

    Raises:
        OptionError: An argument is not as described.
    """
    if not dtype.is_floating_point:
        raise OptionError("dtype", dtype, "must be a floating point type")
    scale, shift = _scale_and_shift(_channels("mean", mean), _channels("std", std))
    exact = torch.promote_types(dtype, torch.float32)

    def one(image: torch.Tensor) -> torch.Tensor:
        _refuse_other(image)
        # non_blocking: no wait for the device; the driver keeps its own copy of so few bytes
        factor = torch.tensor(scale, dtype=exact).view(-1, 1, 1).to(image.device, non_blocking=True)
        term = torch.tensor(shift, dtype=exact).view(-1, 1, 1).to(image.device, non_blocking=True)
        return torch.mul(image, factor).add_(term).to(dtype)

    if "image" not in batch:
        raise OptionError("batch", sorted(batch), 'has no entry "image"')
    image = batch["image"]
    result = [one(item) for item in image] if isinstance(image, list | tuple) else one(image)
    return {**batch, "image": result}


def _scale_and_shift(mean: Sequence[float], std: Sequence[float]) -> tuple[list[float], list[float]]:
    if min(std) <= 0:
        raise OptionError("std", list(std), "must be above 0 in each channel")
    return [1 / (255 * s) for s in std], [-m / s for m, s in zip(mean, std, strict=True)]


def _channels(option: str, values: Sequence[float]) -> list[float]:
    numbers = [float(value) for value in values]
    if len(numbers) != _CHANNELS:
        raise OptionError(option, numbers, "must be three numbers, of red, green and blue, in units of 0 to 1")
    return numbers


def _refuse_other(image: object) -> None:
    if not isinstance(image, torch.Tensor) or image.dtype != torch.uint8 or image.ndim not in {3, 4}:
        got = f"{image.dtype} {list(image.shape)}" if isinstance(image, torch.Tensor) else type(image).__name__
        raise OptionError("image", got, "must be uint8 [B, 3, H, W] or a list of [3, H, W]; is it normalized already?")
    if image.shape[-3] != _CHANNELS:
        raise OptionError("image", list(image.shape), "must have 3 channels before height and width")
