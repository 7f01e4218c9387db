"""Encoded bytes to pixels: uint8 ``[height, width, 3]`` RGB, upright, or a ``DecodeError`` that names the image.

JPEGs in YCbCr, RGB or grey go through simplejpeg in strict mode. Everything else, and each JPEG that strict mode
refuses, goes to Pillow, whose verdict counts. Invariants:

- The header is read first; above ``max_pixels`` nothing is decoded. The default limit keeps decoding below 1 GiB
  beside the encoded bytes [measured: 3 to 13 bytes a pixel for a JPEG, at most 25, for JPEG 2000 with alpha].
- Only ``DecodeError`` leaves this file; what a decoder raised is its ``__cause__``. No warning leaves it, but
  libtiff, inside Pillow, writes its complaints to standard error itself.
- Every function may run in any number of threads at once; simplejpeg and Pillow's codecs release the GIL.
- Pillow is imported at first use, and its settings are not touched.

What becomes RGB, and how:

- Orientation (EXIF, or XMP where there is no EXIF orientation) is applied, in every format.
- Transparency, by alpha channel, palette or key colour, is composited over white.
- Of animations and multi-picture files the first picture counts.
- Grey of more than 8 bits: clipped to 0..65535, then the high byte (``>> 8``). Pillow does so for 16-bit RGB.
- Floating point: 0..1 is stretched to 0..255; if any value is above 1, all are levels and are clipped to 0..255.
- CMYK, YCCK, YCbCr, LAB, palettes, 1 bit: as Pillow's ``convert("RGB")``. Colour profiles are ignored.
"""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import simplejpeg

from stream.errors import DecodeError
from stream.orientation import ORIENTATION_TAG, SWAPPED, Encoded, Pixels, jpeg_orientation, upright, valid
from stream.quiet import quiet

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

MAX_PIXELS = 2**25
"""Default limit on width times height: 33.5 million, a picture of 7,000 by 4,800."""

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "PPM", "AVIF", "JPEG2000")
"""Pillow's names of the formats that are read. Each is a raster format with a signature, its header is read
without decoding, and its decoder starts no program. So EPS and WMF (programs), TGA (no signature: any bytes may
pass for one) and ICO (decodes before its size is known) are refused. MPO counts as JPEG, PNM as PPM."""

_STARTS = {b"\xff\xd8": "JPEG", b"\x89PNG": "PNG", b"GIF8": "GIF", b"II*\0": "TIFF", b"MM\0*": "TIFF"}
_STRIP_PIXELS = 2**18  # converted at once, so that no second full-size picture is needed


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """What an image is, before and after its orientation is applied.

    Attributes:
        format: Lower-case name, ``jpeg``, ``png``, ``webp``, ...: one of ``FORMATS``.
        width: As stored, in pixels. TIFF is the exception: there it is as oriented.
        height: As ``width``.
        orientation: EXIF orientation, 1 to 8; 1 is upright.
    """

    format: str
    width: int
    height: int
    orientation: int = 1

    @property
    def oriented_width(self) -> int:
        """Width of what ``decode`` returns at full size."""
        return self.height if self.orientation in SWAPPED else self.width

    @property
    def oriented_height(self) -> int:
        """Height of what ``decode`` returns at full size."""
        return self.width if self.orientation in SWAPPED else self.height


def probe(data: Encoded, *, name: str, max_pixels: int = MAX_PIXELS) -> ImageInfo:
    """Read the header only; that it is sound says nothing about the pixels.

    An orientation that a PNG stores behind its pixels is not seen here; ``check`` and ``decode`` see it.

    Raises:
        DecodeError: It is no image, or has more than ``max_pixels``.
    """
    with _only_decode_errors(name):
        info = _jpeg_info(data)
        if info is None:
            with _opened(data, name, max_pixels) as image:
                return _info(image)
        _refuse_large(name, info.width, info.height, max_pixels)
        return info


def decode(
    data: Encoded, *, name: str, at_least: tuple[int, int] | None = None, max_pixels: int = MAX_PIXELS
) -> Pixels:
    """Decode to a new, writable, C-contiguous uint8 array ``[height, width, 3]``, RGB, upright.

    Args:
        data: The encoded image.
        name: How errors call it.
        at_least: (height, width) of the upright image that suffice. A JPEG may then come in 1/2, 1/4 or 1/8
            of its size (rounded up), the smallest that is at least this in both directions. The other eighths
            are not used: libjpeg-turbo has fast transforms for these three only, 5/8 takes longer than 8/8.
        max_pixels: Largest width times height, as stored, that is decoded.

    Raises:
        DecodeError: It is no image, is damaged or cut short, or has more than ``max_pixels``.
    """
    with _only_decode_errors(name):
        info = _jpeg_info(data)
        if info is not None:
            _refuse_large(name, info.width, info.height, max_pixels)
            height, width = _jpeg_scale(info, at_least)
            try:
                pixels = simplejpeg.decode_jpeg(data, "RGB", min_height=height, min_width=width)
            except ValueError:
                pass  # strict mode refuses what Pillow may still read
            else:
                return upright(pixels, info.orientation)
        return _decode_by_pillow(data, name, max_pixels)[0]


def check(data: Encoded, *, name: str, max_pixels: int = MAX_PIXELS) -> ImageInfo:
    """Decode in full, keep nothing: what this accepts, ``decode`` decodes, and the other way round.

    Of a JPEG only the brightness becomes pixels. All its coded data is read all the same, and that is where
    damage shows; the rest is arithmetic that cannot fail [measured: 1.33 ms against 1.66 ms for an image of COCO].

    Raises:
        DecodeError: As ``decode``.
    """
    with _only_decode_errors(name):
        info = _jpeg_info(data)
        if info is not None:
            _refuse_large(name, info.width, info.height, max_pixels)
            try:
                simplejpeg.decode_jpeg(data, "GRAY")
            except ValueError:
                pass  # as in decode
            else:
                return info
        return _decode_by_pillow(data, name, max_pixels)[1]


