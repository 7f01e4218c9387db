"""What encoded bytes are, told by how they begin; nothing is decoded here."""

from typing import NamedTuple


class Content(NamedTuple):
    """What a file holds, in words, and the member suffix of such an image; no suffix where it is not packed."""

    words: str
    suffix: str = ""


JPEG = Content("a JPEG image", "jpg")
PNG = Content("a PNG image", "png")
WEBP = Content("a WebP image", "webp")
_BEGINNINGS = (
    (b"\xff\xd8\xff", JPEG),
    (b"\x89PNG\r\n\x1a\n", PNG),
    (b"GIF8", Content("a GIF image")),
    (b"BM", Content("a BMP image")),
    (b"II*\x00", Content("a TIFF image")),
    (b"MM\x00*", Content("a TIFF image")),
    (b"%PDF", Content("a PDF document")),
    (b"PK\x03\x04", Content("a zip")),
    (b"\x1f\x8b", Content("a gzip file")),
)
_CLAIMS = {".jpg": JPEG, ".jpeg": JPEG, ".jpe": JPEG, ".jfif": JPEG, ".png": PNG, ".webp": WEBP}
_CLAIMS |= {ending: Content("of another format") for ending in (".gif", ".bmp", ".tif", ".tiff", ".avif", ".heic")}
_HEAD = 256


def look(file_name: str, data: memoryview) -> tuple[str, str]:
    """Return (member suffix, problem): the suffix follows the bytes, the problem is empty where all is well.

    A problem is: no bytes, no JPEG, PNG or WebP, or a file name whose ending claims another format. A name without
    an ending, or with one that no image format uses, claims nothing.
    """
    content = content_of(bytes(data[:_HEAD]))
    if not content.suffix:
        return "", f"it is {content.words}; only JPEG, PNG and WebP images are packed"
    ending = file_name[file_name.rfind(".") :].lower() if "." in file_name else ""
    if _CLAIMS.get(ending, content) != content:
        return "", f"it is {content.words} and its name ends in {ending}; rename it and correct its `file_name`"
    return content.suffix, ""


def content_of(head: bytes) -> Content:
    """Say what a file is that begins with these bytes."""
    if not head:
        return Content("empty (0 bytes)")
    for beginning, content in _BEGINNINGS:
        if head.startswith(beginning):
            return content
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return WEBP
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return Content("an HTML page, as servers send in place of an image")
    if head[4:8] == b"ftyp":
        return Content(f"an ISO media file of brand {head[8:12].decode('latin-1')!r} (AVIF, HEIC, MP4)")
    return Content(f"no image that is known here (it begins with {head[:8].hex(' ')})")
