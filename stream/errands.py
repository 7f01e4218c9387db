"""What a process and its helper say to each other, as bytes and descriptors on a connected Unix stream socket.

A message is its length (4 bytes, little-endian) and its msgspec bytes. Descriptors travel with the first of them
(SCM_RIGHTS), so that they come with the message that speaks of them.

There is one control connection, on which only the process speaks, and any number of lanes. A lane belongs to one
thread at a time, which asks and then waits for the one answer; so nobody sorts answers, and waiting costs one wake-up.
What a lane asks may need what was said on the control connection just before: `after` is how many control messages
must have been heard first.
"""

import mmap
import os
import socket
from array import array
from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec
import numpy as np

Memory: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint8]]

DecodeJob: TypeAlias = tuple[str, int, int, int]
"""One image: its name in errors, the number of its memory file, the offset and the size of its bytes there."""
ReadJob: TypeAlias = tuple[str, list[tuple[int, int]], int, int]
"""Ranges (start, end) of a file: its path, the ranges, number of the memory file that they fill one behind the other,
offset there."""

OWN_INPUT = -1
"""Number of a lane's own input file, for images that lie in ordinary memory."""

_HEAD = 4
_MOST_AT_ONCE = 2**18
_DESCRIPTORS = 3


class Setup(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The first control message: `resize` is height, width, mode and interpolation of a `ResizeSpec`."""

    threads: int
    max_pixels: int
    resize: tuple[int, int, str, str] | None


class AddFile(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A memory file to read images from, or to read into; comes with its descriptor."""

    number: int
    writable: bool


class DropFile(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A memory file that no job will name again."""

    number: int


class AddLane(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A lane; comes with its socket, its output file and its input file."""


class Decode(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Decode these images into the output file; `input_bytes` of the input file hold images."""

    after: int
    jobs: list[DecodeJob]
    input_bytes: int


class Read(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Read these bytes of files into memory files."""

    after: int
    jobs: list[ReadJob]


class Decoded(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The images lie in the output file one after another, uint8 [height, width, 3] each; it is `file_bytes` long."""

    sizes: list[tuple[int, int]]
    file_bytes: int


class Done(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """All was read."""


class Failed(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The first job in order that failed, and why.

    The words are the arguments of what to raise: a `DecodeError`, a `StoreError`, a `FileNotFoundError`; of anything
    else they are one, its traceback.
    """

    kind: Literal["decode", "store", "missing", "other"]
    words: list[str]
    errno: int | None = None


Message: TypeAlias = Setup | AddFile | DropFile | AddLane | Decode | Read | Decoded | Done | Failed

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Message)


def mapped(fd: int, *, writable: bool) -> Memory:
    """The whole of a memory file as uint8 [size], its pages at hand; unmapped when the last view of it is gone."""
    size = os.fstat(fd).st_size
    if size == 0:
        return np.empty(0, np.uint8)
    prot = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
    return np.frombuffer(mmap.mmap(fd, size, mmap.MAP_SHARED | mmap.MAP_POPULATE, prot), np.uint8)


def post(sock: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Send a message. A thread that holds the GIL gives it up once, unless the message is longer than the socket takes.

    Raises:
        OSError: The other side is gone.
    """
    body = _ENCODER.encode(message)
    data = len(body).to_bytes(_HEAD, "little") + body
    sent = socket.send_fds(sock, [data], fds) if fds else sock.send(data)
    if sent < len(data):
        sock.sendall(memoryview(data)[sent:])


def answer(sock: socket.socket) -> Message | None:
    """Wait for the only message under way; None at the end of the connection. One call of the system if it is short.

    Raises:
        OSError: The connection broke.
    """
    data = sock.recv(_MOST_AT_ONCE)
    if len(data) < _HEAD:
        data += _exactly(sock, _HEAD - len(data)) if data else b""
    if not data:
        return None
    size = _HEAD + int.from_bytes(data[:_HEAD], "little")
    return _DECODER.decode((data + _exactly(sock, size - len(data)))[_HEAD:])


def hear(sock: socket.socket) -> tuple[Message, list[int]] | None:
    """Wait for the next message and its descriptors, which the caller owns; None at the end of the connection.

    Raises:
        OSError: The connection broke.
    """
    fds = array("i")
    # socket.recv_fds would drop the flag, and a program that is started meanwhile inherit them
    head, extras, _, _ = sock.recvmsg(_HEAD, socket.CMSG_LEN(_DESCRIPTORS * fds.itemsize), socket.MSG_CMSG_CLOEXEC)
    for _, _, data in extras:
        fds.frombytes(data)
    if not head:
        return None
    head += _exactly(sock, _HEAD - len(head))
    return _DECODER.decode(_exactly(sock, int.from_bytes(head, "little"))), fds.tolist()


def _exactly(sock: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = sock.recv(min(size, _MOST_AT_ONCE))
        if not part:
            raise ConnectionResetError("the connection ended within a message")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
