"""stream/protocol.py: every message comes back as it was."""

import msgspec
import pytest

from stream.carry import carried
from stream.protocol import (
    Again,
    Begin,
    Bye,
    Commit,
    End,
    Failed,
    Fault,
    Leave,
    Portion,
    Ready,
    Waiting,
    Warn,
    body_start,
    decode,
    encode,
)

TOLD = carried(ValueError("é"), rank=1, step=2)
MESSAGES = [
    Begin(1, {"epoch": "3"}),
    Ready(1, 2, 3),
    Failed(1, 2, 3, TOLD),
    Leave(1, 2),
    Leave(1, 2, TOLD),
    Waiting(1, 2, 31.5),
    Warn("slow"),
    Bye(),
    Portion(1, 2, "rows", 10, 4, 2**40, 2**33, 2**50, 64, True, 2**40, [1, 2]),
    Commit(1, 2),
    Fault(1, 2, TOLD),
    End(1),
    Again(1),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_as_it_was(message):
    assert decode(encode(message)) == message


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x92\x63\x01", encode(Commit(1, 2))[:-1]])
def test_bytes_that_are_no_message_are_refused(data):
    with pytest.raises(msgspec.DecodeError):
        decode(data)


def test_a_body_begins_at_the_next_multiple_of_64():
    assert [body_start(header) for header in (0, 1, 64, 65)] == [0, 64, 64, 128]
