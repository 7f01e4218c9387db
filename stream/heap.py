"""Memory for portions that leave the host: a slab's interface over ordinary memory."""

from stream.errors import SlabError
from stream.recycler import Recycler
from stream.slab import Span


class Heap:
    """The memory of one rank that is reached over the network, or lives in this process. For one thread.

    Args:
        budget_bytes: What all spans together may take; a single larger one is let through alone.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self._sizes: dict[int, int] = {}
        self._next = 1
        self._closed = False
        self._memory = Recycler(budget_bytes)
        self.held_bytes = 0
        """Bytes of the spans that are held."""

    @property
    def file_bytes(self) -> int:
        """Bytes in memory files: none."""
        return 0

    def allocate(self, size: int) -> Span | None:
        """Return memory for `size` bytes (0 or more), None while there is no room: some span must be released first.

        Raises:
            SlabError: it is closed.
        """
        if self._closed:
            raise SlabError("memory for portions", "it was closed; a new iteration opens a new one")
        if self._sizes and self.held_bytes + size > self._budget:
            return None
        number, self._next = self._next, self._next + 1
        self._sizes[number] = size
        self.held_bytes += size
        return Span(number, self._memory.empty(size).numpy())

    def sent(self, number: int) -> None:
        """Tell that a span was sent: nothing to note.

        Raises:
            KeyError: no such span is held.
        """
        self._sizes[number]

    def release(self, number: int) -> None:
        """Take a span back, in any order.

        Raises:
            KeyError: no such span is held.
        """
        self.held_bytes -= self._sizes.pop(number)

    def files(self) -> list[int]:
        """Return the numbers of the open memory files: none."""
        return []

    def dropped(self) -> list[int]:
        """Return the numbers of memory files that are gone: none."""
        return []

    def close(self) -> None:
        """Give all memory back. Idempotent."""
        self._closed = True
        self._sizes.clear()
        self.held_bytes = 0
