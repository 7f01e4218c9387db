"""stream/link.py: frames both ways, the end of the other side, a cut network, and closing from any thread."""

import errno
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing

import numpy as np
import pytest

from descriptors import new_descriptors, open_descriptors
from ranks import left_behind
from stream.errors import LinkError
from stream.link import Link

LIMIT_S = 20


def connected():
    """Return both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = socket.create_connection(listener.getsockname())
        there, _ = listener.accept()
    return here, there


def unix_pair():
    here, there = socket.socketpair()
    return Link(1, here), Link(0, there)


def tcp_pair():
    (here, there), (watch_here, watch_there) = connected(), connected()
    return Link(1, here, watch_here), Link(0, there, watch_there)


@pytest.fixture(params=[unix_pair, tcp_pair], ids=["memory", "tcp"])
def ends(request):
    ends = request.param()
    yield ends
    for end in ends:
        end.close()
    assert left_behind() == []


@pytest.fixture
def unix_ends():
    ends = unix_pair()
    yield ends
    for end in ends:
        end.close()


@pytest.fixture
def tcp_ends():
    ends = tcp_pair()
    yield ends
    for end in ends:
        end.close()


def drained(link, count):
    """Wait by the descriptor until so many frames were drained."""
    frames = []
    while len(frames) < count:
        assert select.select([link.fileno()], [], [], LIMIT_S)[0]
        frames += link.drain()
    return frames


def test_a_link_tells_whom_it_reaches_and_how(unix_ends, tcp_ends):
    assert [(link.peer, link.kind, link.words) for link in unix_ends] == [
        (1, "memory", "shared memory"),
        (0, "memory", "shared memory"),
    ]
    assert [(link.peer, link.kind, link.words) for link in tcp_ends] == [(1, "tcp", "TCP"), (0, "tcp", "TCP")]
    assert unix_ends[0].watch_fileno() is None
    assert tcp_ends[0].watch_fileno() != tcp_ends[0].fileno()


def test_messages_go_both_ways_whole_and_in_order(ends):
    here, there = ends
    sent = [bytes([number]) * (number * 997) for number in range(60)]
    for message in sent:
        here.post(message)
        there.post(message[::-1])
    assert [there.take().message for _ in sent] == sent
    assert [frame.message for frame in drained(here, len(sent))] == [message[::-1] for message in sent]


def test_payloads_come_beside_their_messages(ends):
    here, there = ends
    payloads = [np.arange(size, dtype=np.uint8) for size in (0, 1, 70_000, 3_000_000)]
    for number, payload in enumerate(payloads):
        here.post(bytes([number]), payload=payload)
    here.post(b"none")
    for number, payload in enumerate(payloads):
        frame = there.take()
        assert frame.message == bytes([number])
        assert np.array_equal(frame.payload, payload)
    assert there.take().payload is None


def test_what_was_sent_and_what_has_come_is_counted(ends):
    here, there = ends
    here.post(b"12345", payload=np.zeros(1000, np.uint8))
    there.take()
    assert here.sent_bytes == there.received_bytes == 12 + 5 + 1000


def test_drain_does_not_wait_and_returns_all_that_has_come(ends):
    here, there = ends
    assert there.drain() == []
    for number in range(5):
        here.post(bytes([number]))
    assert [frame.message for frame in drained(there, 5)] == [bytes([number]) for number in range(5)]
    assert there.drain() == []


def test_a_frame_that_has_come_in_part_is_not_returned(tcp_ends):
    here, there = tcp_ends
    here._data.sendall(b"\x05\0\0\0" + bytes(8) + b"abc")
    assert select.select([there.fileno()], [], [], LIMIT_S)[0]
    assert there.drain() == []
    here._data.sendall(b"de")
    assert there.take().message == b"abcde"


def test_descriptors_come_with_their_frames(unix_ends):
    here, there = unix_ends
    files = [os.memfd_create(str(number)) for number in range(6)]
    for number, fd in enumerate(files):
        here.post(b"plain")
        os.write(fd, bytes([number]))
        here.post(b"with", fds=[fd, fd] if number % 2 else [fd])
        os.close(fd)
    for number, frame in enumerate(frame for frame in drained(there, 12) if frame.message == b"with"):
        assert len(frame.fds) == 1 + number % 2
        for fd in frame.fds:
            assert os.pread(fd, 2, 0) == bytes([number])
            assert not os.get_inheritable(fd)
            os.close(fd)


def test_descriptors_that_do_not_fit_into_this_process_are_an_error(unix_ends):
    here, there = unix_ends
    here.post(b"with", fds=[0, 1, 2])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(LinkError, match="descriptors of a message were lost"):
            there.take()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_a_link_cannot_carry_is_refused(unix_ends, tcp_ends):
    for link in (unix_ends[0], tcp_ends[0]):
        with pytest.raises(ValueError, match="neither objects"):
            link.post(b"", thing=object())
    with pytest.raises(ValueError, match="descriptors"):
        tcp_ends[0].post(b"", fds=[0])
    with pytest.raises(ValueError, match="17 descriptors"):
        unix_ends[0].post(b"", fds=[0] * 17)


def test_frames_that_came_are_taken_before_the_end_is_told(ends):
    here, there = ends
    here.post(b"one")
    here.post(b"two", payload=np.zeros(50_000, np.uint8))
    assert here.flush(LIMIT_S)
    here.close()
    assert [there.take().message, there.take().message] == [b"one", b"two"]
    for call in (there.take, there.drain, there.take):
        with pytest.raises(LinkError, match="link to rank 0: the other side has closed it"):
            call()


def test_drain_returns_the_last_frames_and_then_raises(ends):
    here, there = ends
    here.post(b"last")
    here.close()
    assert [frame.message for frame in drained(there, 1)] == [b"last"]
    assert select.select([there.fileno()], [], [], LIMIT_S)[0]
    with pytest.raises(LinkError):
        there.drain()


def test_frames_come_even_if_the_other_side_left_some_of_ours_unread(ends):
    here, there = ends
    there.post(b"never read")
    assert select.select([here.fileno()], [], [], LIMIT_S)[0]
    here.post(b"last")
    here.close()
    assert there.take().message == b"last"
    with pytest.raises(LinkError, match="the other side has closed it"):
        there.take()


def test_posting_to_a_side_that_is_gone_is_no_error(ends):
    here, there = ends
    there.close()
    for _ in range(5):
        here.post(b"message", payload=np.zeros(10, np.uint8))
    with pytest.raises(LinkError):
        here.take()


@pytest.mark.parametrize("closer", [0, 1], ids=["this side", "the other side"])
def test_closing_wakes_who_takes(ends, closer):
    problems = []

    def take():
        try:
            ends[0].take()
        except LinkError as exc:
            problems.append(exc.problem)

    thread = threading.Thread(target=take)
    thread.start()
    threading.Timer(0.05, ends[closer].close).start()
    thread.join(LIMIT_S)
    assert len(problems) == 1
    assert problems[0].startswith("it was closed on this side" if closer == 0 else "the other side has closed it")


def test_after_closing_nothing_can_be_taken_and_posting_is_dropped(ends):
    here, there = ends
    there.post(b"lost")
    here.close()
    here.close()
    here.post(b"dropped")
    for call in (here.take, here.drain):
        with pytest.raises(LinkError, match="it was closed on this side"):
            call()
    assert here.fileno() == -1


def test_closing_ends_a_thread_that_is_sending_to_a_peer_that_does_not_read(ends):
    here, _ = ends
    here.post(b"big", payload=np.zeros(50_000_000, np.uint8))
    assert left_behind() == ["stream-send-1"]
    here.close()
    assert left_behind() == []


@pytest.mark.parametrize("make", [unix_pair, tcp_pair], ids=["memory", "tcp"])
def test_a_link_leaves_no_descriptor_and_no_thread(make):
    before = open_descriptors()
    here, there = make()
    here.post(b"one", payload=np.zeros(10, np.uint8))
    there.take()
    if here.kind == "memory":
        here.post(b"two", fds=[0])  # never taken
    here.close()
    there.close()
    assert new_descriptors(before) == {}
    assert left_behind() == []


def test_many_threads_post_at_once(ends):
    here, there = ends
    threads = [
        threading.Thread(target=lambda n=number: [here.post(bytes([n]) * 300) for _ in range(300)])
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    frames = drained(there, 1200)
    for thread in threads:
        thread.join(LIMIT_S)
    assert all(frame.message == frame.message[:1] * 300 for frame in frames)


class Fails(socket.socket):
    """The second connection as the kernel leaves it when keepalive has given up."""

    def recv(self, *_):
        raise OSError(errno.ETIMEDOUT, "Connection timed out")


@pytest.mark.parametrize("way", ["take", "drain"])
def test_a_cut_network_ends_the_link_after_the_frames_that_came(way):
    (here, there), (watch_here, watch_there) = connected(), connected()
    failing = Fails(fileno=watch_here.detach())
    with closing(Link(1, here, failing)) as link, closing(Link(0, there)) as other:
        other.post(b"came before")
        assert select.select([link.fileno()], [], [], LIMIT_S)[0]
        watch_there.sendall(b"x")  # makes it readable, as an error does
        assert select.select([link.watch_fileno()], [], [], LIMIT_S)[0]
        call = getattr(link, way)
        found = call()
        assert (found if way == "take" else found[0]).message == b"came before"
        with pytest.raises(LinkError, match="the other host has not answered for 8 s"):
            call()
        with pytest.raises(LinkError, match="the other side has closed it"):
            other.take()
    watch_there.close()


def test_the_end_of_the_second_connection_alone_does_not_lose_what_is_on_its_way(tcp_ends):
    here, there = tcp_ends
    here._watched.shutdown(socket.SHUT_RDWR)
    assert select.select([there.watch_fileno()], [], [], LIMIT_S)[0]
    assert there.drain() == []
    here.post(b"late", payload=np.zeros(100, np.uint8))
    assert there.take().message == b"late"
    assert there._data.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert not here._data.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


PEER = """
import os, socket, sys
import numpy as np
from stream.link import Link

