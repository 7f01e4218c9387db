"""stream/sockets.py: sockets that no forked process keeps up, and connections that watch themselves."""

import os
import socket

import pytest

from stream.sockets import SILENCE_S, ours_alone, shut, watch


@pytest.mark.ranks
def test_a_forked_process_does_not_keep_a_connection_up():
    here, there = socket.socketpair()
    go_on, says_go_on = socket.socketpair()
    ours_alone(here)
    child = os.fork()
    if child == 0:
        says_go_on.close()
        go_on.recv(1)  # lives until it is told to end
        os._exit(0)
    here.close()
    there.settimeout(20)
    assert there.recv(1) == b""
    says_go_on.close()
    go_on.close()
    assert os.waitpid(child, 0)[1] == 0
    there.close()


@pytest.mark.ranks
def test_the_end_of_a_forked_process_does_not_end_the_connection():
    here, there = socket.socketpair()
    ours_alone(here)
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    here.sendall(b"still here")
    assert there.recv(100) == b"still here"
    here.close()
    there.close()


def test_a_watched_connection_gives_up_after_the_silence_that_is_told():
    with socket.socket() as sock:
        watch(sock)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle, between, count = (
            sock.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle + between * count == SILENCE_S
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0  # it would end a slow peer


def test_shutting_wakes_the_other_side_and_may_be_repeated():
    here, there = socket.socketpair()
    for _ in range(2):
        shut(here)
    assert there.recv(1) == b""
    assert here.fileno() >= 0
    here.close()
    there.close()
    shut(here)
