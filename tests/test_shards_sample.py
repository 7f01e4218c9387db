"""The rules for names, and members grouped into samples."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasets_made import law
from shards.errors import NameRuleError
from shards.sample import Sample, check_key, check_suffix, group, split_name

keys = st.from_regex(r"[A-Za-z0-9_\-]{1,90}", fullmatch=True)
suffixes = st.from_regex(r"[a-z0-9]{1,9}", fullmatch=True)


@law
@given(keys)
def test_an_allowed_key_is_given_back(key):
    assert check_key(key) == key


@pytest.mark.parametrize("key", ["", "a.b", "a/b", "a b", "\N{SNOWMAN}", "a\n", "a\0", "..", "\u0663"])
def test_a_key_with_other_characters_is_refused(key):
    with pytest.raises(NameRuleError, match="a key is made of") as caught:
        check_key(key)
    assert caught.value.name == key


def test_a_key_of_91_bytes_is_refused():
    with pytest.raises(NameRuleError, match="at most 90 bytes"):
        check_key("k" * 91)


@law
@given(suffixes)
def test_an_allowed_suffix_is_given_back(suffix):
    assert check_suffix(suffix) == suffix


@pytest.mark.parametrize("suffix", ["", "JPG", "seg.png", ".jpg", "j/g", "j g", "\N{SNOWMAN}", "jpg\n", "abcdefghij"])
def test_another_suffix_is_refused(suffix):
    with pytest.raises(NameRuleError, match="a suffix is made of"):
        check_suffix(suffix)


@law
@given(keys, suffixes)
def test_a_name_of_allowed_parts_fits_ustar_and_splits_into_them(key, suffix):
    name = f"{key}.{suffix}"
    assert len(name.encode()) <= 100
    assert split_name(name) == (key, suffix)


@pytest.mark.parametrize(
    ("name", "key", "suffix"),
    [
        ("000001.jpg", "000001", "jpg"),
        ("a.b/000001.seg.png", "a.b/000001", "seg.png"),
        ("./000001.jpg", "./000001", "jpg"),
        ("README", "README", ""),
        ("a/.hidden", "a/", "hidden"),
    ],
)
def test_a_name_splits_at_the_first_dot_of_its_last_component(name, key, suffix):
    assert split_name(name) == (key, suffix)


@law
@given(st.from_regex(r"([a-z.]{1,5}/){0,2}[a-z0-9]{1,5}(\.[a-z]{1,3}){1,3}", fullmatch=True))
def test_a_name_splits_as_webdataset_splits_it(name):
    from webdataset.tariterators import base_plus_ext

    assert split_name(name) == base_plus_ext(name)


def test_adjacent_members_of_a_key_are_one_sample():
    found = list(group([("a.jpg", 1), ("a.txt", 2), ("b.jpg", 3)]))
    assert found == [("a", {"jpg": 1, "txt": 2}), ("b", {"jpg": 3})]


def test_members_keep_their_order_within_a_sample():
    assert [list(parts) for _, parts in group([("a.txt", 1), ("a.jpg", 2)])] == [["txt", "jpg"]]


def test_no_members_are_no_samples():
    assert list(group([])) == []


def test_a_suffix_twice_in_a_sample_is_refused():
    with pytest.raises(NameRuleError, match="already has a member"):
        list(group([("a.jpg", 1), ("a.jpg", 2)]))


@law
@given(st.lists(st.tuples(keys, st.lists(suffixes, min_size=1, unique=True)), unique_by=lambda pair: pair[0]))
def test_grouping_gives_back_what_was_laid_out(samples):
    members = [(f"{key}.{suffix}", number) for key, found in samples for number, suffix in enumerate(found)]
    assert [(key, list(parts)) for key, parts in group(members)] == samples


def test_a_sample_starts_with_parts_of_its_own():
    assert Sample("a").parts is not Sample("b").parts
