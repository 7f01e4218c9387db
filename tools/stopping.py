"""Ctrl-C and the other polite requests to stop, as one exception that cannot interrupt the cleaning up."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal asked the program to stop. Not an Exception, so that nobody takes it for a failure to work around."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.number).name}"

    @property
    def exit_status(self) -> int:
        """128 plus the signal's number, as shells have it: 130 for Ctrl-C."""
        return 128 + self.number


def ignore_signals() -> None:
    """From here to the end of `stoppable` no signal to stop is heard."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise Stopped in the main thread at the first signal to stop; ignore any that follows it.

    Signals that are ignored already (nohup, a shell's background job) stay so. Former handlers come back at the end.
    """
    former = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in former.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _stop)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _stop(number: int, _frame: FrameType | None) -> None:
    ignore_signals()
    raise Stopped(number)
