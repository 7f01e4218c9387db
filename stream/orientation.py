"""Which way up a picture is stored, and how to turn it upright; bytes and arrays only.

Orientations are those of EXIF 2.32, tag 0x0112: 1 is upright, 2 to 4 mirror or turn by 180 degrees, 5 to 8 also
exchange width and height.
"""

import re
import struct
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

Encoded: TypeAlias = bytes | bytearray | memoryview
Pixels: TypeAlias = np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]

ORIENTATION_TAG = 0x0112
SWAPPED = range(5, 9)

_APP1 = 0xE1  # Exif and XMP
_START_OF_SCAN = 0xDA
_SHORT = 3
_XMP = b"http://ns.adobe.com/xap/1.0/\0"
_XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')


def valid(value: object) -> int:
    """The orientation, or 1 for what is none: readers take the picture as it is then."""
    return value if isinstance(value, int) and value in range(1, 9) else 1


def jpeg_orientation(data: Encoded) -> int | None:
    """Orientation of a JPEG, read without a decoder; None where its EXIF block is out of the ordinary.

    As in Pillow, XMP is asked where EXIF has no orientation, and of several XMP segments the last counts.
    """
    exif, xmp = [], b""
    for segment in _app1_segments(data):
        if segment.startswith(b"Exif\0\0"):
            exif.append(segment[6:])
        elif segment.startswith(_XMP):
            xmp = segment
    if len(exif) > 1:
        return None
    found = _exif_orientation(exif[0]) if exif else 0
    if found == 0 and (in_xmp := _XMP_ORIENTATION.search(xmp)):
        found = int(in_xmp[1])
    return None if found is None else valid(found)


def upright(pixels: Pixels, orientation: int) -> Pixels:
    """Turn ``[height, width, 3]`` upright; C-contiguous, the array itself where there is nothing to turn."""
    if orientation in {3, 4, 6, 7}:
        pixels = pixels[::-1]
    if orientation in {2, 3, 7, 8}:
        pixels = pixels[:, ::-1]
    if orientation in SWAPPED:
        pixels = pixels.transpose(1, 0, 2)
    return np.ascontiguousarray(pixels)


def _app1_segments(data: Encoded) -> Iterator[bytes]:
    """Contents of the APP1 segments before the first scan (ITU-T T.81, annex B)."""
    at = 2
    while at + 4 <= len(data):
        mark, kind, size = struct.unpack_from(">BBH", data, at)
        if mark != 0xFF or kind == _START_OF_SCAN:  # noqa: PLR2004  # each marker starts with this byte
            return
        if kind == _APP1:
            yield bytes(data[at + 4 : at + 2 + size])
        at += 2 + size


def _exif_orientation(exif: bytes) -> int | None:
    """Value of the tag in the first directory, 0 without it, None where the block is odd (TIFF 6.0, section 2)."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None:
        return None
    try:
        (start,) = struct.unpack_from(order + "I", exif, 4)
        (count,) = struct.unpack_from(order + "H", exif, start)
        for entry in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind, values, value = struct.unpack_from(order + "HHIH", exif, entry)
            if tag == ORIENTATION_TAG:
                return int(value) if (kind, values) == (_SHORT, 1) else None
    except struct.error:
        return None
    return 0
