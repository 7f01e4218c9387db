"""How a rank is told what to do and answers: a plan on standard input, JSON lines on standard output.

`launching.py` speaks the other side. A rank may tell how far it is, and ends with one answer or with what failed.
"""

import faulthandler
import os
import sys
from collections.abc import Callable
from typing import TypeVar

import msgspec

P = TypeVar("P", bound=msgspec.Struct)
Tell = Callable[[str], object]


class Told(msgspec.Struct, frozen=True, tag=True):
    """How far a rank is, for people."""

    text: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A rank's last word: what went wrong."""

    problem: str


class Done(msgspec.Struct, frozen=True, tag=True):
    """A rank's last word: its answer, JSON of what its program returns."""

    answer: msgspec.Raw


Word = Told | Failed | Done


def serve(plan_type: type[P], work: Callable[[P, Tell], msgspec.Struct]) -> int:
    """Read the plan, do the work, send its answer; what other code prints goes to standard error."""
    send = _sender()
    faulthandler.enable()  # of a rank that native code ends, its last words are where it was
    try:
        plan = msgspec.json.decode(sys.stdin.buffer.read(), type=plan_type)
        answer = work(plan, lambda text: send(Told(text)))
        send(Done(msgspec.Raw(msgspec.json.encode(answer))))
    except Exception as exc:  # noqa: BLE001 - whatever it is, it is told to who asked
        send(Failed(f"{type(exc).__name__}: {exc}"))
        os._exit(1)  # threads that wait for the other ranks must not hold this one up
    return 0


def _sender() -> Callable[[Word], object]:
    channel = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    return lambda word: channel.write(msgspec.json.encode(word) + b"\n")
