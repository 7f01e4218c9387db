"""What a rank of the pool is told to run: one fault, made one way."""

import contextlib
import threading
import time
import warnings
from collections.abc import Iterator
from typing import cast

from fault_cases import cost, crashes, hangs, meshes, resume, seeking, silent
from fault_cases.making import Fault, Found, Make, Side, started_processes

ALL: dict[str, Fault] = {
    fault.id: fault for module in (silent, resume, meshes, crashes, hangs, seeking, cost) for fault in module.FAULTS
}
"""Every fault by its id."""

_ENDING_S = 5.0


def run(fault: str, side: str, device: str = "cpu") -> Found:
    """Run a fault on this rank. The answer has "found", and in "left" what of ours was still there afterwards."""
    make = Make(cast("Side", side), on_cpu=device == "cpu")
    before = _left()
    with make.in_force(), _warnings_of(make.side):
        found = ALL[fault].run(make)
    return {"found": found, "left": [] if ALL[fault].holds else _soon_left(before)}


def die(rank: int, side: str) -> Found:
    """Iterate on this rank while another one, or this one, is killed."""
    make = Make(cast("Side", side))
    with make.in_force():
        return hangs.die(make, rank)


@contextlib.contextmanager
def _warnings_of(side: Side) -> Iterator[None]:
    if side != "stock":
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _left() -> set[str]:
    threads = {f"thread {one.name}" for one in threading.enumerate() if one.name.startswith("stream-")}
    return threads | {f"process {pid}" for pid in started_processes()}


def _soon_left(before: set[str]) -> list[str]:
    """Wait until nothing is left that was not there before, or for long enough."""
    until = time.monotonic() + _ENDING_S
    while (left := _left() - before) and time.monotonic() < until:
        time.sleep(0.01)
    return sorted(left)
