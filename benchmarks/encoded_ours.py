"""Encoded samples through the links, the reader and the receivers that a loader uses, without the decoding behind them.

See `encoded_arms.py` for what it is measured beside.
"""

from collections.abc import Iterator

from accelerate.utils import broadcast_object_list

from encoded_arms import Steps
from encoded_plan import Plan
from stream.exchange import Exchange, ExchangeOptions
from stream.helper import DecodeHelper
from stream.inbox import Arrived
from stream.offers import StepOffer, packed_offers
from stream.receiving import ReceiverOptions
from stream.rows import open_rows

_BUDGET_BYTES = 256 * 2**20
_PREFETCH_STEPS = 2


class Ours:
    """The links, the reader and the receivers that a loader uses, without the decoding behind them."""

    def __init__(self, plan: Plan, steps: Steps, *, rank: int, verify: bool, helped: bool = False) -> None:
        self._plan, self._steps, self._verify = plan, steps, verify
        self._helper = DecodeHelper(resize=None, threads=1) if helped and rank == 0 else None
        self._exchange = Exchange(
            ExchangeOptions(
                name=f"encoded {verify}",
                rank=rank,
                shares=tuple(range(plan.ranks)),
                share=_share,
                budget_bytes=_BUDGET_BYTES,
                prefetch_steps=_PREFETCH_STEPS,
            )
        )

    def steps(self) -> Iterator[int]:
        """Take this rank's portions; of each the parts are opened, and let go as decoded ones would be."""
        options = ReceiverOptions(make=self._open, aside=1, prefetch_steps=_PREFETCH_STEPS, budget_bytes=_BUDGET_BYTES)
        iteration = self._exchange.begin({}, self._offers, options, self._helper)
        try:
            while (step := iteration.take()) is not None:
                yield step.batch
        finally:
            iteration.end()

    def received_bytes(self) -> int:
        """Return the bytes of all portions."""
        return self._exchange.received_bytes

    def close(self) -> None:
        """Close the links, and end the helper."""
        self._exchange.close()
        if self._helper is not None:
            self._helper.close()

    def _offers(self) -> Iterator[StepOffer]:
        steps = self._steps
        return packed_offers(steps.source, steps.order, steps.schedule, portions=self._plan.ranks, epoch=0)

    def _open(self, arrived: Arrived) -> tuple[int, int]:
        items = open_rows(arrived.header, arrived.body, verify=self._verify)
        size = sum(len(item.image or b"") + len(str(item.caption).encode()) for item in items)
        return size, 0


def _share(data: bytes) -> bytes:
    box = [data]
    broadcast_object_list(box)
    return box[0]
