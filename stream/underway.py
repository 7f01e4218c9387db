"""One step on its way to the ranks: its portions, the spans they lie in, who has answered. Used by one thread."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self

import numpy as np

from stream.offers import Offer, StepOffer
from stream.owning import Empty
from stream.peers import Peer
from stream.protocol import LENT, Kind, Portion, body_start
from stream.slab import Bytes, FileReader, Span


class Load(NamedTuple):
    """What brings one portion of so many bytes into its span.

    `at_once` does so if it waits for nothing, and tells whether it did; None: there is no such way. `waits`: `fill`
    may have to wait.
    """

    fill: Callable[[], None]
    at_once: Callable[[], bool] | None
    waits: bool
    size: int


@dataclass(slots=True)
class _Lot:
    """What one rank gets: in a span, or (rank 0) the batch itself, once it has memory of its own."""

    offer: Offer
    span: Span | None
    batch: object = None

    def own(self, empty: Empty) -> None:
        """Make the batch that stays in this process."""
        self.batch = self.offer.local(empty)


class Underway:
    """A step between its reading and its commit.

    Attributes:
        number: The step, counted from 0 in its iteration.
        offer: What the source made.
        ranks: The ranks that get a portion of it.
        unready: Those of them that have not answered yet.
        loading: How many portions are still being read.
        error: The first error of reading.
        sent: Whether its portions are with the ranks.
    """

    def __init__(self, number: int, offer: StepOffer, lots: dict[int, _Lot]) -> None:
        self.number, self.offer, self._lots = number, offer, lots
        self.ranks = tuple(lots)
        self.unready = set(lots)
        self.loading = len(lots)
        self.error: BaseException | None = None
        self.sent = False

    @classmethod
    def begin(cls, number: int, offer: StepOffer, peers: Sequence[Peer]) -> Self | None:
        """Get memory for every portion; None, and nothing taken, while one rank has no room."""
        lots: dict[int, _Lot] = {}
        for peer in peers:
            portion = offer.portions[peer.share]
            if portion is None:
                continue
            if peer.rank == 0 and portion.kind == "batch":
                lots[peer.rank] = _Lot(portion, None)  # it is here already
                continue
            size = body_start(len(portion.header)) + portion.size
            span = peer.allocate(size, lend=portion.kind == "batch")
            if span is None:
                for rank, lot in lots.items():
                    if lot.span is not None:
                        peers[rank].release(lot.span.number)
                return None
            lots[peer.rank] = _Lot(portion, span)
        return cls(number, offer, lots)

    def loads(self, empty: Empty, reader: FileReader | None = None) -> list[Load]:
        """Return what has to be done before the step can be sent.

        `empty` gives memory for what stays here; `reader`, if given, reads what it can.
        """
        return [_load(lot, empty, reader) for lot in self._lots.values()]

    def loaded(self, error: BaseException | None) -> None:
        """Note that one portion is there, or could not be read."""
        if error is not None and self.error is None:
            self.error = error
        self.loading -= 1

    def send(self, iteration: int, peers: Sequence[Peer]) -> None:
        """Hand each rank its portion."""
        for rank, lot in self._lots.items():
            peer, span = peers[rank], lot.span
            kind: Kind = "thing" if span is None else lot.offer.kind
            portion = Portion(
                iteration=iteration,
                step=self.number,
                kind=kind,
                header=len(lot.offer.header),
                file=LENT if span is None else peer.place_of(span),
                offset=0 if span is None else span.offset,
                size=0 if span is None else span.size,
                number=-1 if span is None else span.number,
                real_rows=self.offer.real_rows,
                last=self.offer.last[peer.share],
                position=self.offer.position_after,
                gone=peer.memory.dropped(),
                lent=span is not None and span.lent,
                bookmark=self.offer.bookmark,
            )
            peer.hand(portion, span, lot.batch)
        self.sent = True


def _load(lot: _Lot, empty: Empty, reader: FileReader | None) -> Load:
    offer, span = lot.offer, lot.span
    if span is None:
        return Load(partial(lot.own, empty), None, waits=False, size=offer.size)
    number = None if reader is None or offer.reads is None else span.shared(reader)
    if reader is not None and number is not None:
        return Load(partial(_fill_by, reader, offer, span, number), None, waits=True, size=offer.size)
    at_once = partial(_fill_at_once, offer, span) if offer.slow else None
    return Load(partial(_fill, offer, span), at_once, offer.slow, offer.size)


def _fill_by(reader: FileReader, offer: Offer, span: Span, number: int) -> None:
    """Let another process read the body into its place."""
    _body(offer, span)
    at, jobs = span.offset + body_start(len(offer.header)), []
    for path, ranges in offer.reads or []:
        jobs.append((path, ranges, number, at))
        at += sum(end - start for start, end in ranges)
    reader.read(jobs)


def _fill(offer: Offer, span: Span) -> None:
    """Put header and body where the rank looks for them."""
    offer.fill(_body(offer, span))


def _fill_at_once(offer: Offer, span: Span) -> bool:
    """Do so only if it waits for nothing; tell whether that was so."""
    return offer.fill_at_once(_body(offer, span))


def _body(offer: Offer, span: Span) -> Bytes:
    """Put the header in its place, and return that of the body."""
    header = np.frombuffer(offer.header, dtype=np.uint8)
    start = body_start(len(header))
    span.memory[: len(header)] = header
    return span.memory[start : start + offer.size]
