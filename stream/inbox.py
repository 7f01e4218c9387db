"""Where a rank's messages and portions arrive: its link, and its view of the memory that the reader shares with it.

It lives as long as the link, so that memory files announced during an iteration that was left are known to the next.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np

from stream.frames import Bytes, Frame
from stream.link import Link
from stream.loans import Loans
from stream.local_link import LocalLink
from stream.protocol import BESIDE, Again, Bye, Message, Portion, body_start, decode
from stream.slab_view import SlabView


class Arrived:
    """A portion as it came, in the memory that it came in.

    Attributes:
        portion: What the reader said of it.
        thing: The batch, where it never left this process.
        owned: Whether the memory is this portion's alone, so that a batch may be made of views of it.
        lent: Whether it goes back to the reader once nobody has a view of it.
    """

    def __init__(self, portion: Portion, memory: Bytes | None, thing: object, view: SlabView | None) -> None:
        self.portion, self.thing, self.lent = portion, thing, portion.lent
        self.owned = portion.lent or portion.file == BESIDE
        self._memory, self._view = memory, view

    @property
    def header(self) -> bytes:
        """The portion's header."""
        return b"" if self._memory is None else self._memory[: self.portion.header].tobytes()

    @property
    def body(self) -> Bytes:
        """What follows the header: uint8 [bytes], read-only in shared memory."""
        if self._memory is None:
            return np.empty(0, dtype=np.uint8)
        return self._memory[body_start(self.portion.header) :]

    def check(self) -> None:
        """Make sure that the span still is this portion's.

        Raises:
            SlabError: the reader has written something else there meanwhile.
        """
        if self._view is not None:
            self._view.check(self.portion.file, self.portion.offset, self.portion.number)

    def release(self) -> None:
        """Let go of the memory."""
        self._memory, self.thing = None, None


class Inbox:
    """One rank's end of its link. `post` may be called by any thread, the rest by one."""

    def __init__(self, link: Link | LocalLink, view: SlabView | None) -> None:
        self.link, self._view, self.loans = link, view, Loans()
        self.received_bytes = 0
        self._early: list[tuple[Message, Frame]] = []
        self.closed_on_purpose = False
        """Whether the other side said that it closes the link, or a rank's link, on purpose."""

    def post(self, message: bytes) -> None:
        """Send a message to the reader."""
        self.link.post(message)

    def listen(self, listener: Callable[[], None] | None) -> bool:
        """Let who posts call `listener`, see `LocalLink.listen`; False where it cannot, since it is another process."""
        if not isinstance(self.link, LocalLink):
            return False
        self.link.listen(listener)
        return True

    def filenos(self) -> list[int]:
        """Return the descriptors that become readable when something came, or the link ended."""
        watch = self.link.watch_fileno()
        return [self.link.fileno()] if watch is None else [self.link.fileno(), watch]

    def take(self, iteration: int) -> Iterator[tuple[Message, Arrived | None]]:
        """Yield the messages of this iteration that have come, portions with their memory; never waits.

        Those of an earlier iteration are dropped, those of a later one kept for it.

        Raises:
            LinkError: the link is down; all messages before that were yielded.
            SlabError: shared memory is not what the reader says.
        """
        early, self._early = self._early, []
        for message, frame in chain(early, self._heard()):
            number = getattr(message, "iteration", -1)
            if number > iteration:
                self._early.append((message, frame))
            elif number == iteration:
                yield message, self._arrived(message, frame) if isinstance(message, Portion) else None

    def close(self) -> None:
        """Close the link and unmap what is no longer used. Idempotent."""
        self.link.close()
        if self._view is not None:
            self._view.close()

    def _heard(self) -> Iterator[tuple[Message, Frame]]:
        for frame in self.link.drain():
            message = decode(frame.message)
            self.closed_on_purpose |= isinstance(message, Bye | Again)
            if isinstance(message, Portion):
                self._map(message, frame)
            yield message, frame

    def _map(self, portion: Portion, frame: Frame) -> None:
        if self._view is None:
            return
        for fd in frame.fds:
            self._view.add(portion.file, fd, lent=portion.lent)
        for file in portion.gone:
            self._view.drop(file)

    def _arrived(self, portion: Portion, frame: Frame) -> Arrived:
        self.received_bytes += portion.size
        if portion.file < 0:
            return Arrived(portion, frame.payload, frame.thing, None)
        if self._view is None:
            raise TypeError("a portion in shared memory came over a link without it")
        memory: Any = self._view.open(portion.file, portion.offset, portion.size, portion.number)
        if portion.lent:
            self.loans.lend(portion.number, memory)
        return Arrived(portion, memory, None, self._view)
