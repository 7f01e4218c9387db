"""What ``image_size`` does to a picture, and how it is done in the memory of a batch.

Sizes are (height, width) in pixels. A source of h x w becomes H x W like this:

- ``cover_crop``: scaled until it covers both sides, then the centre is cut out. One side is exact, the other is
  ``int(size * long / short)``, rounded down, as torchvision's ``Resize`` has it. The cut starts at
  ``round((scaled - size) / 2)``, halves to even, as torchvision's ``CenterCrop`` has it.
- ``contain_pad``: scaled until it fits inside, the other side rounded down and at least 1; centred by the same
  rule; the rest is black.
- ``squash``: both sides scaled on their own.

Resampling is by ``torch.nn.functional.interpolate`` on uint8 with ``antialias=True``, whose filters are Pillow's:
the pictures differ from those of Pillow's ``resize`` by far less than 1 grey level on average.
It works on one core, holds no GIL, and a source that already has its size is only copied.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch.nn.functional import interpolate

from stream.decode import MAX_PIXELS, decode, probe
from stream.errors import OptionError
from stream.orientation import Encoded, Pixels

Mode: TypeAlias = Literal["cover_crop", "contain_pad", "squash"]
Interpolation: TypeAlias = Literal["bilinear", "bicubic"]
Size: TypeAlias = tuple[int, int]

DECODE_GAP = 3
"""A JPEG is decoded at a smaller scale if that still leaves this many times the pixels of each side.

The small scales of a JPEG are sharper than Pillow's antialiased picture. Mean grey levels between the two over 140
images of COCO, bilinear, and in brackets the worst image, by how many times larger the decoded side was:

    gap    1          1.5        2          3
    1/2    3.4 (10)   1.6 (5)    1.2 (4)    0.8 (3)
    1/4    3.3 (12)   1.8 (8)    1.5 (6)    1.0 (4)