# --- JPEG without Pillow ---------------------------------------------------------------------------------------


def _jpeg_info(data: Encoded) -> ImageInfo | None:
    """The header of a JPEG that simplejpeg can decode to RGB; None sends it to Pillow."""
    if data[:2] != b"\xff\xd8":
        return None
    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None
    if colorspace not in {"YCbCr", "RGB", "Gray"}:
        return None
    orientation = jpeg_orientation(data)
    if orientation is None:
        with quiet(), _pillow().open(io.BytesIO(data), formats=FORMATS[:1]) as image:
            orientation = _orientation(image)
    return ImageInfo("jpeg", int(width), int(height), orientation)


def _jpeg_scale(info: ImageInfo, at_least: tuple[int, int] | None) -> tuple[int, int]:
    """(height, width), as stored, of the smallest fast scale that suffices."""
    if at_least is None:
        return info.height, info.width
    floor = at_least[::-1] if info.orientation in SWAPPED else at_least
    for part in (8, 4, 2):
        height, width = -(-info.height // part), -(-info.width // part)
        if height >= floor[0] and width >= floor[1]:
            return height, width
    return info.height, info.width


# --- everything else, by Pillow --------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _pillow() -> ModuleType:
    """``PIL.Image`` with its codecs registered."""
    from PIL import Image  # noqa: PLC0415  # 0.1 s that readers of plain JPEGs never pay

    Image.init()
    return Image


@contextmanager
def _opened(data: Encoded, name: str, max_pixels: int) -> "Iterator[ImageFile]":
    """The image with its header read and its size accepted; Pillow's warnings are off inside."""
    if not data:
        raise DecodeError(name, "empty file")
    library = _pillow()
    with quiet():
        try:
            image = library.open(io.BytesIO(data), formats=[known for known in FORMATS if known in library.OPEN])
        except library.UnidentifiedImageError as exc:
            raise DecodeError(name, _looks_like(bytes(data[:1024]))) from exc
        with image:
            _refuse_large(name, image.width, image.height, max_pixels)
            yield image


def _decode_by_pillow(data: Encoded, name: str, max_pixels: int) -> tuple[Pixels, ImageInfo]:
    with _opened(data, name, max_pixels) as image:
        image.load()
        info = _info(image)
        return upright(_to_rgb(image), info.orientation), info


def _info(image: "ImageFile") -> ImageInfo:
    kind = str(image.format).lower()
    return ImageInfo("jpeg" if kind == "mpo" else kind, image.width, image.height, _orientation(image))


def _orientation(image: "ImageFile") -> int:
    if image.format == "TIFF":
        return 1  # Pillow turns it while loading
    from PIL.Image import Image  # noqa: PLC0415  # as in _pillow

    try:
        return valid(Image.getexif(image).get(ORIENTATION_TAG))  # PNG's own getexif would decode the pixels first
    except Exception:  # noqa: BLE001  # metadata that cannot be read does not spoil the pixels
        return 1


def _to_rgb(image: "Image") -> Pixels:
    if image.mode == "F":
        _, highest = image.getextrema()
        if isinstance(highest, float) and highest <= 1:
            image = image.point(lambda level: level * 255)
    pixels = np.empty((image.height, image.width, 3), np.uint8)
    rows = max(1, _STRIP_PIXELS // image.width)
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(top + rows, image.height)))
        pixels[top : top + rows] = _strip_to_rgb(strip)
    return pixels


def _strip_to_rgb(strip: "Image") -> np.ndarray[Any, np.dtype[np.uint8]]:
    if strip.mode.startswith("I"):  # I;16, I;16B, I
        return (np.asarray(strip).clip(0, 65535) >> 8).astype(np.uint8)[:, :, np.newaxis]
    if strip.mode == "F":
        strip = strip.convert("L")
    if not strip.has_transparency_data:
        return np.asarray(strip.convert("RGB"))
    strip = strip.convert("RGBA")
    white: Image = _pillow().new("RGB", strip.size, "white")
    white.paste(strip, mask=strip)
    return np.asarray(white)


# --- errors and warnings ---------------------------------------------------------------------------------------


@contextmanager
def _only_decode_errors(name: str) -> Iterator[None]:
    """Turn whatever a codec raises into a DecodeError; its words must not differ from run to run."""
    try:
        yield
    except DecodeError:
        raise
    except Exception as exc:
        words = re.sub(r" at 0x[0-9a-f]+", "", str(exc))
        raise DecodeError(name, f"{type(exc).__name__}: {words}".removesuffix(": ")) from exc


def _refuse_large(name: str, width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        problem = f"{width}x{height} pixels are more than max_pixels={max_pixels} allows"
        raise DecodeError(name, problem)


def _looks_like(head: bytes) -> str:
    """Say what bytes are that no codec takes for an image."""
    text = head.lower()
    if b"<html" in text or b"<!doctype html" in text:
        return "looks like an HTML page, not an image"
    if not head.strip(b"\0"):
        return "holds zero bytes only, as a failed download leaves them"
    for start, kind in _STARTS.items():
        if head.startswith(start):
            return f"starts as {kind} does, but its header is damaged"
    return f"no image of a format that is read here ({', '.join(FORMATS)}); its first bytes are {head[:8]!r}"
