"""Laws of merging byte ranges into reads and cutting the answers back."""

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from datasets_made import law
from shards.ranges import Merged, Piece, cut, merge

DATA = random.Random(5).randbytes(2000)
spans = st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 400)).map(lambda pair: (pair[0], sum(pair))))
limits = st.integers(0, 300), st.integers(1, 800)


def covered(wanted: list[tuple[int, int]], gap_bytes: int, max_bytes: int) -> dict[int, bytes]:
    answers: dict[int, bytes] = {}
    for read in merge(wanted, gap_bytes=gap_bytes, max_bytes=max_bytes):
        pieces = cut(read, memoryview(DATA)[read.start : read.end])
        assert not answers.keys() & {place for place, _ in pieces}
        answers |= {place: bytes(view) for place, view in pieces}
    return answers


@law
@given(spans, *limits)
def test_every_span_comes_back_once_with_its_bytes(wanted, gap_bytes, max_bytes):
    expected = {place: DATA[start:end] for place, (start, end) in enumerate(wanted)}
    assert covered(wanted, gap_bytes, max_bytes) == expected


@law
@given(spans, *limits)
def test_reads_ascend(wanted, gap_bytes, max_bytes):
    reads = merge(wanted, gap_bytes=gap_bytes, max_bytes=max_bytes)
    assert [read.start for read in reads] == sorted(read.start for read in reads)


@law
@given(spans, *limits)
def test_a_read_of_several_spans_stays_within_the_limit(wanted, gap_bytes, max_bytes):
    for read in merge(wanted, gap_bytes=gap_bytes, max_bytes=max_bytes):
        assert read.end - read.start <= max_bytes or len({(p.start, p.end) for p in read.pieces}) == 1


@law
@given(spans, *limits)
def test_a_read_begins_and_ends_with_a_wanted_byte(wanted, gap_bytes, max_bytes):
    for read in merge(wanted, gap_bytes=gap_bytes, max_bytes=max_bytes):
        assert read.start == min(piece.start for piece in read.pieces)
        assert read.end == max(piece.end for piece in read.pieces)


@law
@given(spans, *limits)
def test_a_read_bridges_no_wider_gap_than_allowed(wanted, gap_bytes, max_bytes):
    for read in merge(wanted, gap_bytes=gap_bytes, max_bytes=max_bytes):
        reached = read.start
        for piece in read.pieces:
            assert piece.start - reached <= gap_bytes
            reached = max(reached, piece.end)


@law
@given(spans, *limits)
def test_neighbours_that_could_share_a_read_do(wanted, gap_bytes, max_bytes):
    for one, other in pairwise(merge(wanted, gap_bytes=gap_bytes, max_bytes=max_bytes)):
        first = other.pieces[0]
        assert first.start - one.end > gap_bytes or max(one.end, first.end) - one.start > max_bytes


def test_near_spans_share_a_read_and_far_ones_do_not():
    reads = merge([(100, 110), (0, 10), (12, 20)], gap_bytes=2, max_bytes=1000)
    assert [(read.start, read.end) for read in reads] == [(0, 20), (100, 110)]


def test_a_span_larger_than_the_limit_is_a_read_of_its_own():
    reads = merge([(0, 5000), (5000, 5001)], gap_bytes=0, max_bytes=100)
    assert [(read.start, read.end) for read in reads] == [(0, 5000), (5000, 5001)]


def test_no_spans_need_no_read():
    assert merge([], gap_bytes=10, max_bytes=10) == []


def test_cutting_copies_nothing():
    data = bytearray(b"abcdef")
    read = Merged(10, 16, (Piece(11, 13, 0),))
    ((_, view),) = cut(read, memoryview(data))
    data[1:3] = b"xy"
    assert view == b"xy"


@given(st.lists(st.integers(0, 30), max_size=12), st.integers(0, 100))
def test_with_rows_a_read_goes_over_no_other_row(rows, gap_bytes):
    spans = [(10 * row, 10 * row + 6) for row in rows]
    for read in merge(spans, gap_bytes=gap_bytes, max_bytes=10**6, rows=rows):
        mine = sorted({rows[piece.place] for piece in read.pieces})
        assert mine == list(range(mine[0], mine[-1] + 1))
