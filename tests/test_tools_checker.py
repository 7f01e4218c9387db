"""tools/checker.py: one image against its record."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image
from xxhash import xxh3_64_intdigest

from checker import judge
from images import Place
from stream.decode import MAX_PIXELS
from verdict import Task, Verdict


def encoded(kind="JPEG", size=(40, 30), **options):
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, kind, **options)
    return buffer.getvalue()


def verdict(data, name="a.jpg", size=(40, 30), max_pixels=MAX_PIXELS):
    return judge(Task(name, Place(name), *size), memoryview(data), max_pixels)


@pytest.mark.parametrize(("kind", "suffix"), [("JPEG", "jpg"), ("PNG", "png"), ("WEBP", "webp")])
def test_a_good_image_is_told_by_size_digest_and_suffix(kind, suffix):
    data = encoded(kind)
    assert verdict(data, f"a.{suffix}") == Verdict("", len(data), xxh3_64_intdigest(data), suffix)


def test_another_size_than_the_record_says_is_a_problem():
    problem = verdict(encoded(), size=(30, 40)).problem
    assert problem == "it has 40x30 pixels and the captions file says 30x40"


@pytest.mark.parametrize("size", [(40, 30), (30, 40)])
def test_a_turned_image_may_be_recorded_as_stored_or_as_shown(size):
    exif = Image.Exif()
    exif[0x0112] = 6
    assert verdict(encoded(exif=exif), size=size).problem == ""


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("keep", [0.1, 0.5, 0.98])
def test_a_truncated_image_is_a_problem(kind, keep):
    data = encoded(kind)
    assert verdict(data[: int(len(data) * keep)], "a").problem


def test_a_decompression_bomb_is_a_problem_before_it_takes_memory():
    header = struct.pack(">IIBBBBB", 10**4, 10**4, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(10**5))), (b"IEND", b"")]
    bomb = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
    assert "10000x10000" in verdict(bomb, "a.png", (10**4, 10**4)).problem


def test_the_limit_on_pixels_is_what_the_caller_says():
    assert verdict(encoded(), max_pixels=40 * 30).problem == ""
    assert "1199" in verdict(encoded(), max_pixels=40 * 30 - 1).problem


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"<html>", "HTML"),
        (encoded("PNG"), "a PNG image and its name ends in .jpg"),
        (encoded("GIF"), "GIF"),
    ],
)
def test_what_is_no_image_of_its_name_is_a_problem(data, words):
    assert words in verdict(data).problem
