"""How the ranks of a loader find its reader: rank 0 invites, the others come.

The job's own process group is used once, to hand out where rank 0 listens and a token. Who does not know the token is
not let in. A rank is on the same host if it reaches an abstract Unix socket of rank 0, gets the descriptor of a memory
file through it, and reads the token there; its portions then travel in shared memory. Every other rank comes by TCP:
one that runs elsewhere, in another network namespace, or where the kernel keeps descriptors from it.

Everything that is opened here and does not become part of a link is closed on every way out, an interrupt included.
"""

import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing

from stream.errors import LinkError, RankError, SlabError
from stream.handshake import (
    PAGE,
    SEEN,
    TOKEN_BYTES,
    WELCOME,
    Hello,
    Invitation,
    is_same,
    pack_hello,
    pack_invitation,
    read_invitation,
)
from stream.link import Link
from stream.memory_file import create, map_foreign, map_writable
from stream.reception import Reception
from stream.sockets import ours_alone

Share = Callable[[bytes], bytes]

_PAGE_BYTES = 4096
_LEAST_WAIT_S = 0.01


def host(
    share: Share, *, name: str, ranks: Sequence[int], port: int, address: str, timeout_s: float = 60.0
) -> dict[int, Link]:
    """Meet the other ranks, on rank 0.

    Args:
        share: Broadcasts rank 0's bytes (at most 1,000) to all ranks; called once, on the others too.
        name: The loader's name, the same on every rank.
        ranks: The others.
        port: Where to listen for ranks of other hosts, 0: any free port.
        address: This host's address or name that the other hosts reach.
        timeout_s: How long to wait for the ranks after the invitation.

    Returns:
        A link to each rank.

    Raises:
        LinkError: it cannot listen there. Every rank raises it.
        RankError: ranks did not come in time; it names them.
    """
    token = secrets.token_bytes(TOKEN_BYTES)
    with ExitStack() as opened:
        try:
            listeners, page, invitation = _listen(opened, address, port, token, timeout_s)
        except OSError as exc:
            problem = f"it cannot listen at {address}:{port} ({exc}); give another port="
            share(pack_invitation(Invitation(problem=problem)))
            raise LinkError(0, problem) from exc
        reception = Reception(listeners, token=token, name=name, ranks=ranks, page=page)
        opened.callback(reception.close)
        try:
            share(pack_invitation(invitation))
            _receive_all(reception, invitation)
        except BaseException:
            for link in reception.links.values():
                link.close()
            raise
        return reception.links


def join(share: Share, *, name: str, rank: int, same_host: bool) -> Link:
    """Meet rank 0, on another rank.

    Args:
        share: As for `host`.
        name: As for `host`.
        rank: This rank.
        same_host: False: come by TCP, even from the same host.

    Raises:
        LinkError: rank 0 cannot be reached, or does not let this rank in.
    """
    invitation = read_invitation(share(b""))
    until = time.monotonic() + invitation.timeout_s
    link = _by_memory(invitation, name, rank, until) if same_host and invitation.unix else None
    return link or _by_tcp(invitation, name, rank, until)


def _listen(
    opened: ExitStack, address: str, port: int, token: bytes, timeout_s: float
) -> tuple[list[socket.socket], int, Invitation]:
    """Open what ranks come to: the listening sockets, the page with the token (-1: none), where they are."""
    family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
    tcp = opened.enter_context(ours_alone(socket.create_server((address, port), family=family, backlog=1024)))
    at, bound = tcp.getsockname()[:2]
    try:
        page = _page(token)
    except SlabError:  # this system has no memory files: every rank comes by TCP
        return [tcp], -1, Invitation(address=at, port=bound, token=token, timeout_s=timeout_s)
    opened.callback(os.close, page)
    unix = opened.enter_context(ours_alone(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)))
    name = f"stream-{secrets.token_hex(16)}"
    unix.bind(f"\0{name}")
    unix.listen(1024)
    return [tcp, unix], page, Invitation(name, at, bound, token, timeout_s)


def _page(token: bytes) -> int:
    fd = create(_PAGE_BYTES)
    try:
        with closing(map_writable(fd)) as page:
            page[: len(token)] = token
    except BaseException:
        os.close(fd)
        raise
    return fd


def _receive_all(reception: Reception, invitation: Invitation) -> None:
    reception.run(invitation.timeout_s)
    missing = reception.missing
    if missing:
        ranks = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))}"
        problem = (
            f"{ranks} did not come to rank 0 within {invitation.timeout_s:g} s; it listened at {invitation.address}:"
            f"{invitation.port}, which ranks of other hosts must be able to reach (port= chooses the port)"
        )
        raise RankError(missing[0], 0, problem)


def _by_memory(invitation: Invitation, name: str, rank: int, until: float) -> Link | None:
    """Come through the Unix socket; None if this is another host, or memory cannot be shared."""
    with ExitStack() as opened:
        sock = opened.enter_context(ours_alone(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)))
        try:
            sock.settimeout(_left(until))
            sock.connect(f"\0{invitation.unix}")
            sock.sendall(pack_hello(Hello(invitation.token, name, rank, "memory")))
            if not _sees_token(sock, invitation.token):
                return None
            sock.sendall(SEEN)
            if sock.recv(1) != WELCOME:
                return None
        except OSError:
            return None
        link = Link(0, sock)
        opened.pop_all()
        return link


def _sees_token(sock: socket.socket, token: bytes) -> bool:
    """Tell whether the descriptor that comes is a memory file with the token in it."""
    data, fds, _, _ = socket.recv_fds(sock, 1, 1, socket.MSG_CMSG_CLOEXEC)
    try:
        if data != PAGE or not fds:
            return False
        with closing(map_foreign(fds[0], writable=False)) as page:
            return is_same(page[: len(token)], token)
    except SlabError:
        return False
    finally:
        for fd in fds:
            os.close(fd)


def _by_tcp(invitation: Invitation, name: str, rank: int, until: float) -> Link:
    where = (invitation.address, invitation.port)
    with ExitStack() as opened:
        try:
            data = opened.enter_context(ours_alone(socket.create_connection(where, _left(until))))
            watched = opened.enter_context(ours_alone(socket.create_connection(where, _left(until))))
            data.sendall(pack_hello(Hello(invitation.token, name, rank, "data")))
            watched.sendall(pack_hello(Hello(invitation.token, name, rank, "watch")))
            data.settimeout(_left(until))
            welcome = data.recv(1)
        except OSError as exc:
            problem = f"cannot reach it at {where[0]}:{where[1]} ({exc}); that port must be open between the hosts"
            raise LinkError(0, problem) from exc
        if welcome != WELCOME:
            problem = (
                f"it did not let rank {rank} of loader {name!r} in; every rank must give the loader the same name, and "
                "rank 0 must still be waiting"
            )
            raise LinkError(0, problem)
        link = Link(0, data, watched)
        opened.pop_all()
        return link


def _left(until: float) -> float:
    return max(_LEAST_WAIT_S, until - time.monotonic())
