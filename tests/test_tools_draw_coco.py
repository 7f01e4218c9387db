"""tools/draw_coco.py: the drawn set looks like COCO, tells what it shows, and is the same each time."""

import io
import json
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from coco import read_captions
from coco_cases import SIZE, digests, run_tool
from draw_coco import COLORS, OPPOSITES, Scene, describe, draw, draw_coco, imagine, tell


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    out = tmp_path_factory.mktemp("drawn")
    draw_coco(out, images=12, seed=3)
    return out


def test_each_image_is_a_jpeg_of_the_size_that_its_record_says(drawn):
    for record in read_captions(drawn / "captions.json").records:
        with Image.open(drawn / "images" / record.file_name) as image:
            image.load()
            assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (record.width, record.height))


def test_images_are_as_large_as_photographs(drawn):
    sizes = [path.stat().st_size for path in (drawn / "images").iterdir()]
    assert len(sizes) == 12
    assert all(60_000 <= size <= 150_000 for size in sizes)


def test_the_captions_file_has_all_fields_of_coco(drawn):
    content = json.loads((drawn / "captions.json").read_text())
    assert set(content) == {"info", "licenses", "images", "annotations"}
    fields = {"license", "file_name", "coco_url", "height", "width", "date_captured", "flickr_url", "id"}
    assert all(set(image) == fields for image in content["images"])
    assert all(set(annotation) == {"image_id", "id", "caption"} for annotation in content["annotations"])


def test_a_large_set_is_as_irregular_as_coco():
    rng = np.random.default_rng(0)
    scenes = [imagine(rng, (640, 480)) for _ in range(1000)]
    content = describe(scenes, rng)
    counts = Counter(Counter(annotation["image_id"] for annotation in content["annotations"]).values())
    assert counts[5] > 800
    assert counts[6] > 0
    assert counts[7] > 0
    assert sum(annotation["caption"].endswith(" ") for annotation in content["annotations"]) > 50
    assert Counter((scene.width, scene.height) for scene in scenes).keys() == {(640, 480), (480, 640)}
    assert [image["id"] for image in content["images"]] != sorted(image["id"] for image in content["images"])


@pytest.mark.parametrize("relation", OPPOSITES)
def test_the_shapes_lie_as_the_caption_says(relation):
    scene = Scene(("red", "circle"), relation, ("blue", "square"), 640, 480)
    pixels = draw(scene, np.random.default_rng(5)).astype(int)
    red, blue = (centre(pixels, color) for color in ("red", "blue"))
    axis = 0 if relation in {"above", "below"} else 1
    assert (red[axis] < blue[axis]) == (relation in {"above", "left of"})
    assert tell(scene)[0] == f"a red circle {relation} a blue square"
    assert tell(scene)[1] == f"a blue square {OPPOSITES[relation]} a red circle"


def centre(pixels, color):
    return np.argwhere(np.abs(pixels - COLORS[color]).max(axis=2) < 40).mean(axis=0)


@pytest.mark.parametrize("seed", range(20))
def test_no_shape_touches_the_border(seed):
    rng = np.random.default_rng(seed)
    scene = imagine(rng, (640, 480))
    border = np.ones((scene.height, scene.width), bool)
    border[2:-2, 2:-2] = False
    pixels = draw(scene, rng).astype(int)[border]
    for color, _ in (scene.first, scene.second):
        shape = np.abs(pixels - np.array(COLORS[color])).max(axis=1) < 12
        assert shape.mean() < 0.2


def test_the_same_seed_draws_the_same_files(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        draw_coco(tmp_path / name, images=5, seed=seed, size=SIZE)
    assert digests(tmp_path / "a" / "images") == digests(tmp_path / "b" / "images")
    assert (tmp_path / "a" / "captions.json").read_bytes() == (tmp_path / "b" / "captions.json").read_bytes()
    assert digests(tmp_path / "a" / "images") != digests(tmp_path / "c" / "images")


def test_a_longer_set_begins_with_the_images_of_a_shorter_one(tmp_path):
    draw_coco(tmp_path / "a", images=3, size=SIZE)
    draw_coco(tmp_path / "b", images=6, size=SIZE)
    assert digests(tmp_path / "a" / "images").items() <= digests(tmp_path / "b" / "images").items()


def test_the_program_draws_from_any_directory(tmp_path):
    done = run_tool("draw_coco.py", "--out", "here", "--images", 2, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in (tmp_path / "here" / "images").iterdir()) == [
        "000000000001.jpg",
        "000000000002.jpg",
    ]


def test_no_images_are_a_usage_error(tmp_path):
    done = run_tool("draw_coco.py", "--out", tmp_path, "--images", 0)
    assert done.returncode == 2
    assert "--images must be 1 or more" in done.stderr


def test_images_are_noisy_so_that_they_do_not_compress_away(drawn):
    data = next((drawn / "images").iterdir()).read_bytes()
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert("L"), int)
    assert np.abs(np.diff(pixels, axis=1)).mean() > 2
