"""stream/decode.py: how every kind of pixel becomes RGB of 8 bits."""

import struct

import numpy as np
import pytest
from PIL import Image

from pictures import by_pillow, encoded, picture, png
from stream.decode import decode


def grey(value, dtype, mode=None):
    return Image.fromarray(np.full((3, 4), value, dtype), mode)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "JPEG2000"])
def test_16_bit_grey_gives_its_high_byte(kind):
    data = encoded(grey(0x1234, np.uint16), kind)
    assert decode(data, name="a").tolist() == [[[0x12] * 3] * 4] * 3


def test_16_bit_grey_of_the_other_byte_order_gives_its_high_byte():
    assert np.unique(decode(encoded(grey(0x1234, ">u2"), "TIFF"), name="a")).tolist() == [0x12]


@pytest.mark.parametrize(("value", "level"), [(-5, 0), (0x1234, 0x12), (2**20, 255)])
def test_32_bit_grey_is_clipped_to_16_bits(value, level):
    assert np.unique(decode(encoded(grey(value, np.int32), "TIFF"), name="a")).tolist() == [level]


def test_16_bit_rgb_gives_its_high_bytes():
    rows = b"".join(b"\0" + struct.pack(">6H", 0x1234, 0x5678, 0x9ABC, 0, 0xFFFF, 0x00FF) for _ in range(2))
    data = png(2, 2, depth=16, colour=2, rows=rows)
    assert decode(data, name="a")[0].tolist() == [[0x12, 0x56, 0x9A], [0, 0xFF, 0]]


def test_floats_from_0_to_1_are_stretched():
    values = np.array([[0, 0.5, 1, -1]], np.float32)
    assert decode(encoded(Image.fromarray(values), "TIFF"), name="a")[0, :, 0].tolist() == [0, 127, 255, 0]


def test_floats_above_1_are_levels():
    values = np.array([[0, 0.5, 200, 999]], np.float32)
    assert decode(encoded(Image.fromarray(values), "TIFF"), name="a")[0, :, 0].tolist() == [0, 0, 200, 255]


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
def test_alpha_is_composited_over_white(kind):
    image = Image.new("RGBA", (4, 4), (200, 100, 0, 0))
    image.paste((200, 100, 0, 255), (0, 0, 2, 4))
    image.putpixel((3, 0), (200, 100, 0, 127))
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    top = decode(encoded(image, kind, **options), name="a")[0].tolist()
    assert top == [[200, 100, 0], [200, 100, 0], [255, 255, 255], [228, 178, 128]]


def test_grey_with_alpha_is_composited_over_white():
    image = Image.merge("LA", [Image.new("L", (2, 1), 100), Image.frombytes("L", (2, 1), b"\xff\0")])
    assert decode(encoded(image, "PNG"), name="a").tolist() == [[[100] * 3, [255] * 3]]


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_a_transparent_palette_entry_becomes_white(kind):
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    assert decode(encoded(image, kind, transparency=0), name="a").tolist() == [[[255] * 3, [40, 50, 60]]]


def test_a_palette_with_several_alphas_is_composited_over_white():
    image = Image.new("P", (3, 1))
    image.putpalette([100, 0, 0, 100, 0, 0, 100, 0, 0])
    image.putdata([0, 1, 2])
    data = encoded(image, "PNG", transparency=bytes([0, 255, 127]))
    assert decode(data, name="a")[0].tolist() == [[255, 255, 255], [100, 0, 0], [178, 128, 128]]


def test_a_key_colour_becomes_white():
    image = Image.new("RGB", (2, 1), (1, 2, 3))
    image.putpixel((1, 0), (4, 5, 6))
    assert decode(encoded(image, "PNG", transparency=(1, 2, 3)), name="a").tolist() == [[[255] * 3, [4, 5, 6]]]


@pytest.mark.parametrize("mode", ["1", "L", "P"])
def test_few_colours_are_decoded_as_by_pillow(mode):
    data = encoded(picture(mode=mode), "PNG")
    assert np.array_equal(decode(data, name="a"), by_pillow(data))


def test_lab_is_decoded_as_by_pillow():
    data = encoded(Image.new("LAB", (3, 2), (120, 140, 100)), "TIFF")
    assert np.array_equal(decode(data, name="a"), by_pillow(data))


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF", "AVIF"])
def test_of_an_animation_the_first_frame_counts(kind):
    red, blue = Image.new("RGB", (8, 8), "red"), Image.new("RGB", (8, 8), "blue")
    pixels = decode(encoded(red, kind, save_all=True, append_images=[blue]), name="a")
    assert pixels[4, 4, 0] > 200
    assert pixels[4, 4, 2] < 50
