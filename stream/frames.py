"""Frames: what travels over a link as one piece. Bytes in, frames out; no socket here.

On the wire a frame is a head of 12 bytes, the message, the payload. The head holds, little-endian, the length of the
message (4 bytes) and a word of 8 bytes: in its low 56 bits the length of the payload plus 1, or 0 for no payload; in
the high 8 the number of descriptors that come with the frame. Descriptors arrive beside the bytes, in order. Counting
them tells which frame they belong to, however the kernel cuts the bytes.
"""

import os
import struct
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

HEAD = struct.Struct("<IQ")
MOST_FDS = 16
"""Descriptors that one frame may carry."""
MOST_MESSAGE = (1 << 32) - 1
"""Bytes of the longest message."""
_PAYLOAD_BITS = 56
_BUFFER = 1 << 16
_LARGEST_KEPT = 1 << 20


class Frame(NamedTuple):
    """One message with what came beside it. Whoever takes it owns the payload and closes the descriptors.

    `payload` is uint8 `[bytes]`; `thing` is an object that never left this process.
    """

    message: bytes
    payload: Bytes | None
    fds: list[int]
    thing: object = None


def head(message: int, payload: int | None, fds: int) -> bytes:
    """Return the head of a frame, for a message and a payload of so many bytes, if there is one.

    Raises:
        ValueError: the message is 4 GiB or longer, or there are more than 16 descriptors.
    """
    if message > MOST_MESSAGE or fds > MOST_FDS:
        raise ValueError(f"message of {message} bytes, {fds} descriptors: a link carries {MOST_MESSAGE} and {MOST_FDS}")
    return HEAD.pack(message, (0 if payload is None else payload + 1) | fds << _PAYLOAD_BITS)


class FrameReader:
    """Puts frames together from bytes that come in pieces of any size. For one thread.

    Receive into `space()`, tell `received`, ask `next`.
    """

    def __init__(self) -> None:
        self._buffer = bytearray(_BUFFER)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0  # of the bytes in the buffer that no frame has taken yet
        self._fds: deque[int] = deque()
        self._message = b""
        self._expected_fds = 0
        self._payload: Bytes | None = None
        self._got = 0  # bytes of the payload

    @property
    def idle(self) -> bool:
        """Whether the bytes so far end where a frame ends."""
        return self._payload is None and self._start == self._end

    def space(self) -> memoryview:
        """Return where the next bytes are to be received: at least one byte."""
        if self._payload is not None:
            return self._payload.data[self._got :]
        return self._view[self._end :]

    def received(self, count: int, fds: Sequence[int] = ()) -> None:
        """Tell how many bytes of `space()` were filled, and which descriptors came with them."""
        self._fds.extend(fds)
        if self._payload is not None:
            self._got += count
        else:
            self._end += count

    def next(self) -> Frame | None:
        """Return the next whole frame, None while more bytes are needed.

        Raises:
            ValueError: descriptors that the frame was sent with did not arrive.
        """
        if self._payload is None and not self._begin():
            return None
        payload = self._payload
        if payload is not None:
            if self._got < len(payload):
                return None
            self._payload = None
        return Frame(self._message, payload, self._take_fds())

    def close(self) -> None:
        """Close the descriptors of frames that were not taken."""
        while self._fds:
            os.close(self._fds.popleft())

    def _begin(self) -> bool:
        """Take a head and its message out of the buffer, and the part of the payload that has come; False if short."""
        held = self._end - self._start
        if held < HEAD.size:
            self._make_room(HEAD.size)
            return False
        message, word = HEAD.unpack_from(self._buffer, self._start)
        need = HEAD.size + message
        if held < need:
            self._make_room(need)
            return False
        self._message = bytes(self._view[self._start + HEAD.size : self._start + need])
        self._start += need
        self._expected_fds = word >> _PAYLOAD_BITS
        payload = word & ((1 << _PAYLOAD_BITS) - 1)
        if payload:
            self._begin_payload(payload - 1)
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > _LARGEST_KEPT:
                self._renew(_BUFFER)
        return True

    def _begin_payload(self, size: int) -> None:
        self._payload = np.empty(size, np.uint8)
        self._got = min(size, self._end - self._start)
        np.copyto(self._payload[: self._got], np.frombuffer(self._buffer, np.uint8, self._got, self._start))
        self._start += self._got

    def _make_room(self, need: int) -> None:
        """Let the buffer hold `need` bytes from its beginning on, with what it holds already."""
        if self._start + need <= len(self._buffer):
            return
        held = bytes(self._view[self._start : self._end])
        if need > len(self._buffer):
            self._renew(need)
        self._view[: len(held)] = held
        self._start, self._end = 0, len(held)

    def _renew(self, size: int) -> None:
        self._buffer = bytearray(size)
        self._view = memoryview(self._buffer)

    def _take_fds(self) -> list[int]:
        if self._expected_fds > len(self._fds):
            raise ValueError(
                f"{self._expected_fds - len(self._fds)} descriptors of a message were lost; "
                "this process has too many files open, raise its limit (ulimit -n)"
            )
        return [self._fds.popleft() for _ in range(self._expected_fds)]
