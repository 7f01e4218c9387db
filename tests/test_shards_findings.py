"""The table of codes, and how findings are told and counted."""

import re
from pathlib import Path

import pytest

from shards import findings
from shards.findings import WARNINGS, Findings, find, shown

ROOT = Path(__file__).resolve().parents[1]
TABLE = dict(re.findall(r"^\| `([\w-]+)` \| (\w+) \|", findings.__doc__, flags=re.MULTILINE))
PLACES = ("blocks", "findings", "lint", "lint_command", "lint_packed", "member_names", "members", "scan", "targets")


def test_the_table_has_the_severities_of_the_code():
    assert {code for code, severity in TABLE.items() if severity == "warning"} == WARNINGS
    assert set(TABLE.values()) == {"error", "warning"}


def test_the_table_has_the_codes_that_are_used():
    text = "".join((ROOT / "shards" / f"{name}.py").read_text() for name in PLACES).replace(findings.__doc__, "")
    told = set(re.findall(r'"([a-z]+(?:-[a-z0-9]+)+)"', text)) | {"compressed", "link", "directory", "device", "sparse"}
    assert set(TABLE) - told == {"unreadable"}
    assert '"unreadable"' in text
    assert told - {"latin-1"} <= set(TABLE)


def test_a_finding_is_one_line():
    found = find("cut-data", "d/a.tar", "it is cut", byte=512, name="a\nb.jpg")
    assert found.line() == "error cut-data d/a.tar byte 512 a\\nb.jpg: it is cut"
    assert find("surplus-file", "d/b.tar", "remove it").line() == "warning surplus-file d/b.tar: remove it"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("caf\xe9 \N{SNOWMAN}", "caf\xe9 \N{SNOWMAN}"),
        (b"caf\xc3\xa9", "caf\xe9"),
        (b"caf\xe9", "caf\\xe9"),
        ("\0\x1b[31m", "\\x00\\x1b[31m"),
        ("\ud800", "\\ud800"),
        ("a" * 300, "a" * 200 + "..."),
        (b"a" * 3000, "a" * 200 + "..."),
    ],
)
def test_a_name_is_shown_in_printable_characters(name, told):
    assert shown(name) == told


def test_of_a_code_a_few_are_listed_and_all_are_counted():
    found = Findings()
    for byte in range(30):
        found.add(find("cut-data", "a", "x", byte=byte))
        found.add(find("dot-slash", "a", "y", byte=byte))
    found.count("half-sample", 0)
    listed = found.listed()
    assert [finding.byte for finding in listed if finding.code == "cut-data"] == list(range(10))
    assert [(finding.byte, finding.more) for finding in listed if finding.code == "dot-slash"] == [(0, 29)]
    assert sum(1 + finding.more for finding in listed) == 60
    assert listed[-1].line() == "error cut-data a byte 9: x (and 20 more of this in the file)"


def test_findings_come_in_the_order_of_their_bytes():
    found = Findings()
    for byte in (7, 3, None, 5):
        found.add(find("cut-data", "a", "x", byte=byte))
    assert [finding.byte for finding in found.listed()] == [None, 3, 5, 7]
