"""Pull the items of an iterator in a thread of its own, a few ahead, for a consumer that must never block.

Invariants: items come in order; at most `depth` wait to be taken; an error of the iterator comes in its place, after
all items before it; the iterator is closed by the thread that ran it. The consumer is told by `wake` that there is
something to take. Nothing starts before `start`.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Generic, NamedTuple, TypeVar, cast

T = TypeVar("T")


class Pulled(NamedTuple, Generic[T]):
    """One item; or the end, with the error that was the end if there was one."""

    item: T | None
    error: BaseException | None = None


class Pump(Generic[T]):
    """Runs one iterator. `take` and `close` are the consumer's, who may be in any thread."""

    def __init__(self, items: Iterator[T], *, depth: int, wake: Callable[[], None]) -> None:
        self._items, self._depth, self._wake = items, depth, wake
        self._ready: deque[Pulled[T]] = deque()
        self._state = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="stream-pull", daemon=True)

    def start(self) -> None:
        """Start pulling."""
        self._thread.start()

    def take(self) -> Pulled[T] | None:
        """Return the next item or the end; None if it is not there yet. Never blocks."""
        with self._state:
            if not self._ready:
                return None
            pulled = self._ready.popleft()
            self._state.notify_all()
        return pulled

    def end(self) -> None:
        """Tell the thread to end after the item that it is at; waits for nothing."""
        with self._state:
            self._closed = True
            self._ready.clear()
            self._state.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end; False if it still is at an item when the time is up."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        end: Pulled[T] = Pulled(None)
        try:
            # What the items hold open is closed here, not when it is collected
            with closing(cast("Any", _each(self._items))) as items:
                for item in items:
                    if not self._put(Pulled(item)):
                        return
        except BaseException as exc:  # noqa: BLE001 - handed to the consumer, in its place
            end = Pulled(None, exc)
        self._put(end)

    def _put(self, pulled: Pulled[T]) -> bool:
        with self._state:
            self._state.wait_for(lambda: self._closed or len(self._ready) < self._depth)
            if self._closed:
                return False
            self._ready.append(pulled)
        self._wake()
        return True


def _each(items: Iterator[T]) -> Iterator[T]:
    try:
        yield from items
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            close()
