"""What a loader keeps from one epoch to the next: links to the other ranks, a helper process, the GIL's account."""

from dataclasses import replace
from functools import cached_property

from stream.collate import Collator
from stream.exchange import Exchange
from stream.gil import Held
from stream.helper import DecodeHelper
from stream.owning import Empty
from stream.plan import Plan
from stream.recycler import Recycler
from stream.stats import Stats


class Workplace:
    """Made by the first iteration of a loader, closed with it. Nothing starts before it is used."""

    def __init__(self, plan: Plan, exchange: Exchange | None) -> None:
        self._plan, self.exchange = plan, exchange
        self.recycler = Recycler(plan.options.read_ahead_bytes)
        self._collator: Collator | None = None
        self._held = Held(0.0, 0.0, 0.0)

    @cached_property
    def helper(self) -> DecodeHelper | None:
        """The process that decodes for this one, where that was asked for."""
        if self._plan.options.decode_in == "thread":
            return None
        threads = self._plan.decode_threads
        return DecodeHelper(resize=self._plan.resize, threads=threads, max_pixels=self._plan.max_pixels)

    @property
    def held(self) -> Held:
        """Where the time of the decoding threads went, over all epochs."""
        now = Held(0.0, 0.0, 0.0) if self._collator is None else self._collator.held
        return Held(*(before + since for before, since in zip(self._held, now, strict=True)))

    @property
    def reached(self) -> dict[int, str]:
        """How each rank is reached, as far as this one knows."""
        return {} if self.exchange is None else self.exchange.reached

    def completed(self, stats: Stats) -> Stats:
        """Return the stats with what is known here."""
        received = 0 if self.exchange is None else self.exchange.received_bytes
        return replace(stats, received_bytes=received, gil_wait_s=self.held.gil_wait_s, decode_s=self.held.wall_s)

    def collator(self, threads: int, empty: Empty | None = None) -> Collator:
        """Return what makes batches in an epoch, in this process or its helper.

        `empty` gives the memory of the images; by default memory of former batches.
        """
        if self.helper is not None and self.helper.is_dead:
            self.close()  # with the links too: what was shared over them the next process does not know
        helper = self.helper
        if helper is not None:
            helper.start()
        self._collator = self._plan.collator(threads, helper, empty=empty or self.recycler.empty)
        return self._collator

    def settle(self) -> None:
        """Take the decoding threads' account, before they end."""
        self._held, self._collator = self.held, None

    def close(self) -> None:
        """Close the links and end the helper. Idempotent."""
        if self.exchange is not None:
            self.exchange.close()
        helper = self.__dict__.pop("helper", None)
        if helper is not None:
            helper.close()