socks = [socket.socket(fileno=int(fd)) for fd in sys.argv[2:]]
link = Link(0, *socks)
link.post(b"here")
if sys.argv[1] == "fork":
    if os.fork() == 0:
        os.read(0, 1)
        os._exit(0)
while True:
    frame = link.take()
    link.post(frame.message, payload=frame.payload)
"""


class Process:
    """Another process at the other end, which sends everything back."""

    def __init__(self, kind, mode="plain"):
        pairs = [socket.socketpair()] if kind == "memory" else [connected(), connected()]
        theirs = [str(there.fileno()) for _, there in pairs]
        self.process = subprocess.Popen(
            [sys.executable, "-c", PEER, mode, *theirs],
            pass_fds=[there.fileno() for _, there in pairs],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for _, there in pairs:
            there.close()
        self.link = Link(1, *(here for here, _ in pairs))
        assert self.link.take().message == b"here"

    def close(self):
        self.link.close()
        self.process.kill()
        self.process.wait(LIMIT_S)
        self.process.stdin.close()


@pytest.mark.ranks
@pytest.mark.parametrize("kind", ["memory", "tcp"])
@pytest.mark.parametrize("mode", ["plain", "fork"])
def test_the_end_of_a_killed_process_is_the_end_of_the_link(kind, mode):
    with closing(Process(kind, mode)) as other:
        other.link.post(b"echo", payload=np.arange(100, dtype=np.uint8))
        assert other.link.take().payload.tolist() == list(range(100))
        other.process.send_signal(signal.SIGKILL)
        with pytest.raises(LinkError, match="link to rank 1: the other side has closed it: its process has ended"):
            other.link.take()


@pytest.mark.ranks
@pytest.mark.parametrize("kind", ["memory", "tcp"])
def test_a_stopped_process_is_waited_for(kind):
    with closing(Process(kind)) as other:
        other.process.send_signal(signal.SIGSTOP)
        other.link.post(b"wake up")
        other.link.post(b"big", payload=np.zeros(20_000_000, np.uint8))
        assert not other.link.flush(0.1)
        assert other.link.drain() == []
        other.process.send_signal(signal.SIGCONT)
        assert other.link.take().message == b"wake up"
        assert len(other.link.take().payload) == 20_000_000
