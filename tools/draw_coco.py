"""Draw a synthetic COCO: photographs of shapes, and captions that tell them.

    python tools/draw_coco.py --out DIR --images 1000 --seed 0

writes DIR/images/000000000001.jpg, ... and DIR/captions.json in COCO's own format. Each image shows two coloured shapes
on a textured, noisy ground; its first caption (by annotation id) is like "a red circle above a blue square", the
others say the same in other words. As in COCO, most images have 5 captions, a few 6 or 7, some captions end in blanks,
most images are 640x480 and some 480x640, and neither list is in the order of ids. The same arguments give the same
files on the same versions of numpy and simplejpeg.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import simplejpeg

Pixels: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]

COLORS: Mapping[str, tuple[int, int, int]] = {
    "red": (215, 40, 35),
    "green": (45, 165, 60),
    "blue": (40, 75, 215),
    "yellow": (240, 215, 45),
    "purple": (140, 50, 170),
    "white": (245, 245, 245),
}
SHAPES = ("circle", "square", "triangle")
OPPOSITES: Mapping[str, str] = {
    "above": "below",
    "below": "above",
    "left of": "right of",
    "right of": "left of",
}
DATE = "2017-01-01 00:00:00"
_PORTRAIT_SHARE = 0.2
_CAPTION_COUNTS, _CAPTION_SHARES = (5, 6, 7), (0.9, 0.07, 0.03)
_BLANKS_SHARE = 0.05
_QUALITY = 90
_LICENSES = (
    {"url": "https://creativecommons.org/publicdomain/zero/1.0/", "id": 1, "name": "CC0 1.0 Universal"},
    {"url": "https://creativecommons.org/licenses/by/4.0/", "id": 2, "name": "Attribution 4.0 International"},
)


class Scene(NamedTuple):
    """What an image shows: the first shape lies `relation` the second one."""

    first: tuple[str, str]
    relation: str
    second: tuple[str, str]
    width: int
    height: int


def draw_coco(out: Path, *, images: int, seed: int = 0, size: tuple[int, int] = (640, 480)) -> None:
    """Draw `images` images of `size` (width, height in pixels; a fifth of them turned) and their captions into `out`.

    Files of a former drawing are replaced; the captions file is written last.
    """
    folder = out / "images"
    folder.mkdir(parents=True, exist_ok=True)
    scenes = []
    for image_id in range(1, images + 1):
        rng = np.random.default_rng([seed, image_id])
        scene = imagine(rng, size)
        pixels = draw(scene, rng)
        (folder / _file_name(image_id)).write_bytes(
            simplejpeg.encode_jpeg(pixels, quality=_QUALITY, colorspace="RGB", colorsubsampling="420")
        )
        scenes.append(scene)
    captions = describe(scenes, np.random.default_rng([seed, 0]))
    (out / "captions.json").write_text(json.dumps(captions), encoding="utf-8")


def imagine(rng: np.random.Generator, size: tuple[int, int]) -> Scene:
    """Choose what an image shows: two shapes that differ in colour."""
    names = list(COLORS)
    one, other = rng.permutation(len(names))[:2]
    relation = list(OPPOSITES)[rng.integers(len(OPPOSITES))]
    width, height = size if rng.random() >= _PORTRAIT_SHARE else size[::-1]
    shapes = [SHAPES[number] for number in rng.integers(len(SHAPES), size=2)]
    return Scene((names[one], shapes[0]), relation, (names[other], shapes[1]), width, height)


def draw(scene: Scene, rng: np.random.Generator) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the image: uint8 [height, width, 3], RGB."""
    pixels = _ground(scene, rng)
    for (color, shape), (x, y, radius) in zip((scene.first, scene.second), _places(scene, rng), strict=True):
        mask = _mask(shape, _offsets(scene.width, x), _offsets(scene.height, y)[:, None], radius)
        pixels[mask] = np.array(COLORS[color], np.float32) * rng.uniform(0.9, 1.0)
    grain = rng.standard_normal((scene.height, scene.width, 1), np.float32) * np.float32(rng.uniform(6, 14))
    return np.clip(pixels + grain, 0, 255).astype(np.uint8)


def _ground(scene: Scene, rng: np.random.Generator) -> Pixels:
    """Return dull, slowly varying colours: float32 [height, width, 3]."""
    tint = rng.uniform(70, 130, 3).astype(np.float32)
    patches = rng.uniform(-30, 30, (8, 8, 1)).astype(np.float32)
    rows = _between(patches.shape[0], scene.height)
    columns = _between(patches.shape[1], scene.width)
    waves: Pixels = np.einsum("hi,ijc,wj->hwc", rows, patches, columns, optimize=True)
    return waves + tint