So 3 is what keeps the promise of 1 level. It costs time where a gap of 1 would allow a smaller scale: 2.04 ms an
image instead of 1.84 for COCO at 224, where every second image is then decoded at full instead of half size."""

_LARGEST_RESIZED = 2**24  # pixels in between; only upscaled panoramas of extreme aspect ask for more
_SLACK = 2**12  # pixels of the scaled picture within which a window may begin and end, see _window


@dataclass(frozen=True, slots=True)
class ResizeSpec:
    """The size that every picture gets, and the way there; see the top of this file.

    Raises:
        OptionError: A side is below 1, or a word is unknown.
    """

    height: int
    width: int
    mode: Mode = "cover_crop"
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        if self.height < 1 or self.width < 1:
            raise OptionError("image_size", (self.height, self.width), "both sides must be at least 1 pixel")
        if self.mode not in {"cover_crop", "contain_pad", "squash"}:
            raise OptionError("resize", self.mode, "must be cover_crop, contain_pad or squash")
        if self.interpolation not in {"bilinear", "bicubic"}:
            raise OptionError("interpolation", self.interpolation, "must be bilinear or bicubic")


def scaled_size(spec: ResizeSpec, *, height: int, width: int) -> Size:
    """(height, width) that a whole source of that size is scaled to, before anything is cut off or added."""
    if spec.mode == "squash":
        return spec.height, spec.width
    tall = spec.height * width >= spec.width * height  # scaled by its height, it is at least as wide as the target
    if tall == (spec.mode == "cover_crop"):
        return spec.height, max(1, spec.height * width // height)
    return max(1, spec.width * height // width), spec.width


def decode_floor(spec: ResizeSpec, *, height: int, width: int) -> Size:
    """(height, width) that suffice of an upright source of that size: ``at_least`` of ``decode``; see DECODE_GAP."""
    scaled = scaled_size(spec, height=height, width=width)
    return min(height, DECODE_GAP * scaled[0]), min(width, DECODE_GAP * scaled[1])


def decode_into(data: Encoded, out: torch.Tensor, spec: ResizeSpec, *, name: str, max_pixels: int = MAX_PIXELS) -> None:
    """Decode at the smallest scale that suffices and resize into ``out``; arguments as of the functions it joins.

    Raises:
        DecodeError: As ``decode``.
    """
    info = probe(data, name=name, max_pixels=max_pixels)
    source = info.oriented_height, info.oriented_width
    floor = decode_floor(spec, height=source[0], width=source[1])
    image = decode(data, name=name, at_least=floor, max_pixels=max_pixels)
    resize_into(image, out, spec, source=source if info.format == "jpeg" else None)


def resize_into(image: Pixels, out: torch.Tensor, spec: ResizeSpec, *, source: Size | None = None) -> None:
    """Resize uint8 ``image`` [h, w, 3] into ``out``: uint8 [H, W, 3] on the CPU, a slice of the batch's memory.

    Args:
        image: Any strides, may be read-only.
        out: Overwritten in full.
        spec: H, W and the way there.
        source: (height, width) of the full picture, where ``image`` is a decode of it at a smaller scale.
            The geometry then is that of the full picture; else half a pixel of rounding would move the cut.

    Raises:
        OptionError: ``out`` is not what ``spec`` says, or ``image`` is not uint8 [h, w, 3].
    """
    _refuse_wrong(image, out, spec)
    height, width = source or image.shape[:2]
    size = scaled_size(spec, height=height, width=width)
    top, left = round((size[0] - spec.height) / 2), round((size[1] - spec.width) / 2)
    target = out.numpy()
    if spec.mode == "contain_pad":
        target.fill(0)
        target[-top : size[0] - top, -left : size[1] - left] = _scaled(image, size, spec)
        return
    if size[0] * size[1] > max(_LARGEST_RESIZED, image.shape[0] * image.shape[1]):
        image, size, top, left = _window(image, size, (top, left), spec)
    # torch's copy_ would wake a second thread for this; numpy's copy frees the GIL and takes 6 us at 224 x 224
    np.copyto(target, _scaled(image, size, spec)[top : top + spec.height, left : left + spec.width])


def _refuse_wrong(image: Pixels, out: torch.Tensor, spec: ResizeSpec) -> None:
    if out.shape != (spec.height, spec.width, 3) or out.dtype != torch.uint8 or out.device.type != "cpu":
        got = f"{out.dtype} {list(out.shape)} on {out.device}"
        raise OptionError("out", got, f"must be uint8 [{spec.height}, {spec.width}, 3] in the memory of the CPU")
    if image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape or image.dtype != np.uint8:  # noqa: PLR2004 - RGB
        raise OptionError("image", f"{image.dtype} {list(image.shape)}", "must be uint8 [height, width, 3]")


def _scaled(image: Pixels, size: Size, spec: ResizeSpec) -> Pixels:
    if image.shape[:2] == size:
        return image
    image = np.require(image, requirements=["C", "W"])  # torch warns of read-only memory
    # The batch axis must come first: with it last, torch takes the memory for planar, and is 6 times slower
    planes = torch.from_numpy(image).unsqueeze(0).permute(0, 3, 1, 2)
    scaled = interpolate(planes, size=size, mode=spec.interpolation, antialias=True)
    return scaled.permute(0, 2, 3, 1)[0].numpy()


def _window(image: Pixels, size: Size, start: Size, spec: ResizeSpec) -> tuple[Pixels, Size, int, int]:
    """Cut an upscaled panorama down to what the target shows, before it is scaled.

    A picture of 1 x 65,500 pixels would else become 224 x 14,672,000 on its way to 224 x 224. The part is chosen so
    that its edges fall on edges of pixels of the scaled picture, as nearly as there are any within _SLACK.

    Returns:
        The part, the size to scale it to, and where in that the target starts: top, left.
    """
    axis = 0 if size[0] > spec.height else 1
    scale = size[axis] / image.shape[axis]

    def miss(pixel: int) -> float:
        return abs(pixel * scale - round(pixel * scale))

    tries = int(_SLACK / scale) + 1
    first = max(0, int(start[axis] / scale) - 4)  # 4 pixels: the bicubic filter reaches 2
    first = min(range(max(0, first - tries), first + 1), key=miss)
    last = int((start[axis] + (spec.height, spec.width)[axis]) / scale) + 5
    count = min(range(last - first, last - first + tries), key=miss)
    part = image[first : first + count] if axis == 0 else image[:, first : first + count]
    length = round(part.shape[axis] * scale)
    begin = start[axis] - round(first * scale)
    if axis == 0:
        return part, (length, size[1]), begin, start[1]
    return part, (size[0], length), start[0], begin
