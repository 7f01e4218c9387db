"""Brace patterns of shards."""

import pytest

from shards.braces import MOST, urls_of
from shards.errors import UrlError


@pytest.mark.parametrize(
    ("pattern", "urls"),
    [
        ("a.tar", ["a.tar"]),
        ("a-{000..002}.tar", ["a-000.tar", "a-001.tar", "a-002.tar"]),
        ("{b,a}-{0..1}.tar", ["b-0.tar", "b-1.tar", "a-0.tar", "a-1.tar"]),
        ("a-{4..0..2}.tar", ["a-4.tar", "a-2.tar", "a-0.tar"]),
    ],
)
def test_a_pattern_names_its_urls_in_its_order(pattern, urls):
    assert urls_of(pattern) == urls


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("a-{0..1.tar", "without its other half"),
        ("a-{x}.tar", "neither a range nor alternatives"),
        ("a-{0,0}.tar", "names 'a-0.tar' more than once"),
        (f"a-{{0..{MOST}}}.tar", "names more than 1,000,000 shards"),
        ("a-{0..99999999999}.tar", "names more than 1,000,000 shards"),
        ("a-{0..99999999999..7}.tar", "names more than 1,000,000 shards"),
        (f"a-{{0..{'9' * 5000}}}.tar", "names more than 1,000,000 shards"),
        ("a-{0..999999}-{0..1}.tar", "names more than 1,000,000 shards"),
    ],
)
def test_a_pattern_that_cannot_be_meant_is_refused_before_memory_is_asked_for(pattern, problem):
    with pytest.raises(UrlError, match=problem):
        urls_of(pattern)
