"""stream/slab.py: spans never overlap, never exceed the budget, and nobody reads what another span has written."""

import gc
import os
import signal
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from descriptors import new_descriptors, open_descriptors
from stream.errors import SlabError
from stream.slab import Slab
from stream.slab_view import SlabView
from stream.stamps import HEAD

KIB, MIB = 1 << 10, 1 << 20


class TwoSides:
    """A slab and its view in one process; descriptors are handed over as a link does it."""

    def __init__(self, budget):
        self.slab, self.view = Slab(budget), SlabView()

    def send(self, span):
        if span.new_fd is not None:
            self.view.add(span.file, os.dup(span.new_fd))
        self.slab.sent(span.number)
        for file in self.slab.dropped():
            self.view.drop(file)

    def seen(self, span):
        return self.view.open(span.file, span.offset, span.size, span.number)

    def close(self):
        self.slab.close()
        self.view.close()


@pytest.fixture
def sides():
    sides = TwoSides(4 * MIB)
    yield sides
    sides.close()


def pattern(span):
    return np.full(span.size, span.number % 251, np.uint8)


class SlabMachine(RuleBasedStateMachine):
    """Any order of allocating, sending, reading and releasing, with sizes from nothing to more than the budget."""

    BUDGET = 3 * MIB

    def __init__(self):
        super().__init__()
        self.sides = TwoSides(self.BUDGET)
        self.held, self.sent, self.released = [], [], []

    @rule(size=st.one_of(st.integers(0, 4 * KIB), st.integers(0, MIB), st.integers(0, 4 * MIB)), send=st.booleans())
    def allocate(self, size, send):
        span = self.sides.slab.allocate(size)
        if span is None:
            assert self.held, "with nothing held every size can be allocated"
            return
        assert span.size == len(span.memory) == size
        assert span.memory.ctypes.data % HEAD == 0
        np.copyto(span.memory, pattern(span))
        self.held.append(span)
        if send:
            self.sides.send(span)
            self.sent.append(span)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        span = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        if span in self.sent:
            self.sent.remove(span)
            self.released.append(span)
        self.sides.slab.release(span.number)

    @invariant()
    def every_span_that_is_held_keeps_its_bytes(self):
        for span in self.held:
            assert np.array_equal(span.memory, pattern(span))
        for span in self.sent:
            assert np.array_equal(self.sides.seen(span), pattern(span))

    @invariant()
    def no_span_that_was_released_can_be_opened(self):
        for span in self.released:
            with pytest.raises(SlabError):
                self.sides.seen(span)

    @invariant()
    def spans_do_not_overlap(self):
        places = sorted((span.file, span.offset - HEAD, span.offset + span.size) for span in self.held)
        for (file, _, end), (next_file, start, _) in pairwise(places):
            assert file != next_file or end <= start

    @invariant()
    def all_files_stay_within_the_budget_unless_one_span_is_alone(self):
        slab = self.sides.slab
        assert slab.file_bytes <= self.BUDGET or len(self.held) == 1
        assert slab.held_bytes <= slab.file_bytes
        assert slab.held_bytes == sum(HEAD + span.size + -span.size % HEAD for span in self.held)

    def teardown(self):
        self.sides.close()


SlabMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyOrderOfAllocatingAndReleasing = SlabMachine.TestCase


def test_nothing_is_opened_before_the_first_span():
    before = open_descriptors()
    slab = Slab(MIB)
    assert (open_descriptors(), slab.files(), slab.file_bytes, slab.held_bytes) == (before, [], 0, 0)


@pytest.mark.parametrize(
    ("first", "budget", "ring"),
    [(100, 8 * MIB, MIB), (MIB, 32 * MIB, 8 * (MIB + HEAD)), (MIB, 5 * MIB + 7, 5 * MIB), (100, 1000, 960)],
    ids=["at least 1 MiB", "eight spans", "the budget", "a tiny budget"],
)
def test_the_ring_is_made_for_eight_of_the_first_span_within_the_budget(first, budget, ring):
    slab = Slab(budget)
    slab.allocate(first)
    assert slab.file_bytes == ring
    slab.close()


def test_a_span_without_bytes_is_a_span(sides):
    spans = [sides.slab.allocate(0) for _ in range(3)]
    assert len({span.offset for span in spans}) == 3
    for span in spans:
        sides.send(span)
        assert sides.seen(span).shape == (0,)


