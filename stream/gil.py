"""How long decoding threads waited for the GIL.

What a job takes is time on a core, time in the queue for a core, and the rest. A thread that decodes bytes in memory
sleeps for one reason: another thread has the GIL. So the rest is the wait for it, the figure that says whether
`decode_in="process"` would pay.

Measuring must not add to it: a thread that reads a file or takes a contested lock gives the GIL up and has to wait for
it again. Hence a job only asks two clocks, which do not, and takes 3 us longer [measured]. The time in the queue, which
Linux counts for each thread since it began, is read for all threads by the one who wants to know. The share of the wait
of two threads was 0.70 beside a main thread in pure Python, and 0.001 beside one that slept [measured].
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

Clock = Callable[[], float]


def queue_s(thread: int) -> float:
    """How long a thread of this process waited for a core since it began, in seconds; 0 where the system says nothing.

    The second number of proc(5) schedstat, in nanoseconds.
    """
    try:
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):  # the thread has ended, or this kernel does not count
        return 0.0


class Held(NamedTuple):
    """Where the time of all jobs went, in seconds: `wall_s` in all, `cpu_s` on a core, `queue_s` waiting for one."""

    wall_s: float
    cpu_s: float
    queue_s: float

    @property
    def gil_wait_s(self) -> float:
        """What is left: the wait for the GIL, in seconds."""
        return max(0.0, self.wall_s - self.cpu_s - self.queue_s)

    @property
    def share(self) -> float:
        """The share of the wait in all, 0 to 1."""
        return self.gil_wait_s / self.wall_s if self.wall_s else 0.0


@dataclass(slots=True)
class _Spent:
    wall_s: float = 0.0
    cpu_s: float = 0.0


class GilMeter:
    """Measures the jobs of threads that do little else; a snapshot may be taken from any thread.

    Args:
        wall: A clock that goes on, in seconds.
        cpu: How long the calling thread was on a core, in seconds.
        queue: How long a thread of this process waited for a core since it began, in seconds; by its native number.
    """

    def __init__(
        self,
        wall: Clock = time.perf_counter,
        cpu: Clock = time.thread_time,
        queue: Callable[[int], float] = queue_s,
    ) -> None:
        self._wall, self._cpu, self._queue = wall, cpu, queue
        self._threads: dict[int, _Spent] = {}  # each thread writes its own entry, so there is no lock

    @contextmanager
    def job(self) -> Iterator[None]:
        """Measure what is done inside, by the calling thread."""
        wall, cpu = self._wall(), self._cpu()
        try:
            yield
        finally:
            spent = self._threads.setdefault(threading.get_native_id(), _Spent())
            spent.cpu_s += self._cpu() - cpu
            spent.wall_s += self._wall() - wall

    def snapshot(self) -> Held:
        """Where the time of all jobs went that have ended."""
        threads = dict(self._threads)
        queued = sum(self._queue(thread) for thread in threads)
        return Held(sum(s.wall_s for s in threads.values()), sum(s.cpu_s for s in threads.values()), queued)
