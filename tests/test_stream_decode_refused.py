"""stream/decode.py: what is no image, damaged or too large gives a DecodeError that says so, and takes no memory."""

import re
import struct
import subprocess

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from pictures import JPEG, encoded, in_a_new_process, picture, png
from stream.decode import MAX_PIXELS, check, decode, probe
from stream.errors import DecodeError


def refused(data, problem, **options):
    """All three functions refuse the bytes, with the same words; gives the error of decode."""
    errors = []
    for function in (probe, check, decode):
        with pytest.raises(DecodeError) as caught:
            function(data, name="one.jpg", **options)
        assert caught.value.name == "one.jpg"
        assert re.search(problem, caught.value.problem)
        errors.append(caught.value)
    assert len({error.problem for error in errors}) == 1
    return errors[-1]


def test_an_empty_file():
    refused(b"", "^empty file$")


@pytest.mark.parametrize(
    "page", [b"<!DOCTYPE html><html>", b"\n <HTML><head>", b"\xef\xbb\xbf<!-- gone --><!doctype HTML>"]
)
def test_an_html_page(page):
    refused(page, "^looks like an HTML page, not an image$")


def test_a_file_of_zeros():
    refused(bytes(5000), "zero bytes only")


def test_text_shows_its_first_bytes():
    refused(b'{"error": 404}', "its first bytes are b'{\"error\"'")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "TIFF"])
def test_a_damaged_header_names_the_format(kind):
    refused(encoded(picture(), kind)[:4] + bytes(100), f"starts as {kind} does, but its header is damaged")


@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "PPM", "AVIF", "JPEG2000"])
def test_a_file_cut_short(kind, part):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8))
    data = encoded(noise, kind)
    cut = data[: int(len(data) * part)]
    for function in (decode, check):
        with pytest.raises(DecodeError) as caught:
            function(cut, name="one")
        assert caught.value.problem


def test_an_eps_file_starts_no_program(monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("a program was started")

    monkeypatch.setattr(subprocess, "Popen", never)
    refused(encoded(picture(), "EPS"), "no image of a format that is read here")


@pytest.mark.parametrize("kind", ["TGA", "ICO"])
def test_a_format_that_cannot_be_told_or_sized_safely(kind):
    refused(encoded(picture(), kind), "no image of a format that is read here")


def bomb(kind, side):
    """A small file that claims to be side x side pixels."""
    if kind == "JPEG":
        at = JPEG.index(b"\xff\xc0") + 5
        return JPEG[:at] + struct.pack(">HH", side, side) + JPEG[at + 4 :]
    if kind == "GIF":
        return encoded(picture(), "GIF")[:6] + struct.pack("<HH", side, side) + encoded(picture(), "GIF")[10:]
    if kind == "BMP":
        return encoded(picture(), "BMP")[:18] + struct.pack("<ii", side, side) + encoded(picture(), "BMP")[26:]
    return png(side, side, depth=8, colour=2, rows=b"\0")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP"])
@pytest.mark.parametrize("side", [8000, 10_000, 60_000])
def test_a_bomb_is_refused_by_its_header(kind, side):
    refused(bomb(kind, side), "pixels")


def test_the_limit_is_exact():
    data = encoded(picture(40, 60), "PNG")
    assert decode(data, name="a", max_pixels=2400).shape == (40, 60, 3)
    refused(data, r"^60x40 pixels are more than max_pixels=2399 allows$", max_pixels=2399)
    refused(JPEG, r"^60x40 pixels are more than max_pixels=2399 allows$", max_pixels=2399)


def test_pillows_bomb_warning_does_not_leave_where_the_limit_allows_the_size():
    assert probe(bomb("PNG", 10_000), name="a", max_pixels=2**30).width == 10_000


def test_pillows_bomb_error_becomes_a_decode_error_where_the_limit_allows_the_size():
    with pytest.raises(DecodeError, match="DecompressionBombError"):
        probe(bomb("PNG", 60_000), name="a", max_pixels=2**40)


@pytest.mark.parametrize("raised", [MemoryError(), ZeroDivisionError("x"), SyntaxError("x"), struct.error("x")])
@pytest.mark.parametrize("data", [JPEG, encoded(picture(), "PNG")], ids=["jpeg", "png"])
def test_whatever_a_codec_raises_becomes_a_decode_error(monkeypatch, raised, data):
    def fail(*args, **kwargs):
        raise raised

    monkeypatch.setattr(simplejpeg, "decode_jpeg", fail)
    monkeypatch.setattr(Image.Image, "crop", fail)
    with pytest.raises(DecodeError, match=type(raised).__name__) as caught:
        decode(data, name="one")
    assert caught.value.__cause__ is raised


def test_an_interrupt_passes(monkeypatch):
    def fail(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(simplejpeg, "decode_jpeg", fail)
    with pytest.raises(KeyboardInterrupt):
        decode(JPEG, name="one")


def test_the_words_do_not_differ_from_run_to_run(monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(f"cannot read {object()!r}")

    monkeypatch.setattr(simplejpeg, "decode_jpeg", fail)
    with pytest.raises(DecodeError, match="cannot read <object object>"):
        decode(JPEG, name="one")


# --- memory


def peak_growth(path):
    """MiB by which decoding raises the peak memory of a new process."""
    program = f"""
        import resource
        from stream.decode import decode, probe
        data = open({str(path)!r}, "rb").read()
        probe(data, name="a")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        decode(data, name="a")
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
        """
    return float(in_a_new_process(program))


@pytest.mark.parametrize(("kind", "mode"), [("JPEG", "CMYK"), ("WEBP", "RGBA"), ("PNG", "RGBA")])
def test_a_picture_at_the_default_limit_takes_less_than_1_gib(tmp_path, kind, mode):
    side = int(MAX_PIXELS**0.5)
    exif = Image.Exif()
    exif[0x0112] = 6
    options = {"JPEG": {"progressive": True, "subsampling": 0}, "WEBP": {"method": 0}, "PNG": {"compress_level": 1}}
    path = tmp_path / "a"
    Image.new(mode, (side, side), (200, 100, 50, 25)).save(path, kind, exif=exif, **options[kind])
    assert peak_growth(path) < 1024


def test_bombs_take_no_memory(tmp_path):
    for kind in ("JPEG", "PNG", "GIF", "BMP"):
        (tmp_path / kind).write_bytes(bomb(kind, 8000))
    program = f"""
        import pathlib, resource
        from stream.decode import decode
        from stream.errors import DecodeError
        files = [path.read_bytes() for path in pathlib.Path({str(tmp_path)!r}).iterdir()]
        def refused(data):
            try:
                decode(data, name="a")
            except DecodeError:
                return True
        assert refused(b"first use of Pillow")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert all(map(refused, files))
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
        """
    assert float(in_a_new_process(program)) < 16
