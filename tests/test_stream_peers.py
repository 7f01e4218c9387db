"""stream/peers.py: one rank as the reader knows it: what it holds, and what is sent to it."""

import socket

import numpy as np
import pytest

from offers_made import Numbered
from stream.heap import Heap
from stream.link import Link
from stream.local_link import local_pair
from stream.peers import Peer
from stream.protocol import BESIDE, LENT, Begin, Commit, Leave, Portion, decode
from stream.slab import Slab

OFFER = Numbered(0, 0, 100)


def portion(step, span, file):
    number, size = (-1, 0) if span is None else (span.number, span.size)
    return Portion(0, step, "rows", 24, file, 0, size, number, 4, False, 4, [])


@pytest.fixture
def pair(request):
    """A peer and the link at its rank's end."""
    if request.param == "local":
        here, there = local_pair()
    else:
        here, there = (Link(rank, end) for rank, end in zip((1, 0), socket.socketpair(), strict=True))
    peer = Peer(1, 0, here, Heap(1000) if request.param == "heap" else Slab(1 << 20))
    yield peer, there
    peer.link.close()
    there.close()
    peer.memory.close()


memory, local, heap = (pytest.mark.parametrize("pair", [kind], indirect=True) for kind in ("memory", "local", "heap"))


@memory
def test_what_is_said_goes_out_in_order_with_the_flush(pair):
    peer, there = pair
    peer.say(Commit(0, 1))
    peer.say(Commit(0, 2))
    assert there.drain() == []
    peer.flush()
    peer.flush()
    assert [decode(there.take().message) for _ in range(2)] == [Commit(0, 1), Commit(0, 2)]
    assert there.drain() == []


@memory
def test_nothing_is_sent_to_a_rank_that_is_down(pair):
    peer, there = pair
    span = peer.allocate(100)
    peer.down = "gone"
    peer.say(Commit(0, 1))
    peer.hand(portion(0, span, peer.place_of(span)), span, OFFER)
    peer.flush()
    assert there.drain() == []


@memory
def test_a_memory_file_is_announced_once_and_the_order_is_kept(pair):
    peer, there = pair
    for step in range(3):
        peer.say(Commit(0, step))
        span = peer.allocate(100)
        peer.hand(portion(step, span, peer.place_of(span)), span, OFFER)
    peer.flush()
    frames = []
    while len(frames) < 6:
        frames += there.drain()
    assert [decode(frame.message).step for frame in frames] == [0, 0, 1, 1, 2, 2]
    assert [len(frame.fds) for frame in frames] == [0, 1, 0, 0, 0, 0]
    assert peer.sent_bytes == 300
    for frame in frames:
        for fd in frame.fds:
            socket.close(fd)


@local
def test_within_the_process_memory_is_lent_and_batches_go_as_they_are(pair):
    peer, there = pair
    span = peer.allocate(100)
    assert peer.place_of(span) == LENT
    peer.hand(portion(0, span, LENT), span, OFFER)
    peer.hand(portion(1, None, LENT), None, OFFER)
    lent, given = there.take(), there.take()
    assert np.shares_memory(lent.payload, span.memory)
    assert (given.payload, given.thing) == (None, OFFER)


@heap
def test_over_the_network_the_bytes_go_beside_the_message(pair):
    peer, there = pair
    span = peer.allocate(100)
    span.memory[:] = 7
    assert peer.place_of(span) == BESIDE
    peer.hand(portion(0, span, BESIDE), span, OFFER)
    assert there.take().payload.tolist() == [7] * 100


@heap
def test_spans_come_back_once_and_those_nobody_knows_are_ignored(pair):
    peer, _ = pair
    span = peer.allocate(600)
    assert peer.allocate(600) is None
    peer.release(99)
    peer.release(span.number)
    peer.release(span.number)
    assert peer.memory.held_bytes == 0
    assert peer.allocate(600) is not None


@heap
def test_a_new_iteration_begins_without_the_spans_and_words_of_the_former(pair):
    peer, _ = pair
    peer.allocate(100)
    peer.allocate(200)
    peer.begun, peer.left, peer.done = Begin(0, {}), Leave(0, 1), True
    peer.forget()
    assert (peer.begun, peer.left, peer.done) == (None, None, False)
    assert peer.memory.held_bytes == 300
    peer.renew(())
    assert peer.memory.held_bytes == 0


@memory
def test_a_rank_is_heard_by_its_descriptors(pair):
    peer, _ = pair
    assert peer.filenos() == [peer.link.fileno()]
