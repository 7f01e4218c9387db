"""Places in a ring of bytes: where the next span fits, and what becomes free. Numbers only, no memory.

Invariants: no two places that are taken overlap; each is contiguous; they are taken in a circle, so a place is used
again only after all taken before it were given back (or it was the last one taken).
"""

from collections import deque


class _Place:
    __slots__ = ("end", "free", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end, self.free = start, end, False


class Ring:
    """The places of one ring of `size` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._places: deque[_Place] = deque()  # in the order in which they were taken
        self._taken: dict[int, _Place] = {}  # by their start

    def __len__(self) -> int:
        """How many places are taken."""
        return len(self._taken)

    def take(self, size: int) -> int | None:
        """Take `size` bytes (at least 1) and return where they start; None while they do not fit in one piece."""
        start = self._start(size)
        if start is not None:
            place = self._taken[start] = _Place(start, start + size)
            self._places.append(place)
        return start

    def give(self, start: int) -> int:
        """Give back what starts there, in any order; return its size.

        Raises:
            KeyError: nothing that is taken starts there.
        """
        place = self._taken.pop(start)
        place.free = True
        while self._places and self._places[0].free:
            self._places.popleft()
        while self._places and self._places[-1].free:
            self._places.pop()
        return place.end - place.start

    def _start(self, size: int) -> int | None:
        if not self._places:
            return 0 if size <= self.size else None
        first, last = self._places[0], self._places[-1]
        if last.start < first.start:  # it has gone round: what is left lies between the two
            return last.end if last.end + size <= first.start else None
        if last.end + size <= self.size:
            return last.end
        return 0 if size <= first.start else None
