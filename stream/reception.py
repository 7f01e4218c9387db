"""Rank 0 receives the ranks: it takes connections until every rank has come, and trusts nobody without the token.

Invariants: nobody can hold it up, since no socket is waited for alone; a connection without the right token, name and
rank is closed and changes nothing; what a rank that comes twice began before is closed.
"""

import selectors
import socket
import time
from array import array
from collections.abc import Iterable

from stream.handshake import MOST_HELLO, PAGE, SEEN, WELCOME, Hello, is_same, known_as, read_hello
from stream.link import Link
from stream.sockets import ours_alone


class _Visitor:
    """One connection: what it has said so far, and who it is once that is known."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.said = b""
        self.hello: Hello | None = None
        self.gone = False


class Reception:
    """Receives ranks on listening sockets, which stay the caller's.

    Args:
        listeners: Unix and TCP sockets that listen.
        token: What only the job's ranks know.
        name: The loader's name.
        ranks: Who is expected.
        page: Descriptor of a memory file that begins with the token.
    """

    def __init__(
        self, listeners: Iterable[socket.socket], *, token: bytes, name: str, ranks: Iterable[int], page: int
    ) -> None:
        self._token, self._name, self._page = token, known_as(name), page
        self._expected = set(ranks)
        self._halves: dict[tuple[int, str], _Visitor] = {}  # of TCP ranks that have made one of two connections
        self._selector = selectors.DefaultSelector()
        for listener in listeners:
            listener.settimeout(0)
            self._selector.register(listener, selectors.EVENT_READ)
        self.links: dict[int, Link] = {}
        """The ranks that have come."""

    @property
    def missing(self) -> list[int]:
        """The ranks that have not come."""
        return sorted(self._expected - self.links.keys())

    def run(self, timeout_s: float) -> None:
        """Receive until all ranks have come or the time is up."""
        until = time.monotonic() + timeout_s
        while self.missing and (left := until - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                if key.data is None:
                    self._admit(key.fileobj)
                elif not key.data.gone:  # another visitor of this round may have ended its part
                    self._hear(key.data)

    def close(self) -> None:
        """Close every connection that has not become a link. Idempotent."""
        for key in list((self._selector.get_map() or {}).values()):
            if key.data is not None:
                key.data.sock.close()
        self._selector.close()

    def _admit(self, listener: object) -> None:
        if not isinstance(listener, socket.socket):
            return
        try:
            sock, _ = listener.accept()
        except OSError:
            return  # it has gone again
        ours_alone(sock).settimeout(0)
        self._selector.register(sock, selectors.EVENT_READ, _Visitor(sock))

    def _hear(self, visitor: _Visitor) -> None:
        try:
            data = visitor.sock.recv(MOST_HELLO)
            if not data or not self._goes_on(visitor, data):
                self._drop(visitor)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            self._drop(visitor)

    def _goes_on(self, visitor: _Visitor, data: bytes) -> bool:
        """Act on what a visitor says; False if it is to go."""
        if visitor.hello is not None:
            if visitor.hello.way != "memory" or data != SEEN:
                return False
            self._welcome(visitor.hello.rank, visitor)
            return True
        visitor.said += data
        hello = read_hello(visitor.said)
        if hello is None:
            return True
        if not self._is_expected(hello, visitor.sock):
            return False
        visitor.hello = hello
        if hello.way == "memory":
            visitor.sock.sendmsg([PAGE], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [self._page]))])
        else:
            self._pair(hello.rank, hello.way, visitor)
        return True

    def _is_expected(self, hello: Hello, sock: socket.socket) -> bool:
        right_way = (hello.way == "memory") == (sock.family == socket.AF_UNIX)
        named = hello.name == self._name and hello.rank in self._expected
        return is_same(hello.token, self._token) and named and right_way and hello.rank not in self.links

    def _pair(self, rank: int, way: str, visitor: _Visitor) -> None:
        """Keep one of the two connections of a TCP rank until the other has come."""
        earlier = self._halves.pop((rank, way), None)
        if earlier is not None:
            self._drop(earlier)
        self._halves[rank, way] = visitor
        data, watched = self._halves.get((rank, "data")), self._halves.get((rank, "watch"))
        if data is not None and watched is not None:
            self._welcome(rank, data, watched)

    def _welcome(self, rank: int, data: _Visitor, watched: _Visitor | None = None) -> None:
        data.sock.send(WELCOME)
        for visitor in (data, watched):
            if visitor is not None:
                self._forget(visitor)
        self.links[rank] = Link(rank, data.sock, None if watched is None else watched.sock)

    def _drop(self, visitor: _Visitor) -> None:
        self._forget(visitor)
        visitor.sock.close()

    def _forget(self, visitor: _Visitor) -> None:
        visitor.gone = True
        self._selector.unregister(visitor.sock)
        if visitor.hello is not None:
            key = (visitor.hello.rank, visitor.hello.way)
            if self._halves.get(key) is visitor:
                del self._halves[key]
