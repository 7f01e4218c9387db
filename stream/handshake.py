"""What ranks and reader say while they meet, before there are links. Bytes only; no socket here.

Rank 0 hands every rank an Invitation. A rank comes with a Hello on each of its connections; the answers are single
bytes. Over a Unix socket PAGE comes with the descriptor of a page that holds the token, the rank says SEEN once it has
read it there; over TCP there are two connections. WELCOME ends it both ways.
"""

import hmac
import struct
from typing import Literal

import msgspec

from stream.errors import LinkError

TOKEN_BYTES = 32
PAGE, SEEN, WELCOME = b"P", b"S", b"W"
MOST_HELLO = 4096
"""Bytes of the longest hello."""
_MOST_PROBLEM = 700
_LENGTH = struct.Struct("<H")


class Invitation(msgspec.Struct, frozen=True):
    """Where rank 0 is to be met, or why it is not. `unix` is an abstract name, empty if there is no shared memory."""

    unix: str = ""
    address: str = ""
    port: int = 0
    token: bytes = b""
    timeout_s: float = 0.0
    problem: str = ""


class Hello(msgspec.Struct, frozen=True):
    """Who comes, for which loader, and what the connection is for."""

    token: bytes
    name: str
    rank: int
    way: Literal["memory", "data", "watch"]


_HELLO = msgspec.msgpack.Decoder(Hello)
_INVITATION = msgspec.msgpack.Decoder(Invitation)


def pack_invitation(invitation: Invitation) -> bytes:
    """Return the invitation as at most 1,000 bytes; the words of a problem are cut to that."""
    problem = invitation.problem.encode()[:_MOST_PROBLEM].decode(errors="ignore")
    return msgspec.msgpack.encode(msgspec.structs.replace(invitation, problem=problem))


def read_invitation(data: bytes) -> Invitation:
    """Return the invitation that rank 0 sent.

    Raises:
        LinkError: it says that rank 0 cannot be met, or it is none.
    """
    try:
        invitation = _INVITATION.decode(data)
    except msgspec.DecodeError as exc:
        raise LinkError(0, f"its invitation cannot be read ({exc}); run the same version on all ranks") from exc
    if invitation.problem:
        raise LinkError(0, invitation.problem)
    return invitation


def pack_hello(hello: Hello) -> bytes:
    """Return the hello as it is sent; a loader's name is cut to 1,000 characters."""
    data = msgspec.msgpack.encode(msgspec.structs.replace(hello, name=known_as(hello.name)))
    return _LENGTH.pack(len(data)) + data


def read_hello(data: bytes) -> Hello | None:
    """Return the hello that the bytes are, None while they are too few.

    Raises:
        ValueError: they are no hello.
    """
    if len(data) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(data)
    if length > MOST_HELLO:
        raise ValueError(f"a hello of {length} bytes")
    if len(data) < _LENGTH.size + length:
        return None
    try:
        return _HELLO.decode(data[_LENGTH.size :])
    except msgspec.DecodeError as exc:
        raise ValueError(f"no hello: {exc}") from exc


def is_same(token: bytes, other: bytes) -> bool:
    """Compare two tokens in a time that tells nothing about them."""
    return hmac.compare_digest(token, other)


def known_as(name: str) -> str:
    """Return a loader's name as hellos carry it."""
    return name[:1000]
