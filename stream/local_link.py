"""The link of rank 0 to the reader in its own process: frames pass by reference.

Who listens at an end is called by the thread that posts, so what it does with a frame costs no change of threads.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from stream.errors import LinkError
from stream.frames import Frame
from stream.wake import Bell

Bytes = npt.NDArray[np.uint8]


class LocalLink:
    """One end of a link within a process; made by `local_pair`. The same calls as `Link`, from any thread.

    Attributes:
        peer: The rank at the other end.
        kind: `local`.
        sent_bytes: 0, since nothing is copied.
        received_bytes: 0.
    """

    kind: Literal["local"] = "local"

    def __init__(self, peer: int, state: threading.Condition) -> None:
        self.peer = peer
        self.sent_bytes = self.received_bytes = 0
        self._state = state
        self._other: LocalLink = self
        self._frames: deque[Frame] = deque()
        self._bell = Bell()
        self._listener: Callable[[], None] | None = None
        self._closed = False

    @property
    def words(self) -> str:
        """How the peer is reached, in words."""
        return "the same process"

    def post(
        self, message: bytes, *, payload: Bytes | None = None, fds: Sequence[int] = (), thing: object = None
    ) -> None:
        """Hand a frame to the other end, or drop it once either end is closed. Payload and thing are not copied."""
        self._post([Frame(message, payload, [os.dup(fd) for fd in fds], thing)])

    def post_all(self, messages: Sequence[bytes]) -> None:
        """Hand messages to the other end at once, or drop them once either end is closed."""
        self._post([Frame(message, None, []) for message in messages])

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Let `listener` be called, in any thread, when `drain` has something to tell; None: only the descriptor tells.

        It is not called for what is there already, and may still be called for a moment after it was replaced.
        """
        with self._state:
            self._listener = listener
            if self._frames or self._is_down():
                self._bell.ring()

    def flush(self, timeout_s: float) -> bool:
        """Wait for nothing: what was posted is there."""
        del timeout_s
        return True

    def take(self) -> Frame:
        """Wait for the next frame.

        Raises:
            LinkError: the other end is closed and every frame was taken, or this end is closed.
        """
        with self._state:
            self._state.wait_for(lambda: self._frames or self._is_down())
            if self._frames:
                return self._frames.popleft()
            raise self._down()

    def drain(self) -> list[Frame]:
        """Return the frames that have come, without waiting.

        Raises:
            LinkError: as `take`.
        """
        with self._state:
            if not self._is_down():
                self._bell.silence()
            frames = list(self._frames)
            self._frames.clear()
            if not frames and self._is_down():
                raise self._down()
            return frames

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when `drain` has something to tell; -1 once closed."""
        return self._bell.fileno()

    def watch_fileno(self) -> int | None:
        """Return None: there is no network to watch."""
        return None

    def close(self) -> None:
        """End the link; who takes gets a LinkError at once, at the other end after the frames that came. Idempotent."""
        with self._state:
            self._closed = True
            _drop(self._frames)
            self._frames.clear()
            self._bell.close()
            self._state.notify_all()
        self._other._wake()  # noqa: SLF001 - the two ends are one object in two hands

    def _post(self, frames: list[Frame]) -> None:
        other = self._other
        with self._state:
            if not (self._closed or other._closed):  # noqa: SLF001 - as above
                other._frames.extend(frames)  # noqa: SLF001
                self._state.notify_all()
                frames = []
        if frames:
            _drop(frames)
        else:
            other._wake()  # noqa: SLF001

    def _wake(self) -> None:
        listener = self._listener
        if listener is None:
            self._bell.ring()
        else:
            listener()

    def _is_down(self) -> bool:
        return self._closed or self._other._closed  # noqa: SLF001 - as above

    def _down(self) -> LinkError:
        return LinkError(self.peer, "it was closed on this side" if self._closed else "the other side has closed it")


def _drop(frames: Iterable[Frame]) -> None:
    for frame in frames:
        for fd in frame.fds:
            os.close(fd)


def local_pair(rank: int = 0) -> tuple[LocalLink, LocalLink]:
    """Return the reader's end and the rank's end of a link in which both live in this process."""
    state = threading.Condition()
    reader, own = LocalLink(rank, state), LocalLink(rank, state)
    reader._other, own._other = own, reader  # noqa: SLF001 - as above
    return reader, own
