"""The helper process as the process that started it sees it, and the lanes to it; see errands.py.

Invariants:
- the end of the control connection ends the helper, so it lives no longer than this process; `close` kills it, for it
  has nothing to lose, and reaps it;
- a lane is used by one thread at a time; one whose answer did not come is never used again;
- a forked child lets go of all descriptors, else the helper would outlive its process for as long as the child does,
  and a dead helper would go unnoticed. So no fork happens while a connection is being made.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import ClassVar

import numpy as np
import torch

from stream.errands import AddFile, AddLane, Decoded, Message, Setup, answer, mapped, post
from stream.errors import StreamError
from stream.forks import while_closed

_PROGRAM = """\
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.path[:] = sys.argv[2:]
from stream.helper_main import main
main(int(sys.argv[1]))
"""
"""Ctrl-C is ignored before anything slow begins.

Not `-m`: the folder that a user works in would come before everything, and a `stream.py` there would be run."""
_PATIENCE_S = 5.0  # for a process that was killed or closed its connection to be gone, for a thread to let fork
_KEPT_BYTES = 64 * 2**20  # of memory files that a lane may hold though its last request needed a quarter of it
_MOST_PIECES = 1024  # that Linux takes in one pwritev (IOV_MAX)


class HelperError(StreamError):
    """The helper process of this one cannot do what it was asked to.

    Attributes:
        problem: How it ended, or what went wrong in it.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"the helper process that decodes and reads {self.problem}"


class Running:
    """The process and its connections; `posted` control messages were sent."""

    def __init__(self, setup: Setup) -> None:
        self.lock = threading.RLock()
        with _AtFork.starting:
            self._start(setup)
            _AtFork.alive.add(self)

    def _start(self, setup: Setup) -> None:
        self._control, theirs = socket.socketpair()
        self._idle: list[Lane] = []
        self._busy: set[Lane] = set()
        self._closed = False
        self.posted = self._files = 0
        try:
            self.process = _spawn(theirs)
        except BaseException:
            self._control.close()
            raise
        finally:
            theirs.close()
        with suppress(OSError):  # a helper that died so early is noticed by the first who waits for it
            post(self._control, setup)

    def post(self, message: Message, fds: Iterable[int] = ()) -> None:
        """Say something on the control connection."""
        with self.lock:
            if self._closed:
                raise HelperError("was closed")
            try:
                post(self._control, message, list(fds))
            except OSError as exc:
                raise self.ended() from exc
            self.posted += 1

    def add_file(self, fd: int, *, writable: bool) -> int:
        """Share a memory file; its number."""
        with self.lock:
            self._files += 1
            self.post(AddFile(self._files, writable), [fd])
            return self._files

    def take(self) -> "Lane":
        """A lane for this thread alone, until it is given back."""
        with self.lock:
            lane = self._idle.pop() if self._idle else Lane(self)
            self._busy.add(lane)
            return lane

    def give(self, lane: "Lane", used: int) -> None:
        """Take a lane back; it ends if it broke, or if it holds much more memory than it just needed."""
        with self.lock:
            self._busy.discard(lane)
            if self._closed or lane.waiting or lane.held() > max(_KEPT_BYTES, 4 * used):
                lane.close()
            else:
                self._idle.append(lane)

    def ended(self) -> HelperError:
        """Say how the process ended."""
        if self._closed:
            return HelperError("was closed")
        try:
            status = self.process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            return HelperError("closed its connection, though it runs; what it says is on standard error")
        if status >= 0:
            return HelperError(f"exited with status {status}; what it says is on standard error")
        cause = " (the system may be out of memory)" if -status == signal.SIGKILL else ""
        return HelperError(f"was killed by signal {-status}, {_name_of(-status)}{cause}")

    def close(self) -> None:
        """End the process, which has nothing to lose, and wake who waits for it."""
        with self.lock:
            if self._closed:
                return
            self._closed = True
            self._control.close()
            for lane in self._busy:
                lane.shut()
            for lane in self._idle:
                lane.close()
            self._idle.clear()
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_PATIENCE_S)

    def forget(self) -> None:
        """Close the descriptors, in a forked child."""
        self._closed = True
        self.process.returncode = 0  # it is no child of this process, which must not wait for it
        self._control.close()
        for lane in [*self._idle, *self._busy]:
            lane.close()


