"""stream/handshake.py: invitations and hellos as bytes, and what is no hello."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.errors import LinkError
from stream.handshake import (
    Hello,
    Invitation,
    is_same,
    known_as,
    pack_hello,
    pack_invitation,
    read_hello,
    read_invitation,
)

TOKEN = bytes(range(32))


def test_an_invitation_comes_back_equal():
    invitation = Invitation("stream-" + "a" * 32, "2001:db8:1111:2222:3333:4444:5555:6666", 65535, TOKEN, 60.0)
    data = pack_invitation(invitation)
    assert len(data) <= 1000
    assert read_invitation(data) == invitation


@pytest.mark.parametrize("letter", ["x", "ß", "語"])
def test_the_words_of_a_problem_are_cut_to_what_can_be_shared(letter):
    data = pack_invitation(Invitation(problem="it cannot listen: " + letter * 5000))
    assert len(data) <= 1000
    with pytest.raises(LinkError, match=f"link to rank 0: it cannot listen: {letter}+$"):
        read_invitation(data)


@pytest.mark.parametrize("data", [b"", b"\x00", b"not msgpack", b"\x81\xa4port\xa1x"])
def test_what_is_no_invitation_is_refused(data):
    with pytest.raises(LinkError, match="its invitation cannot be read"):
        read_invitation(data)


@given(name=st.text(max_size=1100), rank=st.integers(0, 10_000), way=st.sampled_from(["memory", "data", "watch"]))
def test_a_hello_comes_back_equal_once_it_is_whole(name, rank, way):
    data = pack_hello(Hello(TOKEN, name, rank, way))
    assert [read_hello(data[:end]) for end in range(len(data))] == [None] * len(data)
    assert read_hello(data) == Hello(TOKEN, known_as(name), rank, way)


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n", b"\xff\xff", b"\x01\x00\xc0", pack_hello(Hello(TOKEN, "a", 1, "data")) + b"more"],
    ids=["a web browser", "too long", "nothing", "a hello with more behind it"],
)
def test_what_is_no_hello_is_refused(data):
    with pytest.raises(ValueError, match="hello"):
        read_hello(data)


def test_tokens_are_compared_whole():
    assert is_same(TOKEN, bytes(range(32)))
    assert not is_same(TOKEN, TOKEN[:-1])
    assert not is_same(TOKEN, TOKEN[:-1] + b"\0")
