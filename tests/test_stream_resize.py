"""stream/resize.py: the geometry is as written, and the pixels are those of Pillow."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import stream.resize
from pictures import encoded, picture
from stream.decode import decode
from stream.errors import DecodeError, OptionError
from stream.resize import DECODE_GAP, ResizeSpec, decode_floor, decode_into, resize_into, scaled_size

MODES = ["cover_crop", "contain_pad", "squash"]
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
SIZES = [(48, 64), (333, 517), (97, 31), (1, 50), (50, 1), (1, 1), (2, 3), (224, 224), (500, 90)]
PANORAMAS = [(1, 400), (2, 401), (3, 1000), (7, 500), (30, 2000), (20, 999), (23, 9001), (31, 7001)]
sides = st.integers(1, 3000)


def noisy(height, width):
    """A smooth picture plus noise: edges of every direction and strength."""
    smooth = np.asarray(picture(height, width)).astype(int)
    noise = np.random.default_rng(height * 1000 + width).integers(-60, 60, smooth.shape)
    return (smooth + noise).clip(0, 255).astype(np.uint8)


def resized(image, spec, **options):
    out = torch.full((spec.height, spec.width, 3), 77, dtype=torch.uint8)
    resize_into(image, out, spec, **options)
    return out.numpy()


def by_pillow(image, spec):
    """The same rules once more, in Pillow: resize all, then crop or paste."""
    height, width = image.shape[:2]
    ratios = spec.height / height, spec.width / width
    if spec.mode == "squash":
        size = spec.height, spec.width
    elif (ratios[0] >= ratios[1]) == (spec.mode == "cover_crop"):
        size = spec.height, max(1, int(spec.height * width / height))
    else:
        size = max(1, int(spec.width * height / width)), spec.width
    scaled = Image.fromarray(image).resize(size[::-1], FILTERS[spec.interpolation])
    top, left = round((size[0] - spec.height) / 2), round((size[1] - spec.width) / 2)
    if spec.mode == "contain_pad":
        canvas = Image.new("RGB", (spec.width, spec.height))
        canvas.paste(scaled, (-left, -top))
        return np.asarray(canvas)
    return np.asarray(scaled.crop((left, top, left + spec.width, top + spec.height)))


def difference(one, other):
    assert one.shape == other.shape
    return np.abs(one.astype(int) - other).mean()


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("target", [(64, 64), (33, 50), (224, 96), (1, 1)])
@pytest.mark.parametrize("size", SIZES)
def test_pixels_are_those_of_pillow(size, target, mode, interpolation):
    spec = ResizeSpec(*target, mode, interpolation)
    image = noisy(*size)
    assert difference(resized(image, spec), by_pillow(image, spec)) <= 1


@pytest.mark.parametrize("mode", MODES)
def test_a_source_of_the_targets_size_is_copied(mode):
    image = noisy(30, 40)
    assert np.array_equal(resized(image, ResizeSpec(30, 40, mode)), image)


def test_cover_crop_cuts_out_the_centre():
    image = np.zeros((10, 30, 3), np.uint8)
    image[:, 10:20] = 200
    assert (resized(image, ResizeSpec(10, 10)) == 200).all()


def test_cover_crop_starts_at_halves_rounded_to_even():
    image = np.repeat(np.arange(15, dtype=np.uint8)[None, :, None], 10, 0).repeat(3, 2)
    assert resized(image, ResizeSpec(10, 10))[0, :, 0].tolist() == list(range(2, 12))


def test_contain_pad_puts_black_around():
    out = resized(np.full((20, 40, 3), 200, np.uint8), ResizeSpec(40, 40, "contain_pad"))
    assert (out[:10] == 0).all()
    assert (out[10:30] == 200).all()
    assert (out[30:] == 0).all()


def test_squash_keeps_the_whole_picture():
    image = np.zeros((10, 40, 3), np.uint8)
    image[:, 20:] = 200
    out = resized(image, ResizeSpec(20, 20, "squash"))
    assert (out[:, :8] == 0).all()
    assert (out[:, 12:] == 200).all()


@pytest.mark.parametrize(
    ("mode", "target", "source", "size"),
    [
        ("cover_crop", (224, 224), (480, 640), (224, 298)),
        ("cover_crop", (224, 224), (640, 427), (335, 224)),
        ("cover_crop", (100, 300), (480, 640), (225, 300)),
        ("contain_pad", (224, 224), (480, 640), (168, 224)),
        ("contain_pad", (224, 224), (1, 1000), (1, 224)),
        ("contain_pad", (100, 300), (480, 640), (100, 133)),
        ("squash", (100, 300), (480, 640), (100, 300)),
    ],
)
def test_scaled_size(mode, target, source, size):
    assert scaled_size(ResizeSpec(*target, mode), height=source[0], width=source[1]) == size


@given(sides, sides, sides, sides)
def test_cover_crop_covers_and_one_side_is_exact(height, width, source_height, source_width):
    size = scaled_size(ResizeSpec(height, width), height=source_height, width=source_width)
    assert size[0] >= height
    assert size[1] >= width
    assert size[0] == height or size[1] == width


@given(sides, sides, sides, sides)
def test_contain_pad_fits_and_one_side_is_exact(height, width, source_height, source_width):
    size = scaled_size(ResizeSpec(height, width, "contain_pad"), height=source_height, width=source_width)
    assert 1 <= size[0] <= height
    assert 1 <= size[1] <= width
    assert size[0] == height or size[1] == width


def test_it_writes_into_a_slice_of_a_batch_and_nowhere_else():
    memory = torch.full((3, 8, 9, 3), 77, dtype=torch.uint8)
    image = noisy(20, 20)
    resize_into(image, memory[1], ResizeSpec(8, 9))
    assert (memory[0] == 77).all()
    assert (memory[2] == 77).all()
    assert np.array_equal(memory[1].numpy(), resized(image, ResizeSpec(8, 9)))


@pytest.mark.parametrize("mode", MODES)
def test_a_read_only_picture_is_taken_without_a_warning(mode):
    image = noisy(20, 30)
    image.flags.writeable = False
    assert resized(image, ResizeSpec(8, 9, mode)).shape == (8, 9, 3)


def test_a_picture_of_any_strides_is_taken():
    image = noisy(20, 30)
    turned = image[::-1, ::-1].transpose(1, 0, 2)
    assert np.array_equal(resized(turned, ResizeSpec(8, 9)), resized(turned.copy(), ResizeSpec(8, 9)))


# --- panoramas


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("size", PANORAMAS)
def test_the_window_of_a_panorama_shows_what_scaling_all_of_it_shows(monkeypatch, size, turned, interpolation):
    image = noisy(*size)
    image = image.transpose(1, 0, 2) if turned else image
    spec = ResizeSpec(64, 48, interpolation=interpolation)
    expected = by_pillow(np.ascontiguousarray(image), spec)
    monkeypatch.setattr(stream.resize, "_LARGEST_RESIZED", 64 * 64)
    assert difference(resized(image, spec), expected) <= 1


def test_the_longest_line_needs_no_memory():
    image = np.zeros((1, 65_500, 3), np.uint8)
    image[:, 32_700:32_800] = 200
    assert (resized(image, ResizeSpec(224, 224)) == 200).all()


# --- with a decoder that may scale


def test_decode_floor_is_a_few_times_the_scaled_size():
    floor = decode_floor(ResizeSpec(50, 50), height=1000, width=2000)
    assert floor == (50 * DECODE_GAP, 100 * DECODE_GAP)


def test_decode_floor_asks_for_no_more_than_there_is():
    assert decode_floor(ResizeSpec(224, 224), height=480, width=200) == (480, 200)


@given(sides, sides, st.sampled_from(MODES), sides, sides)
def test_decode_floor_never_makes_resizing_enlarge_what_it_would_reduce(height, width, mode, tall, wide):
    spec = ResizeSpec(height, width, mode)
    size, floor = (call(spec, height=tall, width=wide) for call in (scaled_size, decode_floor))
    assert floor[0] >= min(size[0], tall)
    assert floor[1] >= min(size[1], wide)


def test_the_geometry_follows_the_full_picture():
    spec = ResizeSpec(50, 50)
    image = noisy(214, 320)  # half of 427 x 640, rounded up
    assert np.array_equal(resized(image, spec, source=(214, 320)), resized(image, spec))
    full = scaled_size(spec, height=427, width=640)
    assert full == (50, 74)
    assert not np.array_equal(resized(image, spec, source=(427, 660)), resized(image, spec))


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_decode_into_is_decode_then_resize(kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(picture(200, 333), kind, exif=exif)
    spec = ResizeSpec(80, 60)
    out = torch.zeros((80, 60, 3), dtype=torch.uint8)
    decode_into(data, out, spec, name="a")
    assert difference(out.numpy(), by_pillow(decode(data, name="a"), spec)) <= 1


def test_decode_into_names_what_it_cannot_decode():
    with pytest.raises(DecodeError, match="image one"):
        decode_into(b"", torch.zeros((8, 8, 3), dtype=torch.uint8), ResizeSpec(8, 8), name="one.jpg")


@pytest.mark.shared
@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize("side", [224, 64, 32])  # decoded in full, at half size, at a quarter
def test_real_images_are_within_one_grey_level_of_pillow(shared_data, side, interpolation):
    paths = sorted((shared_data / "coco").rglob("*.jpg"))[::7]
    spec = ResizeSpec(side, side, interpolation=interpolation)
    out = torch.zeros((side, side, 3), dtype=torch.uint8)
    found = []
    for path in paths:
        data = path.read_bytes()
        decode_into(data, out, spec, name=path.name)
        found.append(difference(out.numpy(), by_pillow(decode(data, name=path.name), spec)))
    assert len(found) == 40
    assert np.mean(found) <= 1
    assert max(found) <= (0.1 if side == 224 else 6)


# --- what is refused


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ((0, 8), "image_size"),
        ((8, -1), "image_size"),
        ((8, 8, "crop"), "resize"),
        ((8, 8, "squash", "lanczos"), "interpolation"),
    ],
)
def test_a_spec_that_cannot_work_is_refused(arguments, option):
    with pytest.raises(OptionError) as caught:
        ResizeSpec(*arguments)
    assert caught.value.option == option


@pytest.mark.parametrize(
    "out",
    [
        torch.zeros((8, 9, 3), dtype=torch.uint8),
        torch.zeros((3, 8, 8), dtype=torch.uint8),
        torch.zeros((8, 8, 3)),
        torch.zeros((8, 8, 3), dtype=torch.uint8, device="meta"),
    ],
)
def test_an_out_that_does_not_fit_is_refused(out):
    with pytest.raises(OptionError, match=r"uint8 \[8, 8, 3\]"):
        resize_into(noisy(20, 20), out, ResizeSpec(8, 8))


@pytest.mark.parametrize(
    "image",
    [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3)), np.zeros((0, 4, 3), np.uint8)],
)
def test_a_picture_that_is_none_is_refused(image):
    with pytest.raises(OptionError, match=r"uint8 \[height, width, 3\]"):
        resize_into(image, torch.zeros((8, 8, 3), dtype=torch.uint8), ResizeSpec(8, 8))
