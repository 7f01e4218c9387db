"""The reader and its ranks in one process, over the links that they have between processes."""

import select
import socket
import threading
import time
from contextlib import suppress

from offers_made import checked
from stream.errors import LinkError
from stream.feeder import Feeder
from stream.filling import Filling
from stream.heap import Heap
from stream.inbox import Inbox
from stream.link import Link
from stream.local_link import local_pair
from stream.owning import new_memory
from stream.peers import Peer
from stream.protocol import Begin, decode, encode
from stream.receiver import Receiver
from stream.receiving import ReceiverOptions
from stream.slab import Slab
from stream.slab_view import SlabView
from stream.wake import Bell

LIMIT_S = 15
BUDGET = 1 << 20


def receiver_options(**changes):
    return ReceiverOptions(
        **{"make": checked, "aside": 0, "prefetch_steps": 2, "budget_bytes": BUDGET, "warn_after_s": 60, **changes}
    )


def until(condition, limit_s=LIMIT_S):
    """Wait until a condition holds; say whether it did in time."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


class Ranks:
    """Links to so many ranks, whose ends are both here: `peers` are the reader's, `inboxes` the ranks'.

    `kind` is how ranks other than 0 are reached: "memory" or "tcp".
    """

    def __init__(self, count, *, budget=BUDGET, kind="memory", shares=None):
        near, far = local_pair()
        shares = shares or range(count)
        self.peers = [Peer(0, shares[0], near, Slab(budget))]
        self.inboxes = [Inbox(far, None)]
        for rank in range(1, count):
            here, there = _unix_ends(rank) if kind == "memory" else _tcp_ends(rank)
            self.peers.append(Peer(rank, shares[rank], here, Slab(budget) if kind == "memory" else Heap(budget)))
            self.inboxes.append(Inbox(there, SlabView() if kind == "memory" else None))
        self._iterations = 0
        self._feedings = []
        self._unheard = [[] for _ in self.peers]

    def feed(self, offers, *, prefetch_steps=2):
        """Start the feeder of the next iteration, after that of the one before has ended."""
        feeding = Feeding(self.peers, offers, self._iterations, prefetch_steps)
        self._iterations += 1
        self._feedings.append(feeding)
        return feeding

    def receive(self, rank, *, iteration=None, facts=None, **changes):
        """Start the receiver of a rank in the iteration that is being fed."""
        number = self._iterations - 1 if iteration is None else iteration
        receiver = Receiver(
            self.inboxes[rank], receiver_options(**changes), rank=rank, iteration=number, facts=facts or {}
        )
        receiver.start()
        return receiver

    def say(self, rank, message):
        """Let a rank that is played by the test say something."""
        self.inboxes[rank].post(encode(message))

    def begin_all(self, iteration=0):
        for rank in range(len(self.peers)):
            self.say(rank, Begin(iteration, {}))

    def hear(self, rank, count=1):
        """Wait for the next messages to a rank that is played by the test, which are so many."""
        heard = []
        while len(heard) < count:
            heard += self.hear_some(rank)
        assert len(heard) == count, f"rank {rank} heard more: {heard}"
        return heard

    def next_of(self, rank, kind):
        """Wait for the next message of this kind to a rank that is played by the test; what comes before is dropped."""
        while True:
            unheard, self._unheard[rank] = self._unheard[rank] or self.hear_some(rank), []
            for place, message in enumerate(unheard):
                if isinstance(message, kind):
                    self._unheard[rank] = unheard[place + 1 :]
                    return message

    def hear_some(self, rank):
        """Wait until a rank that is played by the test has something to hear."""
        if self._unheard[rank]:
            unheard, self._unheard[rank] = self._unheard[rank], []
            return unheard
        link = self.inboxes[rank].link
        assert select.select([link.fileno()], [], [], LIMIT_S)[0], f"rank {rank} hears nothing more"
        return [decode(frame.message) for frame in link.drain()]

    def heard(self, rank):
        """Return what has come to a rank so far."""
        with suppress(LinkError):
            return [decode(frame.message) for frame in self.inboxes[rank].link.drain()]
        return []

    def close(self):
        for feeding in self._feedings:
            feeding.stop()
        for peer in self.peers:
            peer.link.close()
            peer.memory.close()
        for inbox in self.inboxes:
            inbox.close()
        for feeding in self._feedings:
            assert feeding.ended(), "a feeder did not end"


class Feeding:
    """A feeder in its thread."""

    def __init__(self, peers, offers, iteration, prefetch_steps):
        for peer in peers:
            peer.forget()
        self._bell = Bell()
        self.feeder = Feeder(
            peers,
            offers,
            iteration=iteration,
            prefetch_steps=prefetch_steps,
            bell=self._bell,
            filling=Filling(self._bell.ring, new_memory),
        )
        self._peers = peers
        self.thread = threading.Thread(target=self.feeder.run, name="feeding", daemon=True)
        self.thread.start()

    def stop(self):
        """Let it end by the end of its links, if it has not ended."""
        if self.thread.is_alive():
            for peer in self._peers:
                peer.link.close()
            self._bell.ring()

    def ended(self, limit_s=LIMIT_S):
        self.thread.join(limit_s)
        ended = not self.thread.is_alive() and self.feeder.join(limit_s)
        self._bell.close()
        return ended


def _unix_ends(rank):
    here, there = socket.socketpair()
    return Link(rank, here), Link(0, there)


def _tcp_ends(rank):
    (here, there), (watch_here, watch_there) = _connected(), _connected()
    return Link(rank, here, watch_here), Link(0, there, watch_there)


def _connected():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = socket.create_connection(listener.getsockname())
        there, _ = listener.accept()
    return here, there
