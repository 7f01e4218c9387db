"""Ranged reads a little ahead."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasets_made import law
from shards.blocks import AHEAD, Blocks
from tars_made import Hollow, OneFile

DATA = random.Random(0).randbytes(3 * AHEAD + 17)


@law
@given(st.lists(st.tuples(st.integers(0, len(DATA) + 10), st.integers(0, 5000)), max_size=20))
def test_what_is_taken_is_what_is_there(wanted):
    blocks = Blocks(OneFile(DATA), "a")
    for at, length in wanted:
        assert blocks.take(at, length) == DATA[at : at + length]


def test_what_lies_close_together_comes_in_reads_of_a_mebibyte():
    store = OneFile(DATA)
    blocks = Blocks(store, "a")
    for at in range(0, len(DATA), 512):
        blocks.take(at, 512)
    assert store.reads == [(0, AHEAD), (AHEAD, 2 * AHEAD), (2 * AHEAD, 3 * AHEAD), (3 * AHEAD, len(DATA))]


def test_what_lies_far_apart_costs_little_more_than_a_header():
    store = Hollow(b"", 2**40)
    blocks = Blocks(store, "a")
    for at in range(2**30, 2**40, 2**33):
        blocks.take(at, 512)
    assert max(end - start for start, end in store.reads) == 8192


@pytest.mark.parametrize("at", [17, 100])
def test_nothing_lies_behind_the_end(at):
    store = OneFile(b"x" * 17)
    assert Blocks(store, "a").take(at, 10) == b""
    assert store.reads == []
