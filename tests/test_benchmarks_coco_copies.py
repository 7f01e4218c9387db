import json

import pytest

import coco
from coco_cases import draw
from coco_copies import NothingToCopyError, copy_set, present


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("drawn"), images=3)


def test_every_image_comes_again_under_new_ids_with_its_captions(drawn, tmp_path):
    images, captions = drawn
    assert copy_set(images, captions, tmp_path / "set", copies=2) == 6
    before, after = (coco.read_captions(path).records for path in (captions, tmp_path / "set" / "captions.json"))
    assert len({record.image_id for record in after}) == 6
    assert sorted(record.captions for record in after) == sorted(2 * [record.captions for record in before])


def test_the_copies_are_files_of_their_own(drawn, tmp_path):
    copy_set(*drawn, tmp_path / "set", copies=2)
    files = list((tmp_path / "set" / "images").iterdir())
    assert len(files) == 6
    assert {path.stat().st_nlink for path in files} == {1}
    assert {path.read_bytes() for path in files} == {path.read_bytes() for path in drawn[0].iterdir()}


def test_images_that_are_not_there_are_left_out(drawn, tmp_path):
    images, captions = drawn
    content = json.loads(captions.read_text())
    content["images"].append({"id": 77, "file_name": "elsewhere.jpg"})
    (tmp_path / "captions.json").write_text(json.dumps(content))
    assert len(present(images, tmp_path / "captions.json")["images"]) == 3


def test_a_folder_without_any_of_the_images_is_refused(drawn, tmp_path):
    with pytest.raises(NothingToCopyError, match="give the folder"):
        present(tmp_path, drawn[1])
