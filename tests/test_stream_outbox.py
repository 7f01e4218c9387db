"""stream/outbox.py: posting never waits; what is posted is sent whole, in order."""

import os
import socket
import threading

import numpy as np
import pytest

from descriptors import new_descriptors, open_descriptors
from ranks import left_behind
from stream.outbox import Outbox

LIMIT_S = 20


class Ends:
    def __init__(self):
        self.here, self.there = socket.socketpair()
        self.there.settimeout(LIMIT_S)
        self.outbox = Outbox(self.here, "stream-send-test")

    def read(self, count):
        found = b""
        while len(found) < count:
            piece = self.there.recv(count - len(found))
            assert piece
            found += piece
        return found

    def fill(self):
        """Post until the socket takes no more; return what was posted."""
        posted = b""
        while not left_behind():
            posted += bytes([len(posted) // 5000 % 251]) * 5000
            self.outbox.post(posted[-5000:], None, ())
        return posted

    def close(self):
        self.here.shutdown(socket.SHUT_RDWR)
        self.outbox.close()
        self.here.close()
        self.there.close()


@pytest.fixture
def ends():
    ends = Ends()
    yield ends
    ends.close()
    assert left_behind() == []


def test_messages_are_sent_at_once_without_a_thread(ends):
    for number in range(100):
        ends.outbox.post(bytes([number]), None, ())
    assert left_behind() == []
    assert ends.read(100) == bytes(range(100))


def test_a_payload_is_sent_by_the_thread(ends):
    payload = np.arange(3_000_000, dtype=np.uint32).view(np.uint8)
    ends.outbox.post(b"head", payload, ())
    ends.outbox.post(b"after", None, ())
    assert left_behind() == ["stream-send-test"]
    assert ends.read(4 + len(payload) + 5) == b"head" + payload.tobytes() + b"after"
    assert ends.outbox.flush(LIMIT_S)


def test_an_empty_payload_is_sent_too(ends):
    ends.outbox.post(b"head", np.empty(0, np.uint8), ())
    assert ends.read(4) == b"head"


def test_a_peer_that_does_not_read_holds_nobody_up(ends):
    posted = ends.fill()
    for _ in range(50):
        ends.outbox.post(b"x" * 100_000, None, ())
    assert not ends.outbox.flush(0.05)
    assert ends.read(len(posted) + 5_000_000) == posted + b"x" * 5_000_000
    assert ends.outbox.flush(LIMIT_S)


def test_descriptors_that_wait_are_copies_and_go_with_their_message(ends):
    posted = ends.fill()
    fd = os.open("/dev/null", os.O_RDONLY)
    ends.outbox.post(b"message", None, [fd])
    os.close(fd)
    ends.read(len(posted))
    data, fds, _, _ = socket.recv_fds(ends.there, 7, 4)
    assert data == b"message"
    assert len(fds) == 1
    os.close(fds[0])


def test_a_peer_that_is_gone_is_no_error_but_ends_the_connection(ends):
    ends.there.close()
    for _ in range(3):
        ends.outbox.post(b"message", None, ())
    assert "Broken pipe" in ends.outbox.failure
    assert ends.here.recv(1) == b""
    assert ends.outbox.flush(0.0)


def test_a_peer_that_goes_while_the_thread_sends_is_no_error(ends):
    ends.fill()
    ends.there.close()
    assert ends.outbox.flush(LIMIT_S)
    ends.outbox.post(b"dropped", np.zeros(10, np.uint8), ())
    assert ends.outbox.failure.startswith("nothing can be sent to it any more")


def test_closing_drops_what_waits_with_its_descriptors():
    before = open_descriptors()
    ends = Ends()
    ends.fill()
    fd = os.open("/dev/null", os.O_RDONLY)
    ends.outbox.post(b"message", None, [fd])
    os.close(fd)
    ends.close()
    assert new_descriptors(before) == {}
    assert left_behind() == []
    ends.outbox.post(b"dropped", None, ())
    ends.outbox.close()


def test_threads_that_post_at_once_do_not_mix_their_messages(ends):
    payload = np.full(50_000, 200, np.uint8)

    def post(number):
        for turn in range(20):
            ends.outbox.post(bytes([number]) * 100, payload if turn % 3 == 0 else None, ())

    threads = [threading.Thread(target=post, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    data = ends.read(4 * (20 * 100 + 7 * 50_000))
    for thread in threads:
        thread.join(LIMIT_S)
    found = []
    while data:
        found.append(data[0])
        assert data[:100] == data[:1] * 100
        data = data[50_100 if data[100:101] == b"\xc8" else 100 :]
    assert sorted(found) == [number for number in range(4) for _ in range(20)]
