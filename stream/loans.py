"""Which spans lie under the batches of this rank, and which it can give back: the rank's side of lent_files.py.

Invariants:
- a span is given back once, after the last tensor, array or other view of its memory is gone;
- a span that was in use while this process forked is worn: the child may still look at it, so nobody writes there.

What is gone is noted by a garbage collection, which runs in any thread and may wait for no lock.
"""

import os
import weakref
from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Returned(NamedTuple):
    """Numbers of spans: those that may be used again, and those that may not."""

    back: list[int]
    worn: list[int]


class Loans:
    """The spans that one link has lent. For one thread at a time; memory may go in any."""

    def __init__(self) -> None:
        self._gone: deque[int] = deque()
        self._out: set[int] = set()
        self._worn: set[int] = set()
        self._gone_worn: list[int] = []
        _everywhere.add(self)

    def lend(self, number: int, memory: NDArray[np.uint8]) -> None:
        """Note that span `number` is in use as long as `memory`: an array that is no view of another array."""
        self._out.add(number)
        weakref.finalize(memory, self._gone.append, number).atexit = False

    def returned(self) -> Returned:
        """Return what is in use no longer: what is back each once, what is worn each time, lest it be lost."""
        back: list[int] = []
        while self._gone:
            number = self._gone.popleft()
            self._out.discard(number)
            if number in self._worn:
                self._gone_worn.append(number)
            else:
                back.append(number)
        return Returned(back, list(self._gone_worn))

    def out(self) -> list[int]:
        """Return what is in use, or was not told to be back."""
        return sorted(self._out)

    def wear(self) -> None:
        """Note that a child of this process has what is in use now."""
        self._worn |= self._out


_everywhere: "weakref.WeakSet[Loans]" = weakref.WeakSet()


def _wear_all() -> None:
    for loans in list(_everywhere):
        loans.wear()


os.register_at_fork(before=_wear_all, after_in_parent=_wear_all)
