"""What is told of a name."""

import pytest

from shards.member_names import check_name
from shards.members import Member


def codes(raw: bytes, kind: str = "0") -> list[str]:
    return [code for code, _ in check_name(Member(raw, 0, 0, 512, 0, kind, reached=True))]


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"000000000042.jpg", []),
        (b"A-b_9.txt", []),
        (b"", ["no-name"]),
        (b"//", ["no-name"]),
        (b"/etc/passwd.txt", ["unsafe-name", "name-rule"]),
        (b"../../a.jpg", ["unsafe-name", "name-rule"]),
        (b"a/../b.jpg", ["unsafe-name", "name-rule"]),
        (b"a..b.jpg", ["name-rule"]),
        (b"a\0b.jpg", ["name-nul", "name-rule"]),
        (b"caf\xe9.jpg", ["name-not-utf8", "name-rule"]),
        (b"caf\xc3\xa9.jpg", ["name-rule"]),
        (b"README", ["no-suffix"]),
        (b"a.b/README", ["no-suffix"]),
        (b".hidden", ["no-suffix"]),
        (b"__meta__", ["meta-member"]),
        (b"__x__/a.jpg", ["meta-member"]),
        (b"v1.0/a.jpg", ["dot-in-folder", "name-rule"]),
        (b"./a.jpg", ["dot-slash", "name-rule"]),
        (b"a.JPG", ["upper-suffix"]),
        (b"a.seg.png", ["name-rule"]),
        (b"folder/a.jpg", ["name-rule"]),
        (b"k" * 91 + b".jpg", ["name-rule"]),
        (b"a.longsuffix", ["name-rule"]),
    ],
)
def test_a_name_has_its_codes(raw, told):
    assert codes(raw) == told


@pytest.mark.parametrize(("raw", "told"), [(b"folder/", []), (b"../folder/", ["unsafe-name"])])
def test_of_a_folder_only_where_it_leads_counts(raw, told):
    assert codes(raw, "5") == told


def test_the_words_say_what_to_do():
    for raw in (b"", b"/a.jpg", b"a\0b.jpg", b"\xe9.jpg", b"README", b"__meta__", b"v1.0/a.jpg", b"./a.jpg", b"a.JPG"):
        for _, words in check_name(Member(raw, 0, 0, 512, 0, "0", reached=True)):
            assert any(
                advice in words for advice in ("rename", "call it", "write it", "tar without", "pack it", "under a")
            )
