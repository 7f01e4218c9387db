"""stream/inbox.py: what arrives at a rank, whichever iteration it is of."""

import socket

import numpy as np
import pytest
import torch

from descriptors import new_descriptors, open_descriptors
from stream.carry import carried
from stream.errors import LinkError, SlabError
from stream.heap import Heap
from stream.inbox import Inbox
from stream.link import Link
from stream.local_link import local_pair
from stream.peers import Peer
from stream.protocol import Again, Bye, Commit, Fault, Portion, decode, encode
from stream.slab import Slab
from stream.slab_view import SlabView


def portion(span, file, *, iteration=0, step=0, gone=()):
    return Portion(iteration, step, "batch", 3, file, span.offset, span.size, span.number, 4, False, 4, list(gone))


def handed(peer, message, span, offer=None):
    peer.hand(message, span, offer)
    peer.flush()


def said(peer, message):
    peer.say(message)
    peer.flush()


def filled(peer, size=100, value=7):
    span = peer.allocate(size)
    span.memory[:3] = 1
    span.memory[64:] = value
    return span


@pytest.fixture
def memory():
    here, there = socket.socketpair()
    peer, inbox = Peer(1, 0, Link(1, here), Slab(1 << 20)), Inbox(Link(0, there), SlabView())
    yield peer, inbox
    inbox.close()
    peer.link.close()
    peer.memory.close()


def send(peer, **options):
    span = filled(peer)
    handed(peer, portion(span, peer.place_of(span), **options), span)
    return span


def test_a_portion_arrives_with_header_and_body_in_shared_memory(memory):
    peer, inbox = memory
    send(peer)
    ((message, arrived),) = inbox.take(0)
    assert isinstance(message, Portion)
    assert (arrived.header, arrived.body.tolist()) == (b"\1\1\1", [7] * 36)
    assert not arrived.owned
    assert not arrived.body.flags.writeable
    assert inbox.received_bytes == 100
    arrived.check()


def test_a_span_that_is_used_again_too_early_is_noticed(memory):
    peer, inbox = memory
    span = send(peer)
    ((_, arrived),) = inbox.take(0)
    peer.release(span.number)
    with pytest.raises(SlabError, match="it was used again too early"):
        arrived.check()


def test_a_portion_whose_memory_was_let_go_has_no_bytes(memory):
    peer, inbox = memory
    send(peer)
    ((_, arrived),) = inbox.take(0)
    arrived.release()
    assert (arrived.header, arrived.body.size, arrived.thing) == (b"", 0, None)


def test_messages_of_an_earlier_iteration_are_dropped_but_their_memory_is_known_to_the_next(memory):
    peer, inbox = memory
    before = send(peer, iteration=0)
    assert list(inbox.take(1)) == []
    peer.release(before.number)
    span = filled(peer, value=9)
    assert span.new_fd is None
    handed(peer, portion(span, peer.place_of(span), iteration=1), span)
    ((_, arrived),) = inbox.take(1)
    assert arrived.body.tolist() == [9] * 36


def test_messages_of_a_later_iteration_are_kept_for_it_also_when_the_link_ends(memory):
    peer, inbox = memory
    told = carried(ValueError("x"), rank=0, step=0)
    for message in (Fault(1, 0, told), Commit(0, 0), Fault(2, 0, told)):
        said(peer, message)
    assert list(inbox.take(0)) == [(Commit(0, 0), None)]
    peer.link.close()
    for iteration in (1, 2):
        taken = inbox.take(iteration)
        assert next(taken) == (Fault(iteration, 0, told), None)
        with pytest.raises(LinkError):
            next(taken)


def test_a_memory_file_that_is_gone_is_unmapped(memory):
    peer, inbox = memory
    span = send(peer)
    ((_, arrived),) = inbox.take(0)
    said(peer, Commit(0, 0))
    peer.release(span.number)
    other = filled(peer)
    handed(peer, portion(other, peer.place_of(other), gone=[span.file]), other)
    with pytest.raises(SlabError, match="no such memory"):
        list(inbox.take(0))
    with pytest.raises(SlabError, match="no such memory"):
        arrived.check()


def test_over_tcp_the_bytes_come_beside_the_message_and_are_the_ranks_own():
    here, there = socket.socketpair()
    peer, inbox = Peer(1, 0, Link(1, here), Heap(1 << 20)), Inbox(Link(0, there), None)
    send(peer)
    peer.link.flush(20)
    taken = []
    while not taken:
        taken = list(inbox.take(0))
    assert (taken[0][1].header, taken[0][1].body.tolist(), taken[0][1].owned) == (b"\1\1\1", [7] * 36, True)
    taken[0][1].check()
    inbox.close()
    peer.link.close()


def test_within_a_process_the_memory_is_lent_and_a_thing_is_the_thing_itself():
    near, far = local_pair()
    peer, inbox = Peer(0, 0, near, Slab(1 << 20)), Inbox(far, None)
    span, thing = send(peer), {"image": torch.arange(3)}
    handed(peer, Portion(0, 1, "thing", 0, -2, 0, 0, -1, 4, True, 8, []), None, thing)
    (_, lent), (_, given) = inbox.take(0)
    assert np.shares_memory(lent.body, span.memory)
    assert not lent.owned
    assert given.thing is thing
    assert (given.header, given.body.size) == (b"", 0)
    inbox.close()
    peer.link.close()
    peer.memory.close()


@pytest.mark.parametrize("message", [Bye(), Again(0)])
def test_who_closes_on_purpose_is_remembered(memory, message):
    peer, inbox = memory
    list(inbox.take(0))
    assert not inbox.closed_on_purpose
    said(peer, message)
    list(inbox.take(0))
    assert inbox.closed_on_purpose


def test_what_a_rank_posts_comes_to_the_reader(memory):
    peer, inbox = memory
    inbox.post(encode(Commit(3, 1)))
    assert decode(peer.link.take().message) == Commit(3, 1)


def test_closing_leaves_no_descriptor():
    before = open_descriptors()
    here, there = socket.socketpair()
    peer, inbox = Peer(1, 0, Link(1, here), Slab(1 << 20)), Inbox(Link(0, there), SlabView())
    send(peer)
    list(inbox.take(0))
    assert len(inbox.filenos()) == 1
    inbox.close()
    inbox.close()
    peer.link.close()
    peer.memory.close()
    assert new_descriptors(before) == {}
