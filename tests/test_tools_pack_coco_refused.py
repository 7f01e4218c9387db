"""tools/pack_coco.py run as a program: each bad input is refused with its reason, or left out where that is allowed."""

import json
import shutil

import pytest

from coco_cases import digests, draw, edit, image, pack, refused, rejected, succeeded


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """24 drawn images; not to be changed."""
    return draw(tmp_path_factory.mktemp("drawn"))


@pytest.fixture
def own(drawn, tmp_path):
    """24 drawn images that a test may change."""
    shutil.copytree(drawn[0].parent, tmp_path / "own")
    return tmp_path / "own" / "images", tmp_path / "own" / "captions.json"


BAD = {
    "zero bytes": (lambda data: b"", "empty (0 bytes)"),
    "truncated": (lambda data: data[: len(data) // 2], ""),
    "a page": (lambda data: b"<!DOCTYPE html><html><body>404</body></html>", "an HTML page"),
    "zeros": (lambda data: bytes(len(data)), "no image that is known here"),
    "another format": (lambda data: b"\x89PNG\r\n\x1a\n" + data, "a PNG image and its name ends in .jpg"),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_image_is_refused_with_the_reason(own, tmp_path, fault):
    spoil, words = BAD[fault]
    path = own[0] / "000000000005.jpg"
    path.write_bytes(spoil(path.read_bytes()))
    message = refused(pack(*own, tmp_path / "out"), tmp_path / "out")
    assert "1 of 24 images are bad" in message
    assert "000000000005.jpg (image id 5): " + "it is " * bool(words) + words in message
    assert "--on-bad skip" in message


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_image_is_left_out_and_listed_where_that_is_allowed(own, tmp_path, fault):
    spoil, words = BAD[fault]
    path = own[0] / "000000000005.jpg"
    path.write_bytes(spoil(path.read_bytes()))
    report = succeeded(pack(*own, tmp_path / "out", "--on-bad", "skip"))
    assert (report["images"], report["bad"]) == (23, 1)
    (line,) = rejected(tmp_path / "out")
    assert (line["image_id"], line["file_name"], line["kind"]) == (5, "000000000005.jpg", "bad")
    assert words in line["reason"]


def test_an_image_of_another_size_than_its_record_is_bad(own, tmp_path):
    edit(own[1], lambda content: content["images"][0].update(width=33))
    assert "pixels and the captions file says 33x" in refused(pack(*own, tmp_path / "out"), tmp_path / "out")


def test_too_many_pixels_are_bad(own, tmp_path):
    done = pack(*own, tmp_path / "out", "--max-pixels", 96 * 72 - 1)
    assert "24 of 24 images are bad" in refused(done, tmp_path / "out")


def test_all_bad_images_are_counted_before_the_packing_is_refused(own, tmp_path):
    for number in range(1, 13):
        (own[0] / f"{number:012d}.jpg").write_bytes(b"")
    message = refused(pack(*own, tmp_path / "out", "--shard-size", "1kB"), tmp_path / "out")
    assert "12 of 24 images are bad" in message
    assert message.count("empty (0 bytes)") == 10
    assert "... and 2 more" in message


def test_skipping_bad_images_does_not_allow_missing_ones(own, tmp_path):
    (own[0] / "000000000005.jpg").unlink()
    message = refused(pack(*own, tmp_path / "out", "--on-bad", "skip"), tmp_path / "out")
    assert "1 of 24 images are missing" in message


@pytest.mark.parametrize("name", ["../secret.jpg", "{folder}/../secret.jpg", "/etc/passwd", "a\nb", "~/x.jpg", ""])
def test_a_file_name_never_leads_out_of_the_folder(own, tmp_path, name):
    shutil.copy(own[0] / "000000000001.jpg", own[0].parent / "secret.jpg")
    edit(own[1], lambda content: content["images"][0].update(file_name=name.format(folder=own[0])))
    assert "1 of 24 images are missing" in refused(pack(*own, tmp_path / "out"), tmp_path / "out")


CAPTIONS = {
    "no JSON": (lambda content: "<html>", "it is not JSON"),
    "cut JSON": (lambda content: json.dumps(content)[:-5], "it is not JSON"),
    "no annotations": (
        lambda content: json.dumps({"images": content["images"]}),
        "missing required field `annotations`",
    ),
    "image id twice": (
        lambda content: json.dumps({**content, "images": content["images"] * 2}),
        "24 ids occur more than",
    ),
    "unknown image": (
        lambda content: json.dumps({**content, "images": content["images"][1:]}),
        "1 images have captions",
    ),
    "no caption": (lambda content: json.dumps({**content, "images": [*content["images"], image(99)]}), "no caption"),
}


@pytest.mark.parametrize("fault", CAPTIONS)
def test_a_faulty_captions_file_is_refused(own, tmp_path, fault):
    spoil, words = CAPTIONS[fault]
    own[1].write_text(spoil(json.loads(own[1].read_text())))
    assert words in refused(pack(*own, tmp_path / "out"), tmp_path / "out")


def test_lost_captions_are_listed_where_that_is_allowed(own, tmp_path):
    edit(own[1], lambda content: content["images"].append(image(99)))
    edit(own[1], lambda content: content["annotations"].append({"id": 9999, "image_id": 77, "caption": "lost"}))
    report = succeeded(pack(*own, tmp_path / "out", "--on-bad", "skip"))
    assert (report["images"], report["uncaptioned"], report["unknown_image"]) == (24, 1, 1)
    assert [(line["image_id"], line["kind"]) for line in rejected(tmp_path / "out")] == [
        (77, "unknown_image"),
        (99, "uncaptioned"),
    ]


def test_an_output_that_is_not_empty_is_refused_and_stays_as_it_is(drawn, tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    done = pack(*drawn, tmp_path)
    assert done.returncode == 1
    assert "is not empty (1 files: mine.txt)" in done.stderr
    assert "--overwrite" in done.stderr
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"mine.txt": "precious"}


def test_overwriting_replaces_the_former_dataset_and_nothing_else(drawn, tmp_path):
    out = tmp_path / "out"
    succeeded(pack(*drawn, out, "--shard-size", "20kB"))
    (out / "mine.txt").write_text("precious")
    succeeded(pack(*drawn, out, "--overwrite"))
    succeeded(pack(*drawn, tmp_path / "fresh"))
    assert (out / "mine.txt").read_text() == "precious"
    (out / "mine.txt").unlink()
    assert digests(out) == digests(tmp_path / "fresh")


def test_a_refused_overwriting_leaves_the_former_dataset(own, tmp_path):
    out = tmp_path / "out"
    succeeded(pack(*own, out))
    before = digests(out)
    (own[0] / "000000000024.jpg").write_bytes(b"")
    assert pack(*own, out, "--overwrite").returncode == 1
    assert digests(out) == before


@pytest.mark.parametrize(
    "more",
    [
        ("--shard-size", "12 apples"),
        ("--shard-size", "0"),
        ("--shard-size", "128M"),
        ("--workers", "0"),
        ("--workers", "-1"),
        ("--shuffle-seed", str(2**64)),
        ("--on-bad", "ignore"),
        ("--name", "a.b"),
        ("--max-pixels", "many"),
        ("--over",),
    ],
)
def test_wrong_usage_has_exit_status_2(drawn, tmp_path, more):
    done = pack(*drawn, tmp_path / "out", *more)
    assert "usage: pack_coco.py" in refused(done, tmp_path / "out", status=2)


@pytest.mark.parametrize("what", ["images", "captions"])
def test_an_input_that_does_not_exist_is_named(drawn, tmp_path, what):
    paths = {"images": drawn[0], "captions": drawn[1], what: tmp_path / "nothing"}
    message = refused(pack(paths["images"], paths["captions"], tmp_path / "out"), tmp_path / "out")
    assert str(tmp_path / "nothing") in message
    assert f"--{what}" in message
