"""stream/errands.py: messages and descriptors arrive whole, whatever pieces the socket makes of them."""

import os
import socket
import threading

import numpy as np
import pytest

from helpers_made import memory_file
from stream.errands import (
    AddFile,
    AddLane,
    Decode,
    Decoded,
    Done,
    DropFile,
    Failed,
    Read,
    Setup,
    answer,
    hear,
    mapped,
    post,
)

pytestmark = pytest.mark.timeout(30)

MESSAGES = [
    Setup(2, 100, (24, 32, "squash", "bicubic")),
    Setup(1, 2**40, None),
    AddFile(3, writable=True),
    DropFile(3),
    AddLane(),
    Decode(4, [("key.jpg", -1, 2**33, 7), ("ключ.jpg", 1, 0, 0)], 2**33),
    Read(5, [("/data/a.tar", [(2**40, 2**40 + 100), (7, 9)], 2, 64)]),
    Decoded([(1, 2), (3, 4)], 2**20),
    Done(),
    Failed("store", ["url", "read", "cause"], 21),
]


@pytest.fixture
def pair():
    ends = socket.socketpair()
    yield ends
    for end in ends:
        end.close()


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("receive", [answer, lambda sock: hear(sock)[0]], ids=["answer", "hear"])
def test_a_message_comes_back_as_it_was(pair, message, receive):
    post(pair[0], message)
    assert receive(pair[1]) == message


def test_messages_that_were_sent_together_are_heard_one_by_one(pair):
    for message in MESSAGES:
        post(pair[0], message)
    assert [hear(pair[1]) for _ in MESSAGES] == [(message, []) for message in MESSAGES]


@pytest.mark.parametrize("receive", [answer, lambda sock: hear(sock)[0]], ids=["answer", "hear"])
def test_a_message_larger_than_the_socket_holds_comes_whole(pair, receive):
    message = Decode(0, [(f"{number:0200}", 0, 0, 0) for number in range(20_000)], 0)
    sender = threading.Thread(target=post, args=(pair[0], message))
    sender.start()
    assert receive(pair[1]) == message
    sender.join()


@pytest.mark.parametrize("receive", [answer, lambda sock: hear(sock)[0]], ids=["answer", "hear"])
def test_a_message_that_comes_byte_by_byte_comes_whole(pair, receive):
    read, write = socket.socketpair()
    post(pair[0], MESSAGES[0])
    data = pair[1].recv(1000)

    def drip():
        for byte in data:
            write.send(bytes([byte]))

    sender = threading.Thread(target=drip)
    sender.start()
    assert receive(read) == MESSAGES[0]
    sender.join()
    read.close()
    write.close()


def test_descriptors_come_with_the_message_that_speaks_of_them(pair):
    fds = [memory_file(text)[0] for text in (b"one", b"two")]
    post(pair[0], DropFile(1))
    for number, fd in enumerate(fds):
        post(pair[0], AddFile(number, writable=False), [fd])
        os.close(fd)
    assert hear(pair[1]) == (DropFile(1), [])
    for number, text in enumerate((b"one", b"two")):
        message, (fd,) = hear(pair[1])
        assert message == AddFile(number, writable=False)
        assert os.pread(fd, 10, 0) == text
        assert not os.get_inheritable(fd)
        os.close(fd)


@pytest.mark.parametrize("receive", [answer, hear])
def test_the_end_of_a_connection_is_none(pair, receive):
    pair[0].close()
    assert receive(pair[1]) is None


@pytest.mark.parametrize("receive", [answer, hear])
@pytest.mark.parametrize("size", [2, 6])
def test_an_end_within_a_message_is_an_error(pair, receive, size):
    pair[0].send(b"\x09\0\0\0abcd"[:size])
    pair[0].close()
    with pytest.raises(ConnectionResetError):
        receive(pair[1])


def test_a_mapping_shows_what_the_other_side_writes():
    fd, _ = memory_file(b"abc")
    seen, written = mapped(fd, writable=False), mapped(fd, writable=True)
    os.close(fd)
    written[1] = ord("x")
    assert seen.tobytes() == b"axc"
    assert not seen.flags.writeable
    assert seen.dtype == np.uint8


def test_an_empty_file_is_an_empty_mapping():
    fd, _ = memory_file()
    assert mapped(fd, writable=True).size == 0
    os.close(fd)
