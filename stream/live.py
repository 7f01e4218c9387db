"""What is still going on when a script ends, and has to be over before the interpreter takes itself apart.

Iterations that the script still holds are closed. And the threads of gloo get time: one that has just finished a
collective of the training (DDP's last all-reduce) needs the interpreter's lock to let go of it, and aborts the whole
process if it asks for the lock a moment too late ("terminate called without an active exception"; torch 2.13, found by
a debugger; 3 of 20 jobs of 2 ranks on a busy machine, with a stock loader too). Nothing tells when such a thread is
done; but one that is not sleeping is not.
"""

import atexit
import threading
import time
import weakref
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

_GRACE_S, _MOST_S, _PAUSE_S = 0.2, 2.0, 0.05
_jobs: list[int] = []
"""The number of ranks of the job, once it is known to have several."""
_iterations: "weakref.WeakSet[Generator[Any, None, None]]" = weakref.WeakSet()


def keep_track(iteration: Generator[Any, None, None]) -> None:
    """Close this generator at exit, if it still lives then."""
    _iterations.add(iteration)


def expect_collectives(ranks: int) -> None:
    """Give the threads of collectives time at exit: this process is one of several ranks."""
    if not _jobs:
        _jobs.append(ranks)


@atexit.register
def _close_all() -> None:
    for iteration in list(_iterations):
        with suppress(ValueError):  # a daemon thread is in it
            iteration.close()
    if _jobs:
        _let_threads_end()


def _let_threads_end() -> None:
    """Sleep, without the interpreter's lock, until all other threads have been sleeping for a while."""
    until, calm_s = time.monotonic() + _MOST_S, 0.0
    while calm_s < _GRACE_S and time.monotonic() < until:
        time.sleep(_PAUSE_S)
        calm_s = calm_s + _PAUSE_S if others_sleep() else 0.0


def others_sleep() -> bool:
    """Tell whether no other thread of this process runs, or would if it got a processor."""
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) == threading.get_native_id():
            continue
        with suppress(OSError):  # it ended just now
            if (task / "stat").read_text().rpartition(")")[2].split()[0] in {"R", "D"}:
                return False
    return True
