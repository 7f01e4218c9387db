"""Iterations that a script still holds when it ends: they are closed before the interpreter takes itself apart."""

import atexit
import weakref
from collections.abc import Generator
from contextlib import suppress
from typing import Any

_iterations: "weakref.WeakSet[Generator[Any, None, None]]" = weakref.WeakSet()


def keep_track(iteration: Generator[Any, None, None]) -> None:
    """Close this generator at exit, if it still lives then."""
    _iterations.add(iteration)


@atexit.register
def _close_all() -> None:
    for iteration in list(_iterations):
        with suppress(ValueError):  # a daemon thread is in it
            iteration.close()
