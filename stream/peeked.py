"""Looking ahead in a sequence without losing what comes before an error."""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


class Peeked(Iterator[T]):
    """An iterator that tells whether more follows. Not thread-safe.

    An error of the iterator is held back until the items before it are taken: who looks ahead of a good step must not
    lose that step.
    """

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self._held: deque[T] = deque()
        self._error: Exception | None = None

    def __next__(self) -> T:
        for item in self.take(1):
            return item
        raise StopIteration

    def has(self, count: int) -> bool:
        """Tell whether `count` more items follow, or an error; reads no farther than that."""
        return len(self.peek(count)) >= count or self._error is not None

    def peek(self, count: int) -> list[T]:
        """Return the next `count` items, or as many as there are, and leave them in their places."""
        missing = count - len(self._held)
        if missing > 0 and self._error is None:
            try:
                for item in islice(self._items, missing):
                    self._held.append(item)  # one by one, so that those before an error are kept
            except Exception as exc:  # noqa: BLE001 - raised in its place, see take
                self._error = exc
        return list(islice(self._held, count))

    def take(self, count: int) -> list[T]:
        """Return the next `count` items, fewer only at the end.

        Raises:
            Exception: what the iterator raised before it had given that many.
        """
        found = self.peek(count)
        if len(found) < count and self._error is not None:
            raise self._error
        for _ in found:
            self._held.popleft()
        return found
