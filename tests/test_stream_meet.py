"""stream/meet.py: every rank finds the reader, by memory where it can, and nobody else gets in."""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, closing

import msgspec
import pytest

from descriptors import new_descriptors, open_descriptors
from ranks import PROGRAMS, left_behind
from stream import meet
from stream.errors import LinkError, RankError, SlabError
from stream.handshake import Invitation
from stream.meet import host, join
from stream.slab import Slab

LIMIT_S = 20


class Board:
    """A fake broadcast: rank 0's bytes go to everybody, once each."""

    def __init__(self, others):
        self._places = {rank: queue.Queue() for rank in others}
        self.shared = []

    def of_host(self, data):
        self.shared.append(data)
        for place in self._places.values():
            place.put(data)
        return data

    def of_rank(self, rank):
        return lambda data: self._places[rank].get(timeout=LIMIT_S) if data == b"" else pytest.fail("not rank 0")


def meeting(others, *, same_host=True, name="train", names=None, port=0, address="127.0.0.1", timeout_s=LIMIT_S):
    """Let rank 0 and others meet in threads; return what each got, a link or an error."""
    board, found = Board(others), {}

    def come(rank):
        try:
            found[rank] = join(board.of_rank(rank), name=(names or {}).get(rank, name), rank=rank, same_host=same_host)
        except LinkError as exc:
            found[rank] = exc

    threads = [threading.Thread(target=come, args=(rank,)) for rank in others]
    for thread in threads:
        thread.start()
    try:
        found[0] = host(board.of_host, name=name, ranks=list(others), port=port, address=address, timeout_s=timeout_s)
    except (LinkError, RankError) as exc:
        found[0] = exc
    for thread in threads:
        thread.join(LIMIT_S)
    assert len(board.shared) == 1
    assert len(board.shared[0]) <= 1000
    return found


def close(found):
    for one in found.values():
        for link in one.values() if isinstance(one, dict) else [one]:
            if not isinstance(link, Exception):
                link.close()


@pytest.mark.parametrize(("same_host", "kind"), [(True, "memory"), (False, "tcp")])
def test_every_rank_gets_a_link_to_rank_0_and_rank_0_to_every_rank(same_host, kind):
    before = open_descriptors()
    found = meeting([1, 2, 3], same_host=same_host)
    assert sorted(found[0]) == [1, 2, 3]
    for rank, link in found[0].items():
        assert (link.peer, link.kind, found[rank].peer, found[rank].kind) == (rank, kind, 0, kind)
        link.post(b"to %d" % rank)
        assert found[rank].take().message == b"to %d" % rank
        found[rank].post(b"from %d" % rank)
        assert link.take().message == b"from %d" % rank
    assert all((link.watch_fileno() is None) == same_host for link in found[0].values())
    close(found)
    assert new_descriptors(before) == {}
    assert left_behind() == []


def test_without_other_ranks_nobody_is_waited_for():
    assert meeting([]) == {0: {}}


def test_two_loaders_meet_at_the_same_port_one_after_the_other():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    first = meeting([1], port=port, same_host=False)
    second = meeting([1], port=port, same_host=False, name="eval")
    for found in (first, second):
        found[0][1].post(b"hello")
        assert found[1].take().message == b"hello"
    close(first)
    close(second)


def test_a_port_that_is_taken_is_the_same_error_on_every_rank():
    before = open_descriptors()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = meeting([1, 2], port=port)
    assert len({str(error) for error in found.values()}) == 1
    assert str(found[0]).startswith(f"link to rank 0: it cannot listen at 127.0.0.1:{port} (")
    assert "give another port=" in str(found[0])
    assert new_descriptors(before) == {}


