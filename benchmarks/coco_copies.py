"""A larger COCO set made of a smaller one: every image again under new ids, with its captions."""

from pathlib import Path
from typing import Any

import msgspec


class NothingToCopyError(Exception):
    """The captions file names no image that is in the folder."""

    def __init__(self, images: Path, captions: Path) -> None:
        super().__init__(images, captions)
        self.images, self.captions = images, captions

    def __str__(self) -> str:
        return f"no image of {self.captions} is in {self.images}; give the folder that its images lie in"


def present(images: Path, captions: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the "images" that are in the folder and have captions, and their "annotations".

    Raises:
        NothingToCopyError: there are none.
        OSError, msgspec.DecodeError, KeyError: the captions file cannot be read, or is no COCO captions file.
    """
    known = msgspec.json.decode(captions.read_bytes())
    there = {path.name for path in images.iterdir()}
    told = {annotation["image_id"] for annotation in known["annotations"]}
    records = [image for image in known["images"] if image["file_name"] in there and image["id"] in told]
    if not records:
        raise NothingToCopyError(images, captions)
    ids = {image["id"] for image in records}
    return {"images": records, "annotations": [a for a in known["annotations"] if a["image_id"] in ids]}


def copy_set(images: Path, captions: Path, out: Path, *, copies: int) -> int:
    """Write `copies` copies of a set into `out` ("images", "captions.json") and return the number of images.

    The files are true copies: to tar a second link would be no file.
    """
    known = present(images, captions)
    (out / "images").mkdir(parents=True)
    stride = 10 ** len(str(max(record["id"] for record in known["images"] + known["annotations"])))
    records: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for image in known["images"]:
        source = images / image["file_name"]
        data = source.read_bytes()
        for copy in range(copies):
            new_id = copy * stride + image["id"]
            name = f"{new_id:012d}{source.suffix}"
            (out / "images" / name).write_bytes(data)
            records.append({**image, "id": new_id, "file_name": name})
    for copy in range(copies):
        for annotation in known["annotations"]:
            moved = {key: copy * stride + annotation[key] for key in ("id", "image_id")}
            annotations.append({**annotation, **moved})
    (out / "captions.json").write_bytes(msgspec.json.encode({"images": records, "annotations": annotations}))
    return len(records)
