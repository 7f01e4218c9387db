"""tools/coco.py: captions files are read byte-true or refused with the place of the fault."""

import pytest

from coco import parse_captions, read_captions
from coco_cases import captions_bytes, image
from pack_errors import CaptionsError


def caption(number, image_id, text="a cat"):
    return {"id": number, "image_id": image_id, "caption": text}


def refusal(data):
    with pytest.raises(CaptionsError) as caught:
        parse_captions(data, name="captions.json")
    assert str(caught.value).startswith("captions file captions.json: ")
    return caught.value.problem


def test_records_come_in_the_order_of_image_ids():
    data = captions_bytes([image(7), image(3)], [caption(1, 7), caption(2, 3)])
    assert [record.image_id for record in parse_captions(data, name="x").records] == [3, 7]


def test_captions_come_in_the_order_of_annotation_ids():
    data = captions_bytes([image(3)], [caption(9, 3, "last"), caption(2, 3, "first"), caption(5, 3, "middle")])
    (record,) = parse_captions(data, name="x").records
    assert (record.captions, record.caption_ids) == (("first", "middle", "last"), (2, 5, 9))


def test_a_record_has_every_field_of_its_image():
    urls = {"coco_url": "http://c/1.jpg", "flickr_url": "http://f/1.jpg"}
    data = captions_bytes([image(1, license=4, width=640, height=427, date_captured="?", **urls)], [caption(1, 1)])
    (record,) = parse_captions(data, name="x").records
    assert (record.key, record.file_name) == ("000000000001", "000000000001.jpg")
    assert (record.width, record.height, record.license) == (640, 427, 4)
    assert (record.coco_url, record.flickr_url) == ("http://c/1.jpg", "http://f/1.jpg")


@pytest.mark.parametrize("absent", [{}, {"license": None, "coco_url": None, "flickr_url": None}])
def test_license_and_urls_may_be_absent_or_null(absent):
    (record,) = parse_captions(captions_bytes([image(1, **absent)], [caption(1, 1)]), name="x").records
    assert (record.license, record.coco_url, record.flickr_url) == (0, "", "")


@pytest.mark.parametrize("text", ["a cat  ", "  a cat\n", "", "日本語 🐈 é e\u0301", "tab\t\u0000nul", "\u2028 \ufeff"])
def test_captions_are_kept_byte_for_byte(text):
    (record,) = parse_captions(captions_bytes([image(1)], [caption(1, 1, text)]), name="x").records
    assert record.captions == (text,)


def test_an_escaped_backslash_before_u_is_plain_text():
    data = captions_bytes([image(1)], [caption(1, 1, "X")]).replace(b'"X"', rb'"\\ud800"')
    assert parse_captions(data, name="x").records[0].captions == (r"\ud800",)


@pytest.mark.parametrize(
    ("escapes", "half"),
    [
        (rb"\ud83d cat", r"\ud83d"),
        (rb"\ude00 cat", r"\ude00"),
        (rb"\ud83d\ude00\ude01", r"\ude01"),
        (rb"\\\ud83d", r"\ud83d"),
    ],
)
def test_half_a_surrogate_pair_is_refused_with_its_byte(escapes, half):
    data = captions_bytes([image(1)], [caption(1, 1, "X")]).replace(b"X", escapes)
    at = data.rindex(half.encode())
    assert f"{half} at byte {at} is half a surrogate pair" in refusal(data)


def test_images_without_captions_are_handed_back():
    found = parse_captions(captions_bytes([image(1), image(2)], [caption(1, 2)]), name="x")
    assert [record.image_id for record in found.records] == [2]
    assert [(left.image_id, left.kind) for left in found.uncaptioned] == [(1, "uncaptioned")]


def test_captions_of_unknown_images_are_handed_back_once_per_image():
    found = parse_captions(captions_bytes([image(1)], [caption(1, 1), caption(2, 8), caption(3, 8)]), name="x")
    (left,) = found.unknown
    assert (left.image_id, left.kind) == (8, "unknown_image")
    assert "2 captions (annotations 2, 3)" in left.reason


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"<html>404</html>", "byte 0"),
        (b'{"images": [], "annotations": []} x', "trailing characters (byte "),
        (b'{"images": [', "byte 12"),
        (b"", "byte 0"),
        (b'{"images": [], "annotations": [], "x": \xff}', "not UTF-8 at byte 39"),
    ],
)
def test_what_is_not_json_is_refused_with_the_byte(data, words):
    assert words in refusal(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"[]", "Expected `object`, got `array`"),
        (b"{}", "missing required field `images`"),
        (b'{"images": []}', "missing required field `annotations`"),
        (captions_bytes([image(1), {"id": 2}], []), "field `file_name` - at `$.images[1]`"),
        (captions_bytes([image(1)], [{"id": 1, "image_id": 1}]), "field `caption` - at `$.annotations[0]`"),
        (
            captions_bytes([image(1)], [caption(1, 1, None)]),
            "Expected `str`, got `null` - at `$.annotations[0].caption`",
        ),
        (captions_bytes([image(1, width="640")], []), "at `$.images[0].width`"),
        (captions_bytes([image(1, width=0)], []), "at `$.images[0].width`"),
    ],
)
def test_absent_and_wrong_fields_are_refused_with_their_place(data, words):
    assert words in refusal(data)


@pytest.mark.parametrize("number", [-1, 10**12, 2**70, 1.5, "1", True, None])
def test_an_image_id_that_gives_no_key_is_refused_with_its_place(number):
    data = captions_bytes([{**image(1), "id": number}], [])
    assert "at `$.images[0].id`" in refusal(data)


def test_the_largest_image_id_has_a_key_of_twelve_digits():
    (record,) = parse_captions(captions_bytes([image(10**12 - 1)], [caption(1, 10**12 - 1)]), name="x").records
    assert record.key == "999999999999"


def test_duplicate_image_ids_are_counted_and_the_first_ten_listed():
    twice = [image(number) for number in range(1, 13)]
    problem = refusal(captions_bytes(twice + twice, []))
    assert problem == "12 ids occur more than once in `images`: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ...; ids must be unique"


def test_duplicate_annotation_ids_are_refused():
    data = captions_bytes([image(1)], [caption(5, 1), caption(5, 1)])
    assert refusal(data) == "1 ids occur more than once in `annotations`: 5; ids must be unique"


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(CaptionsError, match="No such file") as caught:
        read_captions(tmp_path / "captions.json")
    assert caught.value.path == str(tmp_path / "captions.json")


@pytest.mark.shared
def test_the_real_captions_have_five_to_seven_captions_an_image(shared_data):
    found = read_captions(shared_data / "coco/annotations/captions_val2017.json")
    assert (len(found.records), found.uncaptioned, found.unknown) == (5000, (), ())
    assert {len(record.captions) for record in found.records} == {5, 6, 7}
    assert any(text != text.rstrip() for record in found.records for text in record.captions)
