"""stream/orientation.py: the orientation of a JPEG is found without a decoder, as Pillow finds it."""

import io
import struct
import warnings

import numpy as np
import pytest
from PIL import Image, ImageOps

from stream.orientation import SWAPPED, jpeg_orientation, upright, valid

PLAIN = Image.new("RGB", (6, 4), "navy")


def jpeg(**options):
    file = io.BytesIO()
    PLAIN.save(file, "JPEG", **options)
    return file.getvalue()


def exif_block(value, *, order="<", kind=3, count=1):
    head = b"Exif\0\0" + (b"II*\0" if order == "<" else b"MM\0*")
    other = struct.pack(order + "HHII", 0x010E, 4, 1, 7)
    entry = struct.pack(order + "HHI", 0x0112, kind, count) + struct.pack(order + ("I" if kind == 4 else "HH"), *value)
    return head + struct.pack(order + "IH", 8, 2) + other + entry + bytes(4)


def xmp(text):
    return b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description ' + text + b"/></x:xmpmeta>"


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("value", range(1, 9))
def test_exif_in_both_byte_orders(order, value):
    assert jpeg_orientation(jpeg(exif=exif_block((value, 0), order=order))) == value


def test_no_exif_is_upright():
    assert jpeg_orientation(jpeg()) == 1


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_a_value_that_is_none_is_upright(value):
    assert jpeg_orientation(jpeg(exif=exif_block((value, 0)))) == 1


@pytest.mark.parametrize("text", [b'tiff:Orientation="6"', b"><tiff:Orientation>6</tiff:Orientation"])
def test_xmp_is_asked_where_there_is_no_exif(text):
    data = jpeg(xmp=xmp(text))
    assert jpeg_orientation(data) == 6 == Image.open(io.BytesIO(data)).getexif()[0x0112]


def test_exif_wins_over_xmp():
    data = jpeg(xmp=xmp(b'tiff:Orientation="6"'), exif=exif_block((3, 0)))
    assert jpeg_orientation(data) == 3 == Image.open(io.BytesIO(data)).getexif()[0x0112]


@pytest.mark.parametrize(
    "exif",
    [
        exif_block((6,), kind=4),
        exif_block((6, 0), count=2),
        exif_block((6, 0))[:20],
        b"Exif\0\0" + exif_block((6, 0)),
        b"Exif\0\0nonsense",
    ],
    ids=["long", "two values", "cut", "twice the mark", "no header"],
)
def test_an_odd_block_is_left_to_pillow(exif):
    assert jpeg_orientation(with_segment(exif)) is None


def test_two_blocks_are_left_to_pillow():
    block = exif_block((6, 0))
    assert jpeg_orientation(with_segment(block, block)) is None


def with_segment(*contents):
    data = jpeg()
    segments = b"".join(b"\xff\xe1" + struct.pack(">H", len(content) + 2) + content for content in contents)
    return data[:2] + segments + data[2:]


def test_every_cut_of_a_file_is_read_without_an_error():
    data = jpeg(exif=exif_block((6, 0)), xmp=xmp(b'tiff:Orientation="3"'))
    for end in range(len(data)):
        assert jpeg_orientation(memoryview(data)[:end]) in {None, 1, 3, 6}


@pytest.mark.parametrize("value", range(1, 9))
def test_upright_turns_as_pillow_does(value):
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    image = Image.fromarray(pixels)
    image.getexif()[0x0112] = value
    turned = upright(pixels, value)
    assert np.array_equal(turned, np.asarray(ImageOps.exif_transpose(image)))
    assert turned.flags.c_contiguous
    assert (turned.shape[0] != 2) == (value in SWAPPED)


def test_an_upright_picture_is_not_copied():
    pixels = np.zeros((2, 3, 3), np.uint8)
    assert upright(pixels, 1) is pixels


@pytest.mark.parametrize(("value", "expected"), [(8, 8), (0, 1), (9, 1), (None, 1), ("6", 1), ((6, 6), 1)])
def test_valid_takes_what_is_no_orientation_as_upright(value, expected):
    assert valid(value) == expected


@pytest.mark.shared
def test_real_and_awkward_jpegs_agree_with_pillow(shared_data):
    asked = 0
    for path in sorted(shared_data.rglob("*.jp*g")):
        data = path.read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                image = Image.open(io.BytesIO(data), formats=["JPEG"])
                expected = valid(image.getexif().get(0x0112))
            except Exception:  # noqa: BLE001 - not a JPEG that Pillow opens
                continue
        found = jpeg_orientation(data)
        asked += found is None
        assert found in {None, expected}, path.name
    assert asked < 20