def test_a_large_span_travels_in_a_file_of_its_own_which_goes_with_it(sides):
    small, large = sides.slab.allocate(10), sides.slab.allocate(300 * KIB)
    assert large.file != small.file
    sides.send(large)
    assert sides.slab.file_bytes == MIB + 300 * KIB + HEAD
    sides.slab.release(large.number)
    assert sides.slab.file_bytes == MIB
    assert sides.slab.files() == [small.file]
    assert sides.slab.dropped() == [large.file]
    assert sides.slab.dropped() == []


def test_a_file_that_the_rank_never_got_is_not_told_to_be_gone(sides):
    sides.slab.allocate(10)
    large = sides.slab.allocate(300 * KIB)
    sides.slab.release(large.number)
    assert sides.slab.dropped() == []


def test_a_span_offers_the_descriptor_until_one_of_its_file_was_sent(sides):
    first, second = sides.slab.allocate(10), sides.slab.allocate(10)
    assert first.new_fd == second.new_fd is not None
    sides.slab.release(first.number)  # never sent
    sides.send(second)
    assert second.new_fd is None
    assert sides.slab.allocate(10).new_fd is None


def test_when_large_spans_keep_coming_and_the_ring_is_empty_a_larger_ring_takes_its_place():
    slab = Slab(64 * MIB)
    slab.release(slab.allocate(100).number)
    assert slab.file_bytes == MIB
    rings = []
    for _ in range(4):
        span = slab.allocate(MIB)
        rings.append(slab.file_bytes - (MIB + HEAD if span.offset == HEAD and len(slab.files()) > 1 else 0))
        slab.release(span.number)
    assert rings == [MIB, 8 * (MIB + HEAD), 8 * (MIB + HEAD), 8 * (MIB + HEAD)]
    assert slab.files() == [2]
    slab.close()


def test_one_large_span_among_small_ones_leaves_the_ring_as_it_is():
    slab = Slab(64 * MIB)
    for number in range(40):
        span = slab.allocate(8 * MIB if number % 20 == 0 and number else 100)
        slab.release(span.number)
    assert slab.files() == [0]
    assert slab.file_bytes == MIB
    slab.close()


