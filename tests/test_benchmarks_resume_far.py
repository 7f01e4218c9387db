"""A resume far inside an epoch, measured in small; what is read again is found."""

import json

import resume_far
from resume_far import Reads


def test_both_ways_are_measured_in_both_modes(tmp_path, capsys):
    assert resume_far.main(["--samples", "900", "--rounds", "1", "--json", str(tmp_path / "found.json")]) == 0
    said = capsys.readouterr().out
    assert "Read again: 0 bytes, none wanted: reached." in said
    found = json.loads((tmp_path / "found.json").read_text())
    assert [line["mode"] for line in found["lines"]] == ["dispatch", "shard"]


def test_rows_that_are_read_again_are_counted(tmp_path):
    reader = resume_far.packed(tmp_path / "packed", 900)
    begun = resume_far.begin(reader.url, "dispatch", None)
    start = begun.loader.state_dict()
    begun.end()
    assert resume_far.read_again(reader, "dispatch", {**start, "position": 640}) == 0
    # 900 rows in steps of 64 leave 4 over, which are dropped, so never consumed nor read
    whole = resume_far.read_again(reader, "dispatch", start)
    assert whole == 0


def test_bytes_that_were_read_are_those_that_overlap():
    reads = Reads()
    reads.add("a.tar", [(0, 10), (20, 30)])
    reads.add("a.tar.index", [(0, 100)])
    assert reads.bytes_of("a.tar", 5, 25) == 10
    assert reads.bytes_of("a.tar", 10, 20) == 0
    assert reads.bytes_of("b.tar", 0, 100) == reads.bytes_of("a.tar.index", 0, 100) == 0
