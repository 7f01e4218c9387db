"""Who waits for whom, in words, and every warning once."""

import logging
from collections.abc import Sequence
from typing import ClassVar

from stream.peers import Peer
from stream.roll_call import missing
from stream.underway import Underway

_log = logging.getLogger("stream")


def holdup(peers: Sequence[Peer], steps: Sequence[Underway], read_up_to: str | None) -> str:
    """Say what an iteration waits for: a rank, or what the reader reads.

    `steps` are those that are not committed, `read_up_to` is where the source was when it gave its last step.
    """
    if absent := missing(peers):
        return f"rank {', '.join(map(str, absent))} has not begun the iteration"
    if steps and steps[0].sent:
        slow = ", ".join(map(str, sorted(steps[0].unready)))
        return f"rank {slow} has not answered step {steps[0].number} yet"
    if steps:
        return f"the reader, on rank 0, reads {steps[0].offer.where}"
    done = "it has given nothing yet" if read_up_to is None else f"it has given all up to {read_up_to}"
    return f"the reader, on rank 0, waits for its source; {done}"


class Warnings:
    """What the main process says on behalf of all ranks; each kind of warning once in the life of the process."""

    _said: ClassVar[set[str]] = set()

    @classmethod
    def say(cls, text: str, *, kind: str | None = None) -> None:
        """Log a warning, unless it or another of its kind was logged before."""
        key = kind or text
        if key not in cls._said:
            cls._said.add(key)
            _log.warning("%s", text)
