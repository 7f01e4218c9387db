"""What is left out of a dataset, and why: the lines of `rejected.jsonl`."""

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal["missing", "bad", "uncaptioned", "unknown_image"]
"""Why a sample is left out.

`missing`: the file is not there; `bad`: it is there and is not the image it should be; `uncaptioned`: the
captions file has no caption for it; `unknown_image`: captions of an image that the file does not describe.
"""
_SHOWN = 10


class Rejection(msgspec.Struct, frozen=True, gc=False):
    """One image id that is left out. `file_name` is empty where none is known."""

    image_id: int
    file_name: str
    kind: Kind
    reason: str


def to_jsonl(rejections: Iterable[Rejection]) -> bytes:
    """Return one JSON line per rejection, ordered by image id; no bytes where nothing is left out."""
    ordered = sorted(rejections, key=lambda rejection: (rejection.image_id, rejection.kind))
    return msgspec.json.Encoder().encode_lines(ordered)


def first_ten(rejections: Sequence[Rejection]) -> str:
    """Return the first ten as indented lines for people, and how many more there are."""
    lines = [
        f"  {_printable(rejection.file_name) or '(no file name)'} (image id {rejection.image_id}): {rejection.reason}"
        for rejection in rejections[:_SHOWN]
    ]
    if len(rejections) > _SHOWN:
        lines.append(f"  ... and {len(rejections) - _SHOWN} more")
    return "\n".join(lines)


def _printable(name: str) -> str:
    """Escape what would move the cursor or end the line."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in name)
