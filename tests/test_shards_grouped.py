"""Members into samples, held against webdataset."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from datasets_made import law
from shards.grouped import grouped, is_image, key_and_suffix, text_of
from shards.members import Member

NAMES = st.text(st.sampled_from("ab._/\n\u00e9A"), max_size=14)


def members(names: list[str], kind: str = "0") -> list[Member]:
    return [Member(n.encode(), 1024 * i, 1024 * i, 1024 * i + 512, 3, kind, reached=True) for i, n in enumerate(names)]


def by_webdataset(names: list[str]) -> list[tuple[str, list[str]]] | None:
    """Key and suffixes of each sample; None where webdataset fails."""
    from webdataset.tariterators import group_by_keys

    files = [{"fname": name, "data": b"", "__url__": "a"} for name in names if not skipped(name)]
    try:
        return [(s["__key__"], [n for n in s if n not in ("__key__", "__url__")]) for s in group_by_keys(files)]
    except ValueError:
        return None


def skipped(name: str) -> bool:
    import re

    return bool(re.match(r"__[^/]*__($|/)", name))


@law
@given(NAMES)
@example("a/.hidden")
@example("a.b/.hidden")
@example("./a.jpg")
def test_a_name_is_split_as_webdataset_splits_it(name):
    from webdataset.tariterators import base_plus_ext

    key, suffix = base_plus_ext(name)
    assert key_and_suffix(name) == (None if key is None else (key, suffix.lower()))


@law
@given(st.lists(NAMES.filter(bool), max_size=8))
def test_samples_are_those_of_webdataset(names):
    found = list(grouped(members(names)))
    expected = by_webdataset(names)
    assert (expected is None) == any(sample.again for sample in found)
    if expected is not None:
        assert [(sample.key, list(sample.parts)) for sample in found] == expected


def test_a_very_long_name_is_split_at_once():
    assert key_and_suffix("/" * 500_000 + "a.jpg") == ("/" * 500_000 + "a", "jpg")
    assert key_and_suffix("/" * 500_000) is None


def test_what_is_no_file_or_is_metadata_is_no_part():
    assert list(grouped(members(["a.jpg"], kind="2") + members(["__meta__", "__x__/a.jpg", "README"]))) == []


def test_a_suffix_that_comes_twice_is_kept_apart():
    (sample,) = grouped(members(["a.jpg", "a.txt", "a.JPG"]))
    assert (list(sample.parts), [m.raw for m in sample.again], sample.byte) == (["jpg", "txt"], [b"a.JPG"], 0)


def test_bytes_that_are_no_utf8_become_surrogates():
    assert text_of(Member(b"\xe9.jpg", 0, 0, 0, 0, "0", reached=True)) == "\udce9.jpg"


@pytest.mark.parametrize(("suffix", "image"), [("jpg", True), ("seg.png", True), ("txt", False), ("jpg.txt", False)])
def test_images_have_the_suffixes_of_images(suffix, image):
    assert is_image(suffix) is image
