"""Pictures that tests draw, and their encoded forms; no file of them is kept."""

import io
import struct
import subprocess
import sys
import textwrap
import warnings
import zlib

import numpy as np
from PIL import Image, ImageOps


def picture(height=40, width=60, mode="RGB"):
    """A smooth picture whose corners differ, so that each turn of it shows."""
    y, x = np.mgrid[0:height, 0:width]
    red, green = 255 * y // max(1, height - 1), 255 * x // max(1, width - 1)
    pixels = np.stack([red, green, (red + 2 * green) // 3], axis=2).astype(np.uint8)
    return Image.fromarray(pixels).convert(mode)


def encoded(image, kind="JPEG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def rotated(kind, orientation, **options):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(picture(), kind, exif=exif, **options)


def by_pillow(data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))


def difference(one, other):
    assert one.shape == other.shape
    return np.abs(one.astype(int) - other).mean()


def png(width, height, *, depth, colour, rows):
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def in_a_new_process(program):
    program = textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


JPEG = encoded(picture(), quality=90)
