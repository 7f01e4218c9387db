"""stream/frames.py: frames come whole and in order, however the bytes are cut."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from descriptors import new_descriptors, open_descriptors
from stream.frames import HEAD, MOST_FDS, MOST_MESSAGE, FrameReader, head

law = settings(deadline=None, max_examples=150)
payloads = st.one_of(
    st.none(), st.binary(max_size=300), st.integers(60_000, 200_000).map(lambda size: bytes([7]) * size)
)
messages = st.one_of(st.binary(max_size=300), st.integers(60_000, 140_000).map(lambda size: bytes([9]) * size))


def wire(frames):
    found = b""
    for message, payload in frames:
        found += head(len(message), None if payload is None else len(payload), 0) + message + (payload or b"")
    return found


def feed(reader, data, cuts):
    """Receive the data in pieces of the given sizes, and return the frames."""
    frames, at, turn = [], 0, 0
    while at < len(data):
        space = reader.space()
        assert len(space) > 0
        count = min(len(space), cuts[turn % len(cuts)], len(data) - at)
        space[:count] = data[at : at + count]
        reader.received(count)
        at, turn = at + count, turn + 1
        while (frame := reader.next()) is not None:
            frames.append(frame)
    return frames


@law
@given(
    frames=st.lists(st.tuples(messages, payloads), max_size=6),
    cuts=st.lists(st.one_of(st.integers(1, 40), st.integers(1000, 300_000)), min_size=1, max_size=5),
)
def test_frames_come_back_equal_however_the_bytes_are_cut(frames, cuts):
    reader = FrameReader()
    found = feed(reader, wire(frames), cuts if max(cuts) > 500 else [*cuts, 50_000])
    assert [
        (frame.message, frame.payload if frame.payload is None else frame.payload.tobytes()) for frame in found
    ] == frames
    assert all(frame.fds == [] and frame.thing is None for frame in found)
    assert reader.idle


def test_a_payload_owns_its_memory_and_can_be_written():
    first, second = feed(FrameReader(), wire([(b"a", b"xy"), (b"b", b"zz")]), [1000])
    first.payload[:] = 0
    assert first.payload.dtype == np.uint8
    assert first.payload.base is None
    assert second.payload.tobytes() == b"zz"


def test_an_empty_payload_is_not_none():
    with_payload, without = feed(FrameReader(), wire([(b"", b""), (b"", None)]), [1000])
    assert with_payload.payload.shape == (0,)
    assert without.payload is None


def test_the_bytes_of_a_payload_are_received_in_place():
    reader = FrameReader()
    start = head(1, 1_000_000, 0) + b"m"
    reader.space()[: len(start)] = start
    reader.received(len(start))
    assert reader.next() is None
    assert len(reader.space()) == 1_000_000
    assert not reader.idle


def test_the_room_for_a_long_message_is_given_back():
    reader = FrameReader()
    at_first = len(reader.space())
    (frame,) = feed(reader, wire([(bytes(5 << 20), None)]), [100_000])
    assert len(frame.message) == 5 << 20
    assert len(reader.space()) == at_first


def test_descriptors_go_to_the_frames_that_were_sent_with_them():
    fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
    data = head(1, None, 1) + b"a" + head(1, None, 0) + b"b" + head(1, None, 2) + b"c"
    reader = FrameReader()
    reader.space()[: len(data)] = data
    reader.received(len(data), fds)
    assert [reader.next().fds for _ in range(3)] == [fds[:1], [], fds[1:]]
    for fd in fds:
        os.close(fd)


def test_descriptors_that_were_lost_are_an_error():
    data = head(1, None, 2) + b"a"
    reader = FrameReader()
    reader.space()[: len(data)] = data
    reader.received(len(data))
    with pytest.raises(ValueError, match=r"2 descriptors of a message were lost.*ulimit"):
        reader.next()


def test_closing_closes_the_descriptors_that_nobody_took():
    before = open_descriptors()
    reader = FrameReader()
    reader.space()[:1] = b"x"
    reader.received(1, [os.open("/dev/null", os.O_RDONLY)])
    reader.close()
    reader.close()
    assert new_descriptors(before) == {}


def test_a_head_holds_the_lengths_up_to_their_bounds():
    assert HEAD.unpack(head(MOST_MESSAGE, None, 0)) == (MOST_MESSAGE, 0)
    assert HEAD.unpack(head(0, 1 << 50, MOST_FDS)) == (0, ((1 << 50) + 1) | MOST_FDS << 56)
    for message, fds in ((MOST_MESSAGE + 1, 0), (0, MOST_FDS + 1)):
        with pytest.raises(ValueError, match="a link carries"):
            head(message, None, fds)
