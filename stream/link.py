"""A link: the connection between the reader and one rank in another process.

Invariants:
- frames arrive whole, in order, once, and those that arrived are taken before the end of the link is told;
- the end of the other process is the end of the link; silence is not, however long: a stopped or slow peer is waited
  for. Over TCP a second connection, which never carries data, notices a network that is cut, within 8 s;
- `post` neither waits for the peer nor fails because of it; one thread at a time takes; any thread may close.
"""

import array
import select
import socket
import threading
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from stream.errors import LinkError
from stream.frames import MOST_FDS, Frame, FrameReader, head
from stream.outbox import Outbox
from stream.sockets import SILENCE_S, ours_alone, shut, watch

Bytes = npt.NDArray[np.uint8]

# As plain numbers: to combine members of an enumeration takes longer than the call
_AT_ONCE = int(socket.MSG_DONTWAIT)
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
_FD_SPACE = socket.CMSG_SPACE(MOST_FDS * array.array("i").itemsize)
_CLOSED_HERE = "it was closed on this side"
_CLOSED_THERE = "the other side has closed it: its process has ended, or its loader was closed"
_CUT = f"the other host has not answered for {SILENCE_S} s: the network between is cut, or the host is down"


class Link:
    """One connected stream socket, framed both ways; it owns the sockets.

    Args:
        peer: The rank at the other end.
        data: Unix: a link between processes of one host, which carries descriptors. TCP: a link that carries payloads.
        watched: For TCP, a second connection to the same peer on which both sides keep silent.

    Attributes:
        peer: As given.
        kind: `memory` over a Unix socket, else `tcp`.
        received_bytes: What has come, frame heads included.
    """

    def __init__(self, peer: int, data: socket.socket, watched: socket.socket | None = None) -> None:
        self.peer = peer
        self.kind: Literal["memory", "tcp"] = "memory" if data.family == socket.AF_UNIX else "tcp"
        self.received_bytes = 0
        self._data, self._watched = ours_alone(data), watched
        self._frames = FrameReader()
        self._outbox = Outbox(data, f"stream-send-{peer}")
        self._taking = threading.Lock()
        self._closing = threading.Lock()
        self._closed = False
        self._emptied = False  # the last receive took all that was there
        self._problem: str | None = None  # the link is down, and all that came before has been put together
        self._cause: str | None = None  # why its end will come
        self._poll: select.poll | None = None
        data.settimeout(None)
        if self.kind == "tcp":
            data.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if watched is not None:
            self._watch(watched)

    @property
    def words(self) -> str:
        """How the peer is reached, in words."""
        return "shared memory" if self.kind == "memory" else "TCP"

    def post(
        self, message: bytes, *, payload: Bytes | None = None, fds: Sequence[int] = (), thing: object = None
    ) -> None:
        """Send a frame, or drop it once the link is down. From any thread.

        A payload (uint8 `[bytes]`, C-contiguous) is sent by a thread and must not change until the peer has answered.
        Descriptors stay the caller's. Over TCP there are none.

        Raises:
            ValueError: the message or the number of descriptors is beyond what a frame holds; a thing is given, which
                cannot leave its process; descriptors are given to a TCP link.
        """
        if thing is not None or (fds and self.kind == "tcp"):
            raise ValueError(f"a {self.kind} link carries neither objects nor, over tcp, descriptors")
        start = head(len(message), None if payload is None else len(payload), len(fds))
        self._outbox.post(start + message, payload, fds)

    @property
    def sent_bytes(self) -> int:
        """Bytes of what was posted, frame heads included."""
        return self._outbox.posted_bytes

    def post_all(self, messages: Sequence[bytes]) -> None:
        """Send messages as one piece, or drop them once the link is down. From any thread."""
        data = b"".join([piece for message in messages for piece in (head(len(message), None, 0), message)])
        self._outbox.post(data, None, ())

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was posted is on its way or dropped; False if it is not in time."""
        return self._outbox.flush(timeout_s)

    def take(self) -> Frame:
        """Wait for the next frame. For one thread at a time.

        Raises:
            LinkError: the link is down, and every frame that came was taken; or it was closed here.
        """
        with self._taking:
            while True:
                if (frame := self._next()) is not None:
                    return frame
                if self._problem is not None:
                    raise LinkError(self.peer, self._problem)
                if self._poll is not None and not self._closed:
                    self._wait(self._poll)
                self._receive(0)

    def drain(self) -> list[Frame]:
        """Return the frames that have come whole, without waiting. For one thread at a time.

        Raises:
            LinkError: as `take`.
        """
        with self._taking:
            if self._poll is not None and not self._closed:
                self._look()
            frames: list[Frame] = []
            while True:
                while (frame := self._next()) is not None:
                    frames.append(frame)
                if self._problem is not None or self._emptied or not self._receive(_AT_ONCE):
                    break
            self._emptied = False
            if self._problem is not None and not frames:
                raise LinkError(self.peer, self._problem)
            return frames

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when `drain` has something to tell; -1 once closed."""
        return self._data.fileno()

    def watch_fileno(self) -> int | None:
        """Return the descriptor of the second connection, which becomes readable when the network is cut."""
        return None if self._watched is None else self._watched.fileno()

    def close(self) -> None:
        """End the link; who takes gets a LinkError at once. What was not sent yet is dropped. Idempotent."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            shut(self._data)
            self._outbox.close()
            with self._taking:  # nobody may be inside a call on a descriptor that is being closed
                self._problem = _CLOSED_HERE
                self._frames.close()
                self._data.close()
                if self._watched is not None:
                    self._watched.close()

    def _next(self) -> Frame | None:
        if self._closed:
            self._problem = _CLOSED_HERE
            return None
        try:
            return self._frames.next()
        except ValueError as exc:
            self._end(str(exc))
            return None

    def _receive(self, flags: int) -> bool:
        """Receive once; False if nothing was there. The end of the link, if that was what came, is in `_problem`."""
        fds: list[int] = []
        space = self._frames.space()
        try:
            if self.kind == "memory":
                flags |= _CLOSE_ON_EXEC
                count, rights, _, _ = self._data.recvmsg_into([space], _FD_SPACE, flags)
                fds = _fds(rights) if rights else fds
            else:
                count = self._data.recv_into(space, 0, flags)
        except BlockingIOError:
            return False
        except OSError as exc:
            self._end(f"{_CLOSED_THERE} ({exc})")
            return True
        self._emptied = 0 < count < len(space)  # whatever else there is makes it readable once more
        self._frames.received(count, fds)
        self.received_bytes += count
        if not count:
            self._end(_CLOSED_THERE)
        return True

    def _end(self, problem: str) -> None:
        if self._problem is None:
            self._problem = _CLOSED_HERE if self._closed else self._cause or self._outbox.failure or problem

    def _watch(self, watched: socket.socket) -> None:
        ours_alone(watched).settimeout(None)
        watch(watched)
        self._poll = select.poll()
        self._poll.register(self._data, select.POLLIN)
        self._poll.register(watched, select.POLLIN)

    def _wait(self, poll: select.poll) -> None:
        if any(fd != self._data.fileno() for fd, _ in poll.poll()):
            self._look()

    def _look(self) -> None:
        """See whether the second connection has ended, and why."""
        if self._watched is None or self._poll is None:
            return
        try:
            if self._watched.recv(1, socket.MSG_DONTWAIT):
                return  # nobody of ours sends here; it means nothing
        except BlockingIOError:
            return
        except ConnectionResetError:
            pass  # its process was killed; the other connection tells it after what it sent before
        except OSError:
            self._cause = _CUT
            shut(self._data)
        # The other side has gone, or cuts the link: what it sent before may still be on its way. Until that has come
        # the data connection watches itself.
        self._poll = None
        watch(self._data)


def _fds(rights: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in rights:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found)
