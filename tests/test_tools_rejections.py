"""tools/rejections.py: the lines of rejected.jsonl and their short form for people."""

import json

from rejections import Rejection, first_ten, to_jsonl


def test_lines_are_json_in_the_order_of_image_ids():
    lines = (
        to_jsonl([Rejection(9, "9.jpg", "bad", "é \n"), Rejection(2, "", "unknown_image", "x")]).decode().split("\n")
    )
    assert json.loads(lines[0]) == {"image_id": 2, "file_name": "", "kind": "unknown_image", "reason": "x"}
    assert json.loads(lines[1]) == {"image_id": 9, "file_name": "9.jpg", "kind": "bad", "reason": "é \n"}
    assert lines[2:] == [""]


def test_nothing_left_out_is_an_empty_file():
    assert to_jsonl([]) == b""


def test_ten_are_shown_without_a_word_of_more():
    shown = first_ten([Rejection(number, "x", "bad", "y") for number in range(10)])
    assert shown.count("\n") == 9
    assert "more" not in shown


def test_a_file_name_cannot_break_the_lines_for_people():
    assert first_ten([Rejection(1, "a\nb\x1b[31m", "bad", "y")]) == "  a\\nb\\x1b[31m (image id 1): y"
