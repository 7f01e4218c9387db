"""Keep work that may hold locks from running while this process forks.

A fork copies every lock as it is at that moment, also those inside libraries, and no thread that would release it. A
worker process that was forked while a thread was reading or decoding could wait for such a lock for ever. torch's
DataLoader forks its workers when an iteration begins, for instance that of an evaluation in the middle of a training
epoch whose threads read ahead.

So threads do their work `with working():`, a fork waits until none is inside (at most `PATIENCE_S` seconds: what hangs
in a dead network must not hang the fork too), and nobody enters meanwhile.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, NamedTuple

PATIENCE_S = 5.0


class _Gate:
    def __init__(self) -> None:
        self._state = threading.Condition()
        self._inside: set[int] = set()  # threads, by their identifiers
        self._closed = False

    def enter(self) -> None:
        with self._state:
            self._state.wait_for(lambda: not self._closed)
            self._inside.add(threading.get_ident())

    def leave(self) -> None:
        with self._state:
            self._inside.discard(threading.get_ident())
            self._state.notify_all()

    def close(self) -> None:
        """Wait until nobody else is inside, and let nobody enter."""
        with self._state:
            self._closed = True
            self._state.wait_for(lambda: self._inside <= {threading.get_ident()}, PATIENCE_S)

    def open(self) -> None:
        with self._state:
            self._closed = False
            self._state.notify_all()


class _Hooks(NamedTuple):
    before: Callable[[], object]
    in_parent: Callable[[], object]
    in_child: Callable[[], object]


class _Process:
    """The gate of this process; a fork gets a new one, since it has none of the threads."""

    gate = _Gate()
    hooks: ClassVar[list[_Hooks]] = []

    @classmethod
    def close(cls) -> None:
        cls.gate.close()
        for hooks in cls.hooks:
            hooks.before()

    @classmethod
    def open(cls) -> None:
        for hooks in reversed(cls.hooks):
            hooks.in_parent()
        cls.gate.open()

    @classmethod
    def renew(cls) -> None:
        cls.gate = _Gate()
        for hooks in reversed(cls.hooks):
            hooks.in_child()


os.register_at_fork(before=_Process.close, after_in_parent=_Process.open, after_in_child=_Process.renew)


def while_closed(
    *, before: Callable[[], object], in_parent: Callable[[], object], in_child: Callable[[], object]
) -> None:
    """Let these run around every fork while nobody is inside: locks that work needs must be taken no earlier."""
    _Process.hooks.append(_Hooks(before, in_parent, in_child))


@contextmanager
def working() -> Iterator[None]:
    """Do work during which this process does not fork. Not to be nested."""
    gate = _Process.gate
    gate.enter()
    try:
        yield
    finally:
        gate.leave()
