"""Read ahead: load items in the background, in order, a bounded way ahead of their consumer.

Invariants:
- results come in the order of the items, whatever order they finish in;
- at most `depth` items are loading or waiting at once, and their costs stay within `budget_bytes` (one item alone may
  cost more);
- the first error, of an item or of the sequence of items, is raised in its place and ends everything after it;
- `close` ends all threads: it waits for loads that run, and drops those that have not begun.

Nothing starts before the first `next`.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Self, TypeVar

I = TypeVar("I")  # noqa: E741 - an item
T = TypeVar("T")


class ReadAhead(Generic[I, T]):
    """An iterator over `load(item)` for each item.

    The items are taken from their iterable by one thread of its own, so an iterable that blocks stalls nobody else.
    One consumer at a time.
    """

    def __init__(
        self,
        load: Callable[[I], T],
        items: Iterable[I],
        *,
        depth: int,
        cost: Callable[[I], int] = lambda _: 0,
        budget_bytes: int = 2**62,
    ) -> None:
        self._load, self._items, self._cost = load, items, cost
        self._depth, self._budget = depth, budget_bytes
        self._held: deque[tuple[Future[T], int]] = deque()
        self._bytes = 0
        self._state = threading.Condition()
        self._ended = False
        self._pump: threading.Thread | None = None
        self._pool: ThreadPoolExecutor | None = None

    def __iter__(self) -> Iterator[T]:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __next__(self) -> T:
        if self._pump is None:
            self._start()
        with self._state:
            self._state.wait_for(lambda: self._held or self._ended)
            if not self._held:
                raise StopIteration
            future, cost = self._held[0]
        try:
            return future.result()
        except BaseException:
            self.close()
            raise
        finally:
            self._release(cost)

    def close(self) -> None:
        """End reading ahead and all its threads. Idempotent."""
        with self._state:
            self._ended = True
            for future, _ in self._held:
                future.cancel()
            self._held.clear()
            self._state.notify_all()
        if self._pump is not None:
            self._pump.join()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _start(self) -> None:
        if self._ended:
            return
        self._pool = ThreadPoolExecutor(self._depth, thread_name_prefix="stream-load")
        self._pump = threading.Thread(target=self._run, name="stream-read-ahead", daemon=True)
        self._pump.start()

    def _release(self, cost: int) -> None:
        with self._state:
            if self._held:
                self._held.popleft()
                self._bytes -= cost
            self._state.notify_all()

    def _run(self) -> None:
        try:
            for item in self._items:
                if not self._submit(item):
                    return
        except BaseException as exc:  # noqa: BLE001 - raised again in the consumer, in its place
            failed: Future[T] = Future()
            failed.set_exception(exc)
            self._append(failed, 0)
        finally:
            with self._state:
                self._ended = True
                self._state.notify_all()

    def _submit(self, item: I) -> bool:
        """Wait for room, then start loading; False once closed."""
        cost = self._cost(item)
        with self._state:
            self._state.wait_for(lambda: self._ended or self._room(cost))
            if self._ended or self._pool is None:
                return False
            self._append(self._pool.submit(self._load, item), cost)
        return True

    def _room(self, cost: int) -> bool:
        return not self._held or (len(self._held) < self._depth and self._bytes + cost <= self._budget)

    def _append(self, future: "Future[T]", cost: int) -> None:
        with self._state:
            self._held.append((future, cost))
            self._bytes += cost
            self._state.notify_all()
