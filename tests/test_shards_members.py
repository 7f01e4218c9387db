"""Which members readers skip or misread."""

import pytest

from shards.headers import Header
from shards.members import Member, misread


@pytest.mark.parametrize(
    ("kind", "regular"), [("0", True), ("7", True), ("S", True), ("1", False), ("5", False), ("V", False)]
)
def test_what_webdataset_takes_for_a_file(kind, regular):
    assert Member(b"a", 0, 0, 512, 0, kind, reached=True).regular is regular


@pytest.mark.parametrize(
    ("header", "codes"),
    [
        (Header(b"a", 0, b"0"), []),
        (Header(b"a", 0, b"7"), []),
        (Header(b"a", 0, b"2"), ["link"]),
        (Header(b"a", 0, b"0", hidden=True), ["name-nul"]),
        (Header(b"a", 0, b"0", prefixed=True), ["ambiguous-name"]),
        (Header(b"b", 0, b"0", hidden=True, prefixed=True), []),  # another name than the header's counts
    ],
)
def test_what_is_told_of_a_member(header, codes):
    assert [code for code, _ in misread(header, b"a", sparse=False)] == codes


def test_sparse_goes_before_the_type():
    assert [code for code, _ in misread(Header(b"a", 0, b"0"), b"a", sparse=True)] == ["sparse"]
