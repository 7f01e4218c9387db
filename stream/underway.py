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
from stream.slab import Span


class Load(NamedTuple):
    """What brings one portion of so many bytes into its span; `slow` if it reads."""

    fill: Callable[[], None]
    slow: bool
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
            span = peer.allocate(body_start(len(portion.header)) + portion.size)
            if span is None:
                for rank, lot in lots.items():
                    if lot.span is not None:
                        peers[rank].release(lot.span.number)
                return None
            lots[peer.rank] = _Lot(portion, span)
        return cls(number, offer, lots)

    def loads(self, empty: Empty) -> list[Load]:
        """Return what has to be done before the step can be sent; `empty` gives memory for what stays here."""
        return [
            Load(
                partial(lot.own, empty) if lot.span is None else partial(_fill, lot.offer, lot.span),
                lot.offer.slow,
                lot.offer.size,
            )
            for lot in self._lots.values()
        ]

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
            )
            peer.hand(portion, span, lot.batch)
        self.sent = True


def _fill(offer: Offer, span: Span) -> None:
    """Put header and body where the rank looks for them."""
    header = np.frombuffer(offer.header, dtype=np.uint8)
    start = body_start(len(header))
    span.memory[: len(header)] = header
    offer.fill(span.memory[start : start + offer.size])
