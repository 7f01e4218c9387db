"""Sockets of this process alone, and sockets that notice when the network between is cut."""

import os
import socket
from weakref import WeakSet

_KEEPALIVE = ((socket.TCP_KEEPIDLE, 2), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3))
SILENCE_S = 8
"""After how many seconds without an answer of the other host a watched connection is cut."""

_of_this_process: WeakSet[socket.socket] = WeakSet()


def ours_alone(sock: socket.socket) -> socket.socket:
    """Return the socket, which a process that is forked from this one will close at once.

    A copy of it in a worker would keep the connection up when this process is killed, and the peers would wait.
    """
    _of_this_process.add(sock)
    return sock


def watch(sock: socket.socket) -> None:
    """Let a TCP connection end by itself when the other host does not answer: 2 s idle, then three probes 2 s apart.

    It works while nothing sent is unanswered, hence on a connection that carries no data.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def shut(sock: socket.socket) -> None:
    """End a connection both ways, which wakes every thread that waits for it; its descriptor stays open."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended already


def _close_copies() -> None:
    for sock in list(_of_this_process):
        sock.close()
    _of_this_process.clear()


os.register_at_fork(after_in_child=_close_copies)