def test_a_large_span_lies_in_the_ring_where_the_budget_has_no_room_for_a_file():
    slab = Slab(MIB)
    first = slab.allocate(MIB // 3)
    second = slab.allocate(MIB // 3)
    assert slab.files() == [first.file] == [second.file]
    slab.close()


def test_a_span_larger_than_the_budget_waits_until_it_is_alone():
    slab = Slab(MIB)
    small = slab.allocate(10)
    assert slab.allocate(2 * MIB) is None
    slab.release(small.number)
    large = slab.allocate(2 * MIB)
    assert slab.file_bytes == 2 * MIB + HEAD
    assert slab.allocate(10) is None
    slab.release(large.number)
    assert slab.file_bytes == 0
    assert slab.allocate(10) is not None
    slab.close()


def test_a_span_that_is_not_held_cannot_be_released_or_sent(sides):
    span = sides.slab.allocate(10)
    sides.slab.release(span.number)
    for call in (sides.slab.release, sides.slab.sent):
        with pytest.raises(KeyError):
            call(span.number)


def test_a_recycled_span_is_noticed_before_and_after_its_bytes_were_used(sides):
    old = sides.slab.allocate(100)
    sides.send(old)
    sides.view.check(old.file, old.offset, old.number)
    sides.slab.release(old.number)
    with pytest.raises(SlabError, match=f"byte {HEAD}: expected span {old.number}, found 0"):
        sides.view.check(old.file, old.offset, old.number)
    new = sides.slab.allocate(200)
    assert new.offset == old.offset
    with pytest.raises(SlabError, match=f"expected span {old.number}, found {new.number}"):
        sides.view.check(old.file, old.offset, old.number)


def test_the_bytes_of_a_batch_never_pass_for_a_head(sides):
    old = sides.slab.allocate(0)
    next_one = sides.slab.allocate(100)
    sides.send(old)
    sides.send(next_one)
    sides.slab.release(old.number)
    sides.slab.release(next_one.number)
    new = sides.slab.allocate(1000)
    new.memory[:] = 0
    new.memory[next_one.offset - HEAD - new.offset] = next_one.number  # as its head began
    with pytest.raises(SlabError):
        sides.seen(next_one)


@pytest.mark.parametrize(("offset", "size"), [(0, 1), (63, 1), (MIB + 1, 0), (64, MIB), (64, -1), (-64, 8)])
def test_a_place_beyond_the_file_is_refused(sides, offset, size):
    span = sides.slab.allocate(10)
    sides.send(span)
    with pytest.raises(SlabError):
        sides.view.open(span.file, offset, size, span.number)


def test_an_unknown_file_is_refused(sides):
    with pytest.raises(SlabError, match="memory file 7, byte 64: the rank has no such memory"):
        sides.view.open(7, 64, 1, 1)


def test_the_rank_cannot_write(sides):
    span = sides.slab.allocate(10)
    sides.send(span)
    with pytest.raises(ValueError, match="read-only"):
        sides.seen(span)[0] = 1


def test_arrays_of_a_dropped_file_stay_readable(sides):
    span = sides.slab.allocate(2 * MIB)
    span.memory[:] = 9
    sides.send(span)
    seen = sides.seen(span)
    sides.view.drop(span.file)
    sides.view.drop(span.file)
    sides.slab.close()
    assert (seen == 9).all()


def test_whoever_still_fills_a_span_of_a_closed_slab_harms_nobody(sides):
    span = sides.slab.allocate(2 * MIB)
    sides.slab.close()
    span.memory[:] = 1
    assert span.new_fd is None
    with pytest.raises(SlabError, match="it was closed"):
        sides.slab.allocate(1)


def test_a_file_that_is_known_is_not_mapped_twice(sides):
    span = sides.slab.allocate(10)
    fd = span.new_fd
    sides.view.add(span.file, os.dup(fd))
    before = open_descriptors()
    sides.view.add(span.file, os.dup(fd))
    assert new_descriptors(before) == {}


def test_a_file_that_is_refused_leaves_no_descriptor(sides):
    before = open_descriptors()
    fd = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    with pytest.raises(SlabError, match="not sealed"):
        sides.view.add(0, fd)
    assert new_descriptors(before) == {}


def test_after_closing_both_sides_nothing_is_left():
    gc.collect()  # what earlier tests left to the garbage collector
    before, mapped = open_descriptors(), Path("/proc/self/maps").read_text().count("memfd:stream")
    sides = TwoSides(8 * MIB)
    spans = [sides.slab.allocate(size) for size in (10, MIB, 10, 2 * MIB)]
    for span in spans:
        sides.send(span)
    assert len(open_descriptors()) > len(before)
    sides.slab.release(spans[0].number)
    sides.close()
    sides.close()
    del spans, span
    gc.collect()
    assert new_descriptors(before) == {}
    assert Path("/proc/self/maps").read_text().count("memfd:stream") == mapped


PEER = """
import socket, sys
import numpy as np
from stream.slab_view import SlabView

sock = socket.socket(fileno=int(sys.argv[1]))
view = SlabView()
while True:
    data, fds, _, _ = socket.recv_fds(sock, 64, 4)
    if not data:
        break
    file, offset, size, number = np.frombuffer(data, np.int64).tolist()
    for fd in fds:
        view.add(file, fd)
    memory = view.open(file, offset, size, number)
    total = int(memory.sum(dtype=np.int64))
    view.check(file, offset, number)
    sock.sendall(np.int64(total).tobytes())
"""


class Process:
    """Another process that maps what it is sent, and answers with the sum of the bytes."""

    def __init__(self):
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(60)
        arguments = [sys.executable, "-c", PEER, str(theirs.fileno())]
        self.process = subprocess.Popen(arguments, pass_fds=[theirs.fileno()])
        theirs.close()

    def sum_of(self, span):
        where = np.array([span.file, span.offset, span.size, span.number]).tobytes()
        if span.new_fd is None:
            self.sock.sendall(where)
        else:
            socket.send_fds(self.sock, [where], [span.new_fd])
        return int(np.frombuffer(self.sock.recv(8), np.int64)[0])

    def close(self):
        self.sock.close()
        return self.process.wait(60)


@pytest.mark.ranks
def test_another_process_sees_the_bytes_through_rings_and_files_of_their_own():
    process, slab = Process(), Slab(4 * MIB)
    rng = np.random.default_rng(0)
    for number in range(200):
        span = slab.allocate(int(rng.integers(0, 700_000)) if number % 9 == 0 else int(rng.integers(0, 50_000)))
        span.memory[:] = rng.integers(0, 256, span.size, np.uint8)
        assert process.sum_of(span) == int(span.memory.sum(dtype=np.int64))
        slab.sent(span.number)
        slab.release(span.number)
    slab.close()
    assert process.close() == 0


@pytest.mark.ranks
def test_a_process_that_is_killed_leaves_the_memory_of_the_others_as_it_is():
    process, slab = Process(), Slab(4 * MIB)
    span = slab.allocate(100_000)
    span.memory[:] = 3
    assert process.sum_of(span) == 300_000
    process.process.send_signal(signal.SIGKILL)
    assert process.close() == -signal.SIGKILL
    assert (span.memory == 3).all()
    slab.release(span.number)
    slab.close()