class Lane:
    """This side of a lane; `waiting` for an answer from when a request is sent until it came."""

    def __init__(self, running: Running) -> None:
        self.waiting = False
        self._output = np.empty(0, np.uint8)
        self._input_bytes = 0
        self._socket, theirs = socket.socketpair()
        self._fds: list[int] = []
        try:
            for name in ("stream-pixels", "stream-images"):
                self._fds.append(os.memfd_create(name, os.MFD_CLOEXEC))
            running.post(AddLane(), [theirs.fileno(), *self._fds])
        except BaseException:
            self.close()
            raise
        finally:
            theirs.close()

    def fill(self, pieces: list[memoryview]) -> int:
        """Copy pieces of memory one after another into the input file; how many bytes."""
        written = 0
        for first in range(0, len(pieces), _MOST_PIECES):
            written += _write(self._fds[1], pieces[first : first + _MOST_PIECES], written)
        self._input_bytes = max(self._input_bytes, written)
        return written

    def ask(self, message: Message, running: Running) -> Message:
        """Send a request and wait for its answer."""
        self.waiting = True
        try:
            post(self._socket, message)
            told = answer(self._socket)
        except OSError as exc:
            raise running.ended() from exc
        if told is None:
            raise running.ended()
        self.waiting = False
        return told

    def copied(self, told: Decoded, empty: Callable[[int], torch.Tensor]) -> torch.Tensor:
        """The pixels of an answer, in memory of their own: uint8 [bytes]."""
        if self._output.size < told.file_bytes:
            self._output = mapped(self._fds[0], writable=False)
        size = sum(height * width for height, width in told.sizes) * 3
        memory = empty(size)
        np.copyto(memory.numpy(), self._output[:size])
        return memory

    def held(self) -> int:
        """Bytes of the memory files."""
        return self._output.size + self._input_bytes

    def shut(self) -> None:
        """Wake the thread that waits."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the descriptors. Idempotent."""
        self._socket.close()
        while self._fds:
            os.close(self._fds.pop())


def _spawn(theirs: socket.socket) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno()), *sys.path]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])  # noqa: S603  # our own


def _write(fd: int, pieces: list[memoryview], at: int) -> int:
    size = sum(piece.nbytes for piece in pieces)
    written = os.pwritev(fd, pieces, at)
    if written < size:  # rare: the system caps one write at 2 GiB, a signal may cut it
        rest = memoryview(b"".join(pieces))
        while written < size:
            written += os.pwrite(fd, rest[written:], at + written)
    return size


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown here"


class _AtFork:
    """Holds all locks during a fork; `starting` is held while a process is started."""

    starting: ClassVar[threading.RLock] = threading.RLock()
    alive: ClassVar["weakref.WeakSet[Running]"] = weakref.WeakSet()
    held: ClassVar[list[threading.RLock]] = []

    @classmethod
    def before(cls) -> None:
        cls._hold(cls.starting)
        for running in cls.alive:
            cls._hold(running.lock)

    @classmethod
    def _hold(cls, lock: threading.RLock) -> None:
        if lock.acquire(timeout=_PATIENCE_S):
            cls.held.append(lock)

    @classmethod
    def in_parent(cls) -> None:
        while cls.held:
            cls.held.pop().release()

    @classmethod
    def in_child(cls) -> None:
        for running in cls.alive:
            running.forget()
        cls.alive.clear()
        cls.held.clear()
        cls.starting = threading.RLock()


while_closed(before=_AtFork.before, in_parent=_AtFork.in_parent, in_child=_AtFork.in_child)
