"""tools/pack_report.py: the numbers of a packing for programs and for people."""

import json

from pack_report import Report, count_kinds, to_json, to_table
from rejections import Rejection


def report(**fields):
    counts = {"missing": 0, "bad": 0, "uncaptioned": 0, "unknown_image": 0}
    sizes = {"images": 1200, "captions": 6010, "shards": 2, "bytes": 3 * 2**20, "image_bytes": 2**21}
    run = {"seconds": 2.5, "images_per_s": 480.0, "workers": 2, "check": "full"}
    return Report(out="packed", name="coco", digest="ab", **{**counts, **sizes, **run, **fields})


def test_the_json_is_one_line_with_every_field():
    text = to_json(report())
    assert text.endswith("}\n")
    assert text.count("\n") == 1
    assert set(json.loads(text)) == set(Report.__struct_fields__)


def test_the_table_says_how_many_were_left_out_and_why():
    table = to_table(report(missing=4800, bad=2))
    assert "left out  4,802 (4800 missing, 2 bad, 0 without captions, 0 unknown to the captions file)\n" in table
    assert "left out  0\n" in to_table(report())


def test_the_table_says_whether_images_were_decoded():
    assert "1,200 (each decoded once, by 2 processes)" in to_table(report())
    assert "NOT decoded" in to_table(report(check="none", workers=0))


def test_kinds_are_counted_with_those_that_do_not_occur():
    found = count_kinds([Rejection(1, "x", "bad", ""), Rejection(2, "y", "bad", ""), Rejection(3, "z", "missing", "")])
    assert found == {"missing": 1, "bad": 2, "uncaptioned": 0, "unknown_image": 0}