def _between(knots: int, length: int) -> Pixels:
    """Return the weights of a linear interpolation from `knots` values to `length`: float32 [length, knots]."""
    at = np.linspace(0, knots - 1, length, dtype=np.float32)[:, None]
    weights: Pixels = np.maximum(0, 1 - np.abs(at - np.arange(knots, dtype=np.float32)))
    return weights


def _places(scene: Scene, rng: np.random.Generator) -> list[tuple[float, float, float]]:
    """Return (x, y, radius) in pixels of the two shapes, which never touch."""
    upright = scene.relation in {"above", "below"}
    along, across = (scene.height, scene.width) if upright else (scene.width, scene.height)
    radii = rng.uniform(0.13, 0.2, 2) * min(along, across * 1.2)
    near, far = along * rng.uniform(0.24, 0.28), along * rng.uniform(0.72, 0.76)
    ends = (near, far) if scene.relation in {"above", "left of"} else (far, near)
    sides = across * rng.uniform(0.3, 0.7, 2)
    places = zip(ends, sides, radii, strict=True)
    return [(side, end, radius) if upright else (end, side, radius) for end, side, radius in places]


def _offsets(length: int, centre: float) -> Pixels:
    return np.arange(length, dtype=np.float32) - np.float32(centre)


def _mask(shape: str, dx: Pixels, dy: Pixels, radius: float) -> Mask:
    mask: Mask
    if shape == "circle":
        mask = dx * dx + dy * dy <= radius * radius
    elif shape == "square":
        mask = np.maximum(np.abs(dx), np.abs(dy)) <= radius * 0.85
    else:
        mask = (np.abs(dx) <= (dy + radius) / 2) & (np.abs(dy) <= radius)
    return mask


def describe(scenes: Sequence[Scene], rng: np.random.Generator) -> dict[str, object]:
    """Return COCO's captions file for images 1, 2, ... that show these scenes."""
    annotations = []
    for image_id, scene in enumerate(scenes, start=1):
        count = int(rng.choice(_CAPTION_COUNTS, p=_CAPTION_SHARES))
        for number, caption in enumerate(tell(scene)[:count]):
            # the first caption stays clean: it is what the images are told by
            blanks = " " * int(rng.integers(1, 3)) if number and rng.random() < _BLANKS_SHARE else ""
            annotations.append({"image_id": image_id, "id": 10 * image_id + number, "caption": caption + blanks})
    records = [_image(image_id, scene, int(rng.integers(1, 3))) for image_id, scene in enumerate(scenes, start=1)]
    return {
        "info": {
            "description": "Drawn COCO",
            "url": "",
            "version": "1.0",
            "year": 2017,
            "contributor": "tools/draw_coco.py",
            "date_created": DATE[:10].replace("-", "/"),
        },
        "licenses": list(_LICENSES),
        "images": [records[number] for number in rng.permutation(len(records))],
        "annotations": [annotations[number] for number in rng.permutation(len(annotations))],
    }


def tell(scene: Scene) -> list[str]:
    """Return seven captions of a scene, the plainest first."""
    first, second = " ".join(scene.first), " ".join(scene.second)
    opposite = OPPOSITES[scene.relation]
    return [
        f"a {first} {scene.relation} a {second}",
        f"a {second} {opposite} a {first}",
        f"There is a {first} {scene.relation} a {second}.",
        f"A picture of a {first} and a {second}.",
        f"The {second} lies {opposite} the {first}",
        f"Two shapes, one of them a {first}, the other a {second}.",
        f"{first} and {second}, drawn on a dull ground",
    ]


def _image(image_id: int, scene: Scene, license_id: int) -> dict[str, object]:
    name = _file_name(image_id)
    return {
        "license": license_id,
        "file_name": name,
        "coco_url": f"http://images.example.org/drawn/{name}",
        "height": scene.height,
        "width": scene.width,
        "date_captured": DATE,
        "flickr_url": f"http://photos.example.org/{image_id}_z.jpg",
        "id": image_id,
    }


def _file_name(image_id: int) -> str:
    return f"{image_id:012d}.jpg"


def main() -> int:
    """Run the program and return its exit status."""
    parser = argparse.ArgumentParser(prog="draw_coco.py", description="Draw a synthetic COCO.", allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True, help="folder to draw into")
    parser.add_argument("--images", type=int, default=1000, help="how many images (default: 1000)")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other images (default: 0)")
    arguments = parser.parse_args()
    if arguments.images < 1 or arguments.seed < 0:
        parser.error("--images must be 1 or more, --seed 0 or more")
    draw_coco(arguments.out, images=arguments.images, seed=arguments.seed)
    sys.stdout.write(f"drew {arguments.images:,} images with captions into {arguments.out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
