"""Before the first step: have all ranks begun the iteration, and do they mean the same one?"""

from collections.abc import Sequence

from stream.carry import Carried, carried
from stream.errors import OptionError
from stream.peers import Peer


def missing(peers: Sequence[Peer]) -> list[int]:
    """Return the ranks that have not begun yet."""
    return [peer.rank for peer in peers if peer.begun is None]


def disagreement(peers: Sequence[Peer]) -> Carried | None:
    """Return what every rank has to raise if what they said when they began is not equal, else None."""
    said = [peer.begun.facts for peer in peers if peer.begun is not None]
    for name in dict.fromkeys(name for facts in said for name in facts):
        values: dict[str, list[int]] = {}
        for peer, facts in zip(peers, said, strict=True):
            values.setdefault(facts.get(name, "nothing"), []).append(peer.rank)
        if len(values) > 1:
            words = "; ".join(f"{value} on {_ranks(ranks)}" for value, ranks in values.items())
            problem = f"the ranks do not agree: {words}. Give every rank the same, and begin epochs at the same place"
            return carried(OptionError(name, next(iter(values)), problem), rank=peers[0].rank, step=0)
    return None


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
