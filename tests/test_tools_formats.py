"""tools/formats.py: what bytes are, and whether a file name says the same."""

import pytest

from formats import look

JPEG = b"\xff\xd8\xff\xe0 and so on"
PNG = b"\x89PNG\r\n\x1a\n and so on"
WEBP = b"RIFF\x10\0\0\0WEBPVP8 and so on"


@pytest.mark.parametrize(
    ("name", "data", "suffix"),
    [
        ("a.jpg", JPEG, "jpg"),
        ("a.JPEG", JPEG, "jpg"),
        ("a.b.png", PNG, "png"),
        ("a.webp", WEBP, "webp"),
        ("no_ending", PNG, "png"),
        ("a.5d7", WEBP, "webp"),
        ("folder.png/a", JPEG, "jpg"),
    ],
)
def test_the_member_suffix_follows_the_bytes(name, data, suffix):
    assert look(name, memoryview(data)) == (suffix, "")


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.jpg", PNG, "it is a PNG image and its name ends in .jpg"),
        ("a.png", JPEG, "it is a JPEG image and its name ends in .png"),
        ("a.gif", WEBP, "it is a WebP image and its name ends in .gif"),
        ("a.jpg", b"", "empty (0 bytes)"),
        ("a.jpg", b"\xef\xbb\xbf\n <!DOCTYPE html><html>", "an HTML page"),
        ("a.jpg", b"<HTML><body>", "an HTML page"),
        ("a.gif", b"GIF89a", "a GIF image"),
        ("a.bmp", b"BM", "a BMP image"),
        ("a.tif", b"II*\0", "a TIFF image"),
        ("a.avif", b"\0\0\0\x20ftypavif", "brand 'avif'"),
        ("a.jpg", b"\0\0\0\0\0\0\0\0\0\0", "it begins with 00 00 00 00"),
        ("a.wav", b"RIFF\x10\0\0\0WAVE", "no image that is known here"),
    ],
)
def test_what_is_not_packed_says_what_it_is(name, data, words):
    suffix, problem = look(name, memoryview(data))
    assert suffix == ""
    assert words in problem
