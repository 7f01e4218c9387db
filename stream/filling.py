"""Brings portions into their spans. Results are for one thread, the feeder's.

What lets one wait, a disk or a network, is read by threads. Large copies, from memory or out of the system's page
cache, are made by threads and by the feeder itself, which takes one while no rank has anything to say: handing
everything to threads leaves it idle, and on few cores costs more than the copying.
"""

import os
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from stream.aside import Aside
from stream.forks import working
from stream.owning import Empty
from stream.slab import FileReader
from stream.underway import Load, Underway

_SMALL = 1 << 17
"""Bytes that are copied at once: in about the time that handing them to another thread takes."""
_READS = 4
"""Portions that are read at once; reads from a disk are bound by the disk, from a network by its latency."""
_COPIES = 3
"""Portions that are copied at once beside the feeder's own; three more cores reach the limit of the memory."""


class _Task(NamedTuple):
    step: Underway
    load: Load
    waits: bool = False


class Filling:
    """Fills the portions of steps; `wake` is called when one that was filled aside is there.

    `empty` gives memory for batches that stay in this process; `reader`, if given, reads local files in another one.
    """

    def __init__(self, wake: Callable[[], None], empty: Empty, reader: FileReader | None = None) -> None:
        self._wake, self._empty, self._reader = wake, empty, reader
        self._filled: deque[tuple[Underway, BaseException | None]] = deque()
        cores = len(os.sched_getaffinity(0))
        self._reads = Aside(self._fill_aside, _READS, name="stream-read")
        self._copies = Aside(self._fill_aside, max(1, min(_COPIES, cores - 1)), name="stream-fill")

    @property
    def has_work(self) -> bool:
        """Whether there is something for `help`."""
        return self._copies.waits

    def begin(self, step: Underway) -> None:
        """Fill all portions of a step."""
        for load in step.loads(self._empty, self._reader):
            if load.waits and load.at_once is None:
                self._reads.put(_Task(step, load, waits=True))
            elif load.waits or load.size > _SMALL:
                self._copies.put(_Task(step, load))
            else:
                self._fill(_Task(step, load))

    def help(self) -> None:
        """Fill one portion that waits for a thread, if there is one."""
        for task in self._copies.pop():
            with working():
                self._fill(task)

    def settle(self) -> None:
        """Tell the steps what has been filled since the last call."""
        while self._filled:
            step, error = self._filled.popleft()
            step.loaded(error)

    def close(self) -> None:
        """Wait for what is being filled, and drop the rest: afterwards nobody writes into a span."""
        self._copies.close()
        self._reads.close()
        self._filled.clear()

    def _fill_aside(self, task: _Task) -> None:
        with working():
            self._fill(task)
        self._wake()

    def _fill(self, task: _Task) -> None:
        error: BaseException | None = None
        try:
            if not task.waits and task.load.at_once is not None:
                if not task.load.at_once():
                    self._reads.put(task._replace(waits=True))
                    return
            else:
                task.load.fill()
        except BaseException as exc:  # noqa: BLE001 - told to every rank
            error = exc
        self._filled.append((task.step, error))
