"""stream/reception.py: nobody without the token, the name and a place gets in, and nobody holds the others up."""

import socket
import threading
from contextlib import closing

import msgspec
import pytest

from descriptors import new_descriptors, open_descriptors
from stream.handshake import WELCOME, Hello, pack_hello, read_invitation
from stream.meet import host, join
from stream.reception import Reception

LIMIT_S = 20
TOKEN = bytes(32)


class Intruder:
    """Somebody on the same machine who found the listening sockets, and who tries before the rank comes."""

    def __init__(self, act):
        self._act, self.answers = act, []

    def meet(self):
        """Let rank 0 and rank 1 meet after the intruder has tried; return whether the link of rank 1 is sound."""
        found = {}

        def share(data):
            self._act(self, read_invitation(data))
            found["thread"] = threading.Thread(target=rank_1, args=(data,))
            found["thread"].start()
            return data

        def rank_1(data):
            found[1] = join(lambda _: data, name="train", rank=1, same_host=True)

        links = host(share, name="train", ranks=[1], port=0, address="127.0.0.1", timeout_s=LIMIT_S)
        found["thread"].join(LIMIT_S)
        links[1].post(b"for rank 1")
        sound = found[1].take().message == b"for rank 1"
        found[1].close()
        links[1].close()
        return sound

    def call(self, invitation, way):
        """Return a connection to one of the listeners."""
        sock = socket.socket(socket.AF_UNIX if way == "memory" else socket.AF_INET)
        sock.settimeout(LIMIT_S)
        sock.connect(f"\0{invitation.unix}" if way == "memory" else (invitation.address, invitation.port))
        self.answers.append(sock)
        return sock

    def heard(self):
        """Return what each connection got before it was closed."""
        heard = []
        for sock in self.answers:
            with closing(sock):
                try:
                    heard.append(sock.recv(100))
                except ConnectionResetError:
                    heard.append(b"")
        return heard


@pytest.mark.parametrize("way", ["memory", "data", "watch"])
@pytest.mark.parametrize(
    "change",
    [{"token": bytes(32)}, {"token": b""}, {"name": "eval"}, {"rank": 2}, {"rank": 0}, {"rank": -1}],
    ids=["token", "no token", "name", "another rank", "rank 0", "no rank"],
)
def test_whoever_is_not_expected_is_closed_and_changes_nothing(way, change):
    def act(intruder, invitation):
        hello = msgspec.structs.replace(Hello(invitation.token, "train", 1, way), **change)
        intruder.call(invitation, way).sendall(pack_hello(hello))

    intruder = Intruder(act)
    assert intruder.meet()
    assert intruder.heard() == [b""]


def test_a_connection_of_the_wrong_kind_is_closed():
    def act(intruder, invitation):
        for way, said in (("memory", "data"), ("data", "memory")):
            intruder.call(invitation, way).sendall(pack_hello(Hello(invitation.token, "train", 1, said)))

    intruder = Intruder(act)
    assert intruder.meet()
    assert intruder.heard() == [b"", b""]


def test_strangers_that_say_nothing_or_nonsense_hold_nobody_up():
    def act(intruder, invitation):
        for way in ("memory", "data"):
            intruder.call(invitation, way)
            intruder.call(invitation, way).sendall(b"\x10")
            intruder.call(invitation, way).sendall(b"GET / HTTP/1.1\r\n\r\n")
            intruder.call(invitation, way).close()

    before = open_descriptors()
    intruder = Intruder(act)
    assert intruder.meet()
    for sock in intruder.answers:
        sock.close()
    assert new_descriptors(before) == {}


def test_a_rank_that_began_and_came_again_gets_one_link():
    def act(intruder, invitation):
        intruder.call(invitation, "data").sendall(pack_hello(Hello(invitation.token, "train", 1, "data")))
        intruder.call(invitation, "data").sendall(pack_hello(Hello(invitation.token, "train", 1, "data")))
        intruder.call(invitation, "memory").sendall(pack_hello(Hello(invitation.token, "train", 1, "memory")))

    intruder = Intruder(act)
    assert intruder.meet()
    first, second, page = intruder.heard()
    assert (first, second) == (b"", b"")
    assert page == b"P"


def test_a_rank_that_ends_between_its_two_connections_is_still_missing():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        reception = Reception([listener], token=TOKEN, name="train", ranks=[1], page=-1)
        data = socket.create_connection(listener.getsockname())
        data.sendall(pack_hello(Hello(TOKEN, "train", 1, "data")))
        reception.run(0.1)
        data.close()
        reception.run(0.1)
        assert reception.missing == [1]
        with socket.create_connection(listener.getsockname()) as watched:
            watched.sendall(pack_hello(Hello(TOKEN, "train", 1, "watch")))
            reception.run(0.1)
        assert (reception.missing, reception.links) == ([1], {})
        reception.close()
        reception.close()


def test_a_rank_has_come_once_both_its_connections_are_there_in_any_order():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        reception = Reception([listener], token=TOKEN, name="train", ranks=[1, 2], page=-1)
        socks = {
            (rank, way): socket.create_connection(listener.getsockname())
            for rank in (1, 2)
            for way in ("data", "watch")
        }
        for rank, way in [(1, "watch"), (2, "data"), (2, "watch"), (1, "data")]:
            socks[rank, way].sendall(pack_hello(Hello(TOKEN, "train", rank, way)))
        reception.run(LIMIT_S)
        assert reception.missing == []
        for rank in (1, 2):
            assert socks[rank, "data"].recv(10) == WELCOME
            reception.links[rank].close()
        for sock in socks.values():
            sock.close()
        reception.close()