def test_ranks_that_do_not_come_are_named():
    board = Board([])
    before = open_descriptors()
    with pytest.raises(
        RankError, match=r"ranks 1, 3 did not come to rank 0 within 0.2 s; it listened at 127.0.0.1:\d+"
    ):
        host(
            lambda data: threading.Thread(target=come, args=(data,)).start() or board.of_host(data),
            name="train",
            ranks=[1, 2, 3],
            port=0,
            address="127.0.0.1",
            timeout_s=0.2,
        )
    for thread in threading.enumerate():
        if thread.name.startswith("Thread"):
            thread.join(LIMIT_S)
    assert new_descriptors(before) == {}


def come(invitation):
    with closing(join(lambda _: invitation, name="train", rank=2, same_host=True)) as link, pytest.raises(LinkError):
        link.take()  # rank 0 gave up


def test_a_rank_with_another_name_for_its_loader_is_not_let_in():
    found = meeting([1, 2], names={2: "eval"}, timeout_s=1)
    assert isinstance(found[0], RankError)
    assert found[0].rank == 2
    assert "it did not let rank 2 of loader 'eval' in; every rank must give the loader the same name" in str(found[2])
    with pytest.raises(LinkError, match="the other side has closed it"):
        found[1].take()
    close(found)


def test_without_memory_files_every_rank_comes_by_tcp(monkeypatch):
    def refused(_):
        raise SlabError("memory file", "refused here")

    monkeypatch.setattr(meet, "create", refused)
    found = meeting([1])
    assert (found[0][1].kind, found[1].kind) == ("tcp", "tcp")
    close(found)


@pytest.mark.parametrize("reason", ["no descriptor", "no memory file", "another token", "no such socket"])
def test_a_rank_that_cannot_read_the_token_in_memory_comes_by_tcp(monkeypatch, reason):
    real = socket.recv_fds

    def receive(sock, *rest):
        data, fds, flags, address = real(sock, *rest)
        if reason in {"no descriptor", "no memory file"}:
            for fd in fds:
                os.close(fd)
            fds = [] if reason == "no descriptor" else [os.open("/dev/null", os.O_RDONLY)]
        return data, fds, flags, address

    if reason == "another token":
        monkeypatch.setattr(meet, "is_same", lambda *_: False)
    elif reason == "no such socket":
        monkeypatch.setattr(meet, "Invitation", lambda _, *rest: Invitation("stream-elsewhere", *rest))
    else:
        monkeypatch.setattr(socket, "recv_fds", receive)
    before = open_descriptors()
    found = meeting([1])
    assert (found[0][1].kind, found[1].kind) == ("tcp", "tcp")
    close(found)
    assert new_descriptors(before) == {}


def test_a_rank_that_cannot_reach_the_port_says_which():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    before = open_descriptors()
    invitation = msgspec.msgpack.encode(Invitation("", "127.0.0.1", port, bytes(32), 1.0))
    with pytest.raises(LinkError, match=f"cannot reach it at 127.0.0.1:{port} .*must be open between the hosts"):
        join(lambda _: invitation, name="train", rank=1, same_host=True)
    assert new_descriptors(before) == {}


def test_a_rank_whose_rank_0_stops_in_the_middle_gives_up_in_time():
    before = open_descriptors()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address, port = silent.getsockname()
        invitation = msgspec.msgpack.encode(Invitation("", address, port, bytes(32), 0.3))
        with pytest.raises(LinkError, match="cannot reach it"):
            join(lambda _: invitation, name="train", rank=1, same_host=True)
    assert new_descriptors(before) == {}


def test_an_interrupt_closes_everything():
    before = open_descriptors()

    def share(data):
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        return data

    def interrupt(*_):
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            host(share, name="train", ranks=[1], port=0, address="127.0.0.1", timeout_s=LIMIT_S)
    finally:
        signal.signal(signal.SIGALRM, former)
    assert new_descriptors(before) == {}


