"""The links of one loader, and its iterations over them: on rank 0 the reader with its feeder, on each rank a receiver.

Links are made by the first iteration and live until `close`; each iteration has threads of its own. A rank that closed
on purpose is met again by the next iteration: who finds the other side gone with a Bye, before anything of the
iteration has come, closes too and meets anew.

An iteration may be ended by a garbage collection, which runs in any thread, also in one of those that have to end.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from stream.address import own_address
from stream.errors import RankError
from stream.feeder import Feeder
from stream.filling import Filling
from stream.heap import Heap
from stream.inbox import Inbox
from stream.link import Link
from stream.local_link import LocalLink, local_pair
from stream.meet import host, join
from stream.offers import StepOffer
from stream.peers import Peer
from stream.protocol import Bye, encode
from stream.receiver import Receiver
from stream.receiving import Delivered, ReceiverOptions
from stream.slab import FileReader, Slab
from stream.slab_view import SlabView
from stream.wake import Bell

_LAST_WORDS_S = 1.0
"""How long closing waits until a slow network has taken what was said last, seconds."""
_PATIENCE_S = 5.0
"""How long the end of an iteration waits for a source that does not return; its memory is not used again then."""


@dataclass(frozen=True, kw_only=True)
class ExchangeOptions:
    """`shares[r]` is the portion that rank r gets, `budget_bytes` the shared memory of all ranks together.

    As much again may be lent to them, for batches that are not copied.

    `share` broadcasts rank 0's bytes, once for each meeting. On `port` rank 0 listens for ranks on other hosts, 0 is
    any free one; `same_host` False reaches every rank by TCP.
    """

    name: str
    rank: int
    shares: tuple[int, ...]
    share: Callable[[bytes], bytes]
    budget_bytes: int
    prefetch_steps: int
    port: int = 0
    same_host: bool = True


class Exchange:
    """All of a loader's communication on one rank. One thread uses it: the training loop's. Any may end or close it."""

    def __init__(self, options: ExchangeOptions) -> None:
        self._options = options
        self._inbox: Inbox | None = None
        self._peers: list[Peer] = []
        self._iterations = 0
        self._live: _Live | None = None
        self._changing = threading.RLock()
        self._stopping: threading.Thread | None = None
        self._process: int | None = None  # that met the others

    @property
    def reached(self) -> dict[int, str]:
        """How each rank is reached, once they have met: on rank 0 all ranks, elsewhere only this one."""
        if self._peers:
            return {peer.rank: _words(peer.link) for peer in self._peers}
        return {} if self._inbox is None else {self._options.rank: _words(self._inbox.link)}

    @property
    def received_bytes(self) -> int:
        """Bytes of portions that this rank received since the links were made."""
        return 0 if self._inbox is None else self._inbox.received_bytes

    def begin(
        self,
        facts: Mapping[str, str],
        offers: Callable[[], Iterator[StepOffer]],
        options: ReceiverOptions,
        reader: FileReader | None = None,
    ) -> "Iteration":
        """Begin an iteration; nothing starts before its first `take`. `reader`, if given, reads local files."""
        return Iteration(self, facts, offers, options, reader)

    def start(self, iteration: "Iteration") -> Receiver:
        """Meet, if that is to be done, and start an iteration with its threads, if it has any on this rank."""
        self.end()
        try:
            return self._start(iteration)
        except BaseException:
            # This rank is an iteration ahead of what it said: let the others meet it anew, instead of waiting for it
            self.close()
            raise

    def _start(self, iteration: "Iteration") -> Receiver:
        inbox = self._inbox or self._meet()
        number, self._iterations = self._iterations, self._iterations + 1
        receiver = Receiver(inbox, iteration.options, rank=self._options.rank, iteration=number, facts=iteration.facts)
        feeding = None
        if self._peers:
            feeding = _Feeding(self._peers, iteration, number, self._options.prefetch_steps)
        self._live = _Live(receiver, feeding)
        if feeding is not None:
            feeding.start()
        receiver.start()
        return receiver

    def end(self, error: BaseException | None = None) -> None:
        """End the live iteration with its threads. Idempotent."""
        self._stop(error, close=False)

    def close(self) -> None:
        """End the live iteration and all links. Idempotent."""
        self._stop(None, close=True)

    def is_live(self, receiver: Receiver) -> bool:
        """Tell whether this is the receiver of the live iteration."""
        live = self._live
        return live is not None and live.receiver is receiver

    def _stop(self, error: BaseException | None, *, close: bool) -> None:
        """End and wait for it, unless this is a thread of ours: none can wait for itself, so another one does."""
        if self._process not in {None, os.getpid()}:  # a forked child has no part in what goes on
            self._live, self._inbox, self._peers = None, None, []
            return
        with self._changing:
            live, self._live = self._live, None
            work = partial(self._stop_now, self._stopping, live, error, close=close)
            if threading.current_thread().name.startswith("stream-"):
                self._stopping = threading.Thread(target=work, name="stream-stop", daemon=True)
                self._stopping.start()
                return
        work()

    def _stop_now(
        self, before: threading.Thread | None, live: "_Live | None", error: BaseException | None, *, close: bool
    ) -> None:
        if before is not None:
            before.join()
        ended = True
        if live is not None:
            live.receiver.leave(error)
            ended = live.feeding is None or live.feeding.join()
        if close or not ended:  # what has not ended may still write to the memory
            self._close_links()

    def _close_links(self) -> None:
        inbox, self._inbox = self._inbox, None
        peers, self._peers = self._peers, []
        for peer in peers:
            peer.say(Bye())
            peer.flush()
        until = time.monotonic() + _LAST_WORDS_S
        for peer in peers:
            peer.link.flush(max(0.0, until - time.monotonic()))
            peer.link.close()
            peer.memory.close()
        if inbox is not None:
            if not peers:
                inbox.post(encode(Bye()))
                inbox.link.flush(_LAST_WORDS_S)
            inbox.close()

    def _meet(self) -> Inbox:
        options = self._options
        self._iterations, self._process = 0, os.getpid()
        if options.rank != 0:
            link = join(options.share, name=options.name, rank=options.rank, same_host=options.same_host)
            self._inbox = Inbox(link, SlabView() if link.kind == "memory" else None)
            return self._inbox
        ranks = len(options.shares)
        budget = options.budget_bytes // ranks
        links = {}
        if ranks > 1:
            links = host(
                options.share,
                name=options.name,
                ranks=range(1, ranks),
                port=options.port,
                address=own_address(),
            )
        near, far = local_pair()
        self._peers = [Peer(0, options.shares[0], near, Slab(budget))]
        for rank in range(1, ranks):
            memory = Slab(budget, lent_bytes=budget) if links[rank].kind == "memory" else Heap(budget)
            self._peers.append(Peer(rank, options.shares[rank], links[rank], memory))
        self._inbox = Inbox(far, None)
        return self._inbox


class Iteration:
    """The steps of one iteration on this rank."""

    def __init__(
        self,
        exchange: Exchange,
        facts: Mapping[str, str],
        offers: Callable[[], Iterator[StepOffer]],
        options: ReceiverOptions,
        reader: FileReader | None = None,
    ) -> None:
        self._exchange, self.facts, self.offers, self.options = exchange, facts, offers, options
        self.reader = reader
        self._receiver: Receiver | None = None

    def take(self) -> Delivered | None:
        """Wait for the next step; None after the last. Errors as those of `Receiver.take`."""
        if self._receiver is None:
            self._receiver = self._exchange.start(self)
        try:
            return self._receiver.take()
        except RankError:
            if not self._receiver.is_stale:
                raise
        except BaseException:
            if self._receiver.is_broken:
                self._exchange.close()
            raise
        self._exchange.close()
        self._receiver = self._exchange.start(self)
        return self._receiver.take()

    def warn(self, text: str) -> None:
        """Let the main process warn, once for the job."""
        if self._receiver is not None:
            self._receiver.warn(text)

    def end(self, error: BaseException | None = None) -> None:
        """End the iteration. Idempotent."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None and self._exchange.is_live(receiver):
            self._exchange.end(error)


class _Feeding:
    """The feeder's thread and its bell."""

    def __init__(self, peers: list[Peer], iteration: "Iteration", number: int, prefetch_steps: int) -> None:
        self._bell = Bell()
        for peer in peers:
            peer.forget()
        self._feeder = Feeder(
            peers,
            iteration.offers,
            iteration=number,
            prefetch_steps=prefetch_steps,
            bell=self._bell,
            filling=Filling(self._bell.ring, iteration.options.empty, iteration.reader),
        )
        self._thread = threading.Thread(target=self._feeder.run, name="stream-feed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> bool:
        if self._thread.ident is None:  # it was never started
            self._bell.close()
            return True
        self._thread.join(_PATIENCE_S)
        ended = not self._thread.is_alive() and self._feeder.join(_PATIENCE_S)
        if ended:
            self._bell.close()
        return ended


@dataclass(frozen=True)
class _Live:
    receiver: Receiver
    feeding: _Feeding | None


def _words(link: Link | LocalLink) -> str:
    return {"local": "this process", "memory": "shared memory", "tcp": "TCP"}[link.kind]
