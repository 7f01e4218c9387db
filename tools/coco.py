"""COCO captions JSON -> records.

The format is COCO's own (https://cocodataset.org/#format-data, "Image Captioning"): an object with `images`
and `annotations`; all other fields are ignored. Captions are kept byte for byte, trailing blanks included.

What is wrong with the structure is refused always, since nobody could say what was meant: text that is not
JSON or not UTF-8, absent fields, image ids that are no numbers from 0 to 999,999,999,999, two images with one
id, two annotations with one id. What only concerns single images is handed back for the caller to allow or to
refuse: images without a caption, and captions of images that the file does not describe.
"""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from pack_errors import CaptionsError
from rejections import Rejection

KEY_DIGITS = 12
_SHOWN = 10
_U32 = 2**32 - 1
_ImageId = Annotated[int, msgspec.Meta(ge=0, lt=10**KEY_DIGITS)]
_AnnotationId = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Pixels = Annotated[int, msgspec.Meta(ge=1, le=_U32)]
_License = Annotated[int, msgspec.Meta(ge=0, le=_U32)]
_ESCAPES = re.compile(
    rb"\\u[dD][89aAbB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a whole surrogate pair
    rb"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"  # half of one
    rb"|\\."  # any other escape; an escaped backslash is consumed here, so what follows it is plain text
)


class Record(msgspec.Struct, frozen=True, gc=False):
    """One image and its captions.

    `width` and `height` are in pixels, as the captions file gives them. `captions` and `caption_ids` have equal
    length and are ordered by annotation id. `license` is 0 and a URL is empty where the file has none.
    """

    image_id: int
    file_name: str
    width: int
    height: int
    captions: tuple[str, ...]
    caption_ids: tuple[int, ...]
    license: int
    coco_url: str
    flickr_url: str

    @property
    def key(self) -> str:
        """The sample's key: the image id as 12 decimal digits."""
        return f"{self.image_id:0{KEY_DIGITS}d}"


class Captions(msgspec.Struct, frozen=True):
    """What a captions file holds, each part ordered by image id.

    `records` have at least one caption each; `uncaptioned` are images without one; `unknown` are image ids
    that captions speak of and that no image has.
    """

    records: tuple[Record, ...]
    uncaptioned: tuple[Rejection, ...]
    unknown: tuple[Rejection, ...]


class _Image(msgspec.Struct, gc=False):
    id: _ImageId
    file_name: str
    width: _Pixels
    height: _Pixels
    license: _License | None = 0
    coco_url: str | None = ""
    flickr_url: str | None = ""


class _Annotation(msgspec.Struct, gc=False):
    id: _AnnotationId
    image_id: _ImageId
    caption: str


class _File(msgspec.Struct):
    images: list[_Image]
    annotations: list[_Annotation]


def read_captions(path: Path) -> Captions:
    """Read a captions file.

    Raises:
        CaptionsError: it cannot be read, or as `parse_captions` says.
    """
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise CaptionsError(
            str(path), f"it cannot be read ({exc.strerror}); --captions names a COCO captions JSON"
        ) from exc
    return parse_captions(data, name=str(path))


def parse_captions(data: bytes, *, name: str) -> Captions:
    """Return what the bytes of a captions file hold; `name` is for messages.

    Raises:
        CaptionsError: not JSON (with the byte), not UTF-8, a field absent or of the wrong type (with its place
            in the JSON, such as `$.images[3].id`), an id out of range, or an id that occurs twice.
    """
    file = _decode(data, name)
    _refuse_duplicates((image.id for image in file.images), "images", name)
    _refuse_duplicates((annotation.id for annotation in file.annotations), "annotations", name)
    by_image: dict[int, list[_Annotation]] = {}
    for annotation in sorted(file.annotations, key=lambda annotation: annotation.id):
        by_image.setdefault(annotation.image_id, []).append(annotation)
    images = sorted(file.images, key=lambda image: image.id)
    records = tuple(_record(image, by_image[image.id]) for image in images if image.id in by_image)
    uncaptioned = tuple(_uncaptioned(image) for image in images if image.id not in by_image)
    unknown_ids = sorted(by_image.keys() - {image.id for image in images})
    return Captions(records, uncaptioned, tuple(_unknown(number, by_image[number]) for number in unknown_ids))


def _decode(data: bytes, name: str) -> _File:
    try:
        return msgspec.json.decode(data, type=_File)
    except msgspec.ValidationError as exc:
        raise CaptionsError(name, f"{exc}; it must be COCO captions JSON with `images` and `annotations`") from exc
    except msgspec.DecodeError as exc:
        raise CaptionsError(name, _why_not_json(data, str(exc))) from exc


def _why_not_json(data: bytes, problem: str) -> str:
    """Say what the parser's words leave open: where UTF-8 ends, and that half a surrogate pair is no text."""
    try:
        data.decode()
    except UnicodeDecodeError as exc:
        return f"it is not UTF-8 at byte {exc.start} ({exc.reason}); save it as UTF-8"
    half = next((escape for escape in _ESCAPES.finditer(data) if escape["half"]), None)
    if half:
        what = f"{half[0].decode()} at byte {half.start()} is half a surrogate pair"
        return f"{what}, which is no text; write the whole character"
    where = "" if "(byte " in problem else f" (byte {len(data)}, its end)"
    return f"it is not JSON: {problem}{where}; fetch it again"


def _refuse_duplicates(ids: Iterable[int], field: str, name: str) -> None:
    twice = sorted(number for number, count in Counter(ids).items() if count > 1)
    if not twice:
        return
    first = ", ".join(map(str, twice[:_SHOWN])) + (", ..." if len(twice) > _SHOWN else "")
    raise CaptionsError(name, f"{len(twice)} ids occur more than once in `{field}`: {first}; ids must be unique")


def _record(image: _Image, annotations: list[_Annotation]) -> Record:
    return Record(
        image_id=image.id,
        file_name=image.file_name,
        width=image.width,
        height=image.height,
        captions=tuple(annotation.caption for annotation in annotations),
        caption_ids=tuple(annotation.id for annotation in annotations),
        license=image.license or 0,
        coco_url=image.coco_url or "",
        flickr_url=image.flickr_url or "",
    )


def _uncaptioned(image: _Image) -> Rejection:
    return Rejection(image.id, image.file_name, "uncaptioned", "the captions file has no caption for it")


def _unknown(image_id: int, annotations: list[_Annotation]) -> Rejection:
    ids = ", ".join(str(annotation.id) for annotation in annotations[:_SHOWN])
    more = ", ..." if len(annotations) > _SHOWN else ""
    reason = f"{len(annotations)} captions (annotations {ids}{more}) of an image that `images` does not hold"
    return Rejection(image_id, "", "unknown_image", reason)
