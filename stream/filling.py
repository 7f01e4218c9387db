"""Brings portions into their spans: small ones at once, others in threads. Results are for one thread.

A copy of many megabytes in the feeder's own thread would hold up its answers to all ranks for milliseconds.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from stream.forks import working
from stream.owning import Empty
from stream.underway import Underway

_SMALL = 1 << 17
"""Bytes that are copied at once: in about the time that handing them to another thread takes."""
_THREADS = 4
"""Portions that are read at once; reads from a disk are bound by the disk, from a network by its latency."""


class Filling:
    """Fills the portions of steps; `wake` is called when one that was read aside is there.

    `empty` gives memory for batches that stay in this process.
    """

    def __init__(self, wake: Callable[[], None], empty: Empty) -> None:
        self._wake, self._empty = wake, empty
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="stream-fill")
        self._filled: deque[tuple[Underway, BaseException | None]] = deque()

    def begin(self, step: Underway) -> None:
        """Fill all portions of a step."""
        for load in step.loads(self._empty):
            if load.slow or load.size > _SMALL:
                self._pool.submit(self._aside, step, load.fill)
            else:
                self._filled.append((step, _outcome(load.fill)))

    def settle(self) -> None:
        """Tell the steps what has been filled since the last call."""
        while self._filled:
            step, error = self._filled.popleft()
            step.loaded(error)

    def close(self) -> None:
        """Wait for what is being filled, and drop the rest: afterwards nobody writes into a span."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _aside(self, step: Underway, fill: Callable[[], None]) -> None:
        with working():
            self._filled.append((step, _outcome(fill)))
        self._wake()


def _outcome(fill: Callable[[], None]) -> BaseException | None:
    try:
        fill()
    except BaseException as exc:  # noqa: BLE001 - told to every rank
        return exc
    return None
