"""The sending side of a link: whoever posts is never held up by a slow peer.

Invariants:
- what is posted is sent whole and in order;
- a message alone is sent at once if the socket takes it. What it does not take, and every payload, is sent by a thread,
  which is started when it is first needed and ended by `close`;
- a peer that is gone is no error here: the rest is dropped and the connection shut, so that the taking side sees it.
"""

import os
import socket
import threading
from array import array
from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stream.sockets import shut

Bytes = npt.NDArray[np.uint8]

_NOW = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


class _Parcel:
    """What is still to be sent of one frame, with descriptors of its own."""

    def __init__(self, pieces: list[memoryview], fds: Sequence[int]) -> None:
        self.pieces = pieces
        self.fds = [os.dup(fd) for fd in fds]

    def close(self) -> None:
        while self.fds:
            os.close(self.fds.pop())


class Outbox:
    """Sends over one connected stream socket. `post` may be called from any thread.

    Args:
        sock: The socket; blocking, and not closed before `close` has returned.
        name: Name of the thread.
    """

    def __init__(self, sock: socket.socket, name: str) -> None:
        self._sock, self._name = sock, name
        self._state = threading.Condition()
        self._parcels: deque[_Parcel] = deque()  # the first stays here until it is sent
        self._thread: threading.Thread | None = None
        self._ended = False
        self.failure: str | None = None
        """Why nothing more can be sent, in words."""
        self.posted_bytes = 0
        """Bytes of what was posted, while the connection was up."""

    def post(self, data: bytes, payload: Bytes | None, fds: Sequence[int]) -> None:
        """Send one frame: `data` with `fds` at its first byte, then the payload, which must not change before that.

        Once the connection is down it is dropped.
        """
        with self._state:
            if self._ended:
                return
            self.posted_bytes += len(data) + (0 if payload is None else len(payload))
            sent = self._send_now(data, fds) if payload is None and not self._parcels else 0
            if sent == len(data) and payload is None:
                return
            self._queue(data, sent, payload, fds)

    def flush(self, timeout_s: float) -> bool:
        """Wait until the socket has taken everything; False if it did not in time."""
        with self._state:
            return self._state.wait_for(lambda: self._ended or not self._parcels, timeout_s)

    def close(self) -> None:
        """End the thread and drop what was not sent. The socket must be shut before. Idempotent."""
        with self._state:
            self._end(None)
            thread = self._thread
        if thread is not None:
            thread.join()
        while self._parcels:
            self._parcels.popleft().close()

    def _queue(self, data: bytes, sent: int, payload: Bytes | None, fds: Sequence[int]) -> None:
        if self._ended:
            return
        pieces = [memoryview(data)[sent:]]
        if payload is not None and len(payload):
            pieces.append(payload.data)
        self._parcels.append(_Parcel(pieces, () if sent else fds))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._state.notify_all()

    def _send_now(self, data: bytes, fds: Sequence[int]) -> int:
        """Send what the socket takes at once; return how many bytes that was."""
        try:
            return self._sock.sendmsg([data], _rights(fds), _NOW) if fds else self._sock.send(data, _NOW)
        except BlockingIOError:
            return 0
        except OSError as exc:
            self._end(exc)
            return 0

    def _run(self) -> None:
        while (parcel := self._first()) is not None:
            try:
                self._send(parcel)
            except OSError as exc:
                with self._state:
                    self._end(exc)
                return
            with self._state:
                self._parcels.popleft()
                self._state.notify_all()

    def _first(self) -> _Parcel | None:
        with self._state:
            self._state.wait_for(lambda: self._ended or self._parcels)
            return None if self._ended else self._parcels[0]

    def _send(self, parcel: _Parcel) -> None:
        pieces = parcel.pieces
        while pieces:
            sent = self._sock.sendmsg(pieces, _rights(parcel.fds), socket.MSG_NOSIGNAL)
            parcel.close()  # they went with the first byte
            while pieces and sent >= len(pieces[0]):
                sent -= len(pieces.pop(0))
            if sent:
                pieces[0] = pieces[0][sent:]

    def _end(self, exc: OSError | None) -> None:
        if exc is not None and not self._ended:
            self.failure = f"nothing can be sent to it any more ({exc})"
            shut(self._sock)
        self._ended = True
        self._state.notify_all()


def _rights(fds: Sequence[int]) -> "list[tuple[int, int, array[int]]]":
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
