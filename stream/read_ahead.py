"""Read ahead: load items in the background, in order, a bounded way ahead of their consumer.

Invariants:
- results come in the order of the items, whatever order they finish in;
- at most `depth` items are loading or waiting at once, and their costs stay within `budget_bytes` (one item alone may
  cost more);
- the first error, of an item or of the sequence of items, is raised in its place and ends everything after it;
- `close` ends all threads: it waits for loads that run, and drops those that have not begun. So does the end of the
  items, and an error. Who only drops the iterator ends them too, without waiting.

Nothing starts before the first `next`.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from stream.forks import working

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
        self._loading = _Loading(load, items, _Limits(depth, cost, budget_bytes))
        # The threads hold `_loading`, never this object, so dropping it is noticed
        weakref.finalize(self, self._loading.end).atexit = False

    def __iter__(self) -> Iterator[T]:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __next__(self) -> T:
        try:
            return self._loading.take()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End reading ahead and all its threads. Idempotent."""
        self._loading.end()
        self._loading.join()


@dataclass(frozen=True, slots=True)
class _Limits(Generic[I]):
    depth: int
    cost: Callable[[I], int]
    budget_bytes: int


class _Loading(Generic[I, T]):
    """What the threads work on: `_held` are the items that are loading or waiting, in order, with their costs."""

    def __init__(self, load: Callable[[I], T], items: Iterable[I], limits: _Limits[I]) -> None:
        self._load, self._items, self._limits = load, items, limits
        self._held: deque[tuple[Future[T], int]] = deque()
        self._bytes = 0
        self._state = threading.Condition()
        self._ended = False
        self._pump: threading.Thread | None = None
        self._pool: ThreadPoolExecutor | None = None

    def take(self) -> T:
        """Wait for the next result and give its place free.

        Raises:
            StopIteration: there are no more, or it was ended.
        """
        self._start()
        with self._state:
            self._state.wait_for(lambda: self._held or self._ended)
            if not self._held:
                raise StopIteration
            future, cost = self._held[0]
        try:
            return future.result()
        except CancelledError:  # ended by another thread
            raise StopIteration from None
        except StopIteration as exc:  # it would pass for the end of the items
            raise RuntimeError("loading an item raised StopIteration") from exc
        finally:
            self._release(cost)

    def end(self) -> None:
        """Tell the threads to end; waits for none of them, so that a garbage collection in any thread may call it."""
        with self._state:
            self._ended = True
            for future, _ in self._held:
                future.cancel()
            self._held.clear()
            self._state.notify_all()

    def join(self) -> None:
        """Wait until all threads have ended."""
        if self._pump is not None:
            self._pump.join()
        if self._pool is not None:
            self._pool.shutdown(wait=True)

    def _start(self) -> None:
        if self._ended or self._pump is not None:
            return
        self._pool = ThreadPoolExecutor(self._limits.depth, thread_name_prefix="stream-load")
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
            with closing(self._each()) as items:  # what the items hold open is closed here, not when it is collected
                for item in items:
                    if not self._submit(item):
                        break
        except BaseException as exc:  # noqa: BLE001 - raised again in the consumer, in its place
            failed: Future[T] = Future()
            failed.set_exception(exc)
            self._append(failed, 0)
        finally:
            with self._state:
                self._ended = True
                self._state.notify_all()
            if self._pool is not None:
                self._pool.shutdown(wait=False)

    def _each(self) -> Generator[I, None, None]:
        yield from self._items

    def _submit(self, item: I) -> bool:
        """Wait for room, then start loading; False once ended."""
        cost = self._limits.cost(item)
        with self._state:
            self._state.wait_for(lambda: self._ended or self._room(cost))
            if self._ended or self._pool is None:
                return False
            self._append(self._pool.submit(self._work, item), cost)
        return True

    def _work(self, item: I) -> T:
        with working():
            return self._load(item)

    def _room(self, cost: int) -> bool:
        limits = self._limits
        return not self._held or (len(self._held) < limits.depth and self._bytes + cost <= limits.budget_bytes)

    def _append(self, future: "Future[T]", cost: int) -> None:
        with self._state:
            if self._ended:
                return
            self._held.append((future, cost))
            self._bytes += cost
            self._state.notify_all()
