"""The reader's view of one rank: its link, the memory that its portions travel in, and how far it has come."""

from collections.abc import Collection

from stream.heap import Heap
from stream.link import Link
from stream.local_link import LocalLink
from stream.protocol import LENT, Begin, Leave, Message, Portion, encode
from stream.slab import Slab, Span


class Peer:
    """One rank as the feeder's thread knows it.

    Attributes:
        rank: The rank.
        share: Which portion of a step it gets; ranks of one data-parallel group share one.
        begun: What it said when it began the current iteration.
        left: What it said when it left the current iteration.
        down: Why its link is down, if it is.
        farewell: Whether it said that it closes its link on purpose.
        done: Whether its last step of the iteration is committed; it may leave then.
        early: What it said of the next iteration while the current one was not over.
    """

    def __init__(self, rank: int, share: int, link: Link | LocalLink, memory: Slab | Heap) -> None:
        self.rank, self.share, self.link, self.memory = rank, share, link, memory
        self.begun: Begin | None = None
        self.left: Leave | None = None
        self.down: str | None = None
        self.done = self.farewell = False
        self.early: list[Message] = []
        self.sent_bytes = 0
        self._held: set[int] = set()
        self._unsent: list[bytes] = []
        self._is_local = isinstance(link, LocalLink)

    def filenos(self) -> list[int]:
        """Return the descriptors that become readable when the link has something, or has ended."""
        watch = self.link.watch_fileno()
        return [self.link.fileno()] if watch is None else [self.link.fileno(), watch]

    def renew(self, kept: Collection[int]) -> None:
        """Forget the former iteration; the rank has said that of its spans it uses but those that it has `kept`.

        What is worn has to be told before, see `returned`.
        """
        for number in self._held.difference(kept):
            self.release(number)

    def forget(self) -> None:
        """Make ready for the Begin of the next iteration."""
        self.begun, self.left, self.done = None, None, False

    def allocate(self, size: int, *, lend: bool = False) -> Span | None:
        """Return memory for a portion of so many bytes, None while there is no room; with `lend` lent, if it may be."""
        if lend and isinstance(self.memory, Slab) and self.begun is not None and self.begun.borrows:
            span = self.memory.allocate(size, lend=True)
        else:
            span = self.memory.allocate(size)
        if span is not None:
            self._held.add(span.number)
        return span

    def place_of(self, span: Span) -> int:
        """Return what to tell the rank about where a span lies: `Portion.file`."""
        return LENT if self._is_local else span.file

    def release(self, number: int) -> None:
        """Take a span back. One that an earlier iteration held is known no more."""
        if number in self._held:
            self._held.remove(number)
            self.memory.release(number)

    def returned(self, back: Collection[int], worn: Collection[int]) -> None:
        """Take back what was lent; what is `worn` is not used again."""
        for number in back:
            self.release(number)
        for number in self._held.intersection(worn):
            self._held.remove(number)
            if isinstance(self.memory, Slab):
                self.memory.release(number, again=False)

    def say(self, message: Message) -> None:
        """Send a message with the next `flush`."""
        self._unsent.append(encode(message))

    def hand(self, portion: Portion, span: Span | None, batch: object) -> None:
        """Send a portion: in shared memory (with the next `flush`), beside the message, or within this process."""
        message = encode(portion)
        if span is not None:
            self.sent_bytes += span.size
            if portion.file >= 0 and span.new_fd is None:
                self._unsent.append(message)
                return
        self.flush()
        if self.down is not None:
            return
        if span is None:
            self.link.post(message, thing=batch)
        elif span.new_fd is None or self._is_local:
            self.link.post(message, payload=span.memory)
        else:
            self.link.post(message, fds=(span.new_fd,))
            self.memory.sent(span.number)

    def flush(self) -> None:
        """Send what was said, all at once, unless the rank can no longer hear it."""
        unsent, self._unsent = self._unsent, []
        if unsent and self.down is None:
            self.link.post_all(unsent)
