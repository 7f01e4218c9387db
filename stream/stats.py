"""Counters of one loader on one rank, and a frozen snapshot of them."""

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stats:
    """What a loader has done on this rank since it was made.

    `steps` were returned by `next()`; `wait_s` is how long the training loop waited for them, in seconds;
    `first_wait_s` is the first wait alone, which nothing can hide. `received_bytes` are those of the portions that came
    over its link to the reader; the reader's own rank counts what lay in memory for it. `decode_s` is the time of all
    threads that decode, `gil_wait_s` how much of it they waited for the interpreter lock: see `decode_in="process"`.
    """

    steps: int = 0
    wait_s: float = 0.0
    first_wait_s: float = 0.0
    received_bytes: int = 0
    decode_s: float = 0.0
    gil_wait_s: float = 0.0


class Counters:
    """Collects `Stats`. One thread writes; a snapshot may be taken from any."""

    def __init__(self) -> None:
        self._stats = Stats()
        self._since = 0.0

    def waiting(self) -> None:
        """Note that the training loop now waits for a batch."""
        self._since = time.perf_counter()

    def received(self) -> None:
        """Note that it got one."""
        waited = time.perf_counter() - self._since
        was = self._stats
        first = was.first_wait_s if was.steps else waited
        self._stats = Stats(was.steps + 1, was.wait_s + waited, first)

    def snapshot(self) -> Stats:
        """Return the counters as they are now."""
        return self._stats