class Comer:
    """Another process that comes as rank 1; `prefix` is the program that starts it."""

    def __init__(self, prefix=(), *, same_host="same", uid=-1):
        arguments = [*prefix, sys.executable, str(PROGRAMS / "comer.py"), "1", same_host, str(uid)]
        self.process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        if self.process.stdout.readline() != b"ready\n":
            _, said = self.process.communicate(timeout=LIMIT_S)
            pytest.skip(f"this machine does not allow it: {said.decode()[-200:]}")

    def share(self, data):
        self.process.stdin.write(data)
        self.process.stdin.close()
        return data

    def close(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(LIMIT_S)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()

    def meet(self, address="127.0.0.1"):
        return host(self.share, name="train", ranks=[1], port=0, address=address, timeout_s=LIMIT_S)[1]


def answer(link):
    """Send a portion the way the link allows, and return what the other process told of it."""
    slab = Slab(1 << 20)
    span = slab.allocate(100_000)
    span.memory[:] = 2
    message = json.dumps({"file": span.file, "offset": span.offset, "size": span.size, "number": span.number}).encode()
    if link.kind == "memory":
        link.post(message, fds=[span.new_fd])
    else:
        link.post(message, payload=span.memory)
    told = json.loads(link.take().message)
    slab.close()
    return told


def need_root():
    if os.geteuid() != 0:
        pytest.skip("needs root, to start processes as somebody else")


@pytest.mark.ranks
@pytest.mark.parametrize(("same_host", "kind"), [("same", "memory"), ("other", "tcp")])
def test_a_process_is_served_by_memory_or_by_tcp_where_that_is_forced(same_host, kind):
    with closing(Comer(same_host=same_host)) as comer, closing(comer.meet()) as link:
        told = answer(link)
        assert (told["kind"], told["sum"]) == (kind, 200_000)


@pytest.mark.ranks
def test_a_process_of_another_user_is_served_through_memory():
    need_root()
    with closing(Comer(uid=65534)) as comer, closing(comer.meet()) as link:
        told = answer(link)
        assert (told["uid"], told["kind"], told["sum"]) == (65534, "memory", 200_000)


@pytest.mark.ranks
def test_a_process_in_another_pid_namespace_is_served_through_memory():
    need_root()
    with closing(Comer(["unshare", "--pid", "--fork"])) as comer, closing(comer.meet()) as link:
        told = answer(link)
        assert (told["pid"], told["kind"], told["sum"]) == (1, "memory", 200_000)


def ip(*words):
    run = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=LIMIT_S)
    if run.returncode:
        pytest.skip(f"this machine does not allow it: ip {' '.join(words)}: {run.stderr}")


@pytest.mark.ranks
@pytest.mark.timeout(60)
def test_a_process_in_another_network_namespace_comes_by_tcp_and_a_cut_is_noticed_on_both_sides():
    need_root()
    ours, theirs = f"st{os.getpid() % 10**6}a", f"st{os.getpid() % 10**6}b"
    with ExitStack() as opened:
        comer = opened.enter_context(closing(Comer(["unshare", "--net"])))
        pid = str(comer.process.pid)
        ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", pid)
        opened.callback(subprocess.run, ["ip", "link", "del", ours], capture_output=True, timeout=LIMIT_S)
        ip("addr", "add", "10.213.77.1/30", "dev", ours)
        ip("link", "set", ours, "up")
        inside = ["nsenter", "-t", pid, "-n", "ip"]
        for words in (["addr", "add", "10.213.77.2/30", "dev", theirs], ["link", "set", theirs, "up"]):
            assert subprocess.run([*inside, *words], timeout=LIMIT_S).returncode == 0
        link = opened.enter_context(closing(comer.meet("10.213.77.1")))
        told = answer(link)
        assert (told["kind"], told["sum"]) == ("tcp", 200_000)
        ip("link", "set", ours, "down")
        with pytest.raises(LinkError, match="link to rank 1: the other host has not answered for 8 s"):
            link.take()
        assert comer.process.stdout.readline().startswith(b"the other host has not answered for 8 s")
