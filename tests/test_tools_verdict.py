"""tools/verdict.py: frames survive any cutting of the bytes between two processes."""

import pytest

from images import Place
from verdict import Task, Verdict, frame, read_frame


def reader(data, at_most):
    """A `read(n)` over these bytes that gives at most so many at once."""
    rest = bytearray(data)

    def read(count):
        piece = bytes(rest[: min(count, at_most)])
        del rest[: len(piece)]
        return piece

    return read


@pytest.mark.parametrize("at_most", [1, 3, 10**6])
def test_messages_arrive_as_they_were_sent(at_most):
    run = [Task("é.jpg", Place("/x/é.jpg", 2**40, 5, 6, 2**32 - 1, 8), 640, 480)]
    verdicts = [Verdict("", 2**33, 2**64 - 1, "jpg"), Verdict("it is empty")]
    read = reader(frame(run) + frame(verdicts), at_most)
    assert read_frame(read, list[Task]) == run
    assert read_frame(read, list[Verdict]) == verdicts
    assert read_frame(read, list[Verdict]) is None


def test_a_frame_cut_anywhere_is_an_end():
    data = frame([Verdict("x")])
    assert all(read_frame(reader(data[:end], 99), list[Verdict]) is None for end in range(len(data)))
