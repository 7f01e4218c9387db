"""A pool of rank processes that are started once and run functions by name.

Invariants:
- All ranks run the same function at the same time, each with the same arguments; their answers come back in the
  order of the ranks.
- Every wait has a limit. A rank that raised, died or was silent for too long ends the whole launch, since the group
  may be out of step; the next call starts afresh. The error holds what the ranks wrote, and where they hung.
- A rank leads a session of its own and is ended by that session's number, with whatever it started.
"""

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Any, Literal, Self

_PROGRAM = Path(__file__).with_name("fault_rank.py")
_ROOT = Path(__file__).resolve().parents[1]
_START_LIMIT_S = 120.0
_LOOK_EVERY_S = 0.1
_DUMP_S = 0.5
_MOST_TEXT = 6000
_FOREIGN = ("ACCELERATE_", "TORCHELASTIC_")  # another launcher's settings must not change what is looked at


class PoolError(Exception):
    """A function did not end well on every rank; `texts` is what each rank wrote meanwhile."""

    def __init__(self, problem: str, texts: Sequence[str]) -> None:
        super().__init__(problem, texts)
        self.problem, self.texts = problem, texts

    def __str__(self) -> str:
        told = [f"--- rank {rank} wrote:\n{text[-_MOST_TEXT:]}" for rank, text in enumerate(self.texts) if text]
        return "\n".join([self.problem, *told])


@dataclass(frozen=True)
class Ended:
    """How a rank ended: its exit status, and all that it wrote."""

    code: int
    text: str


class _Rank:
    """One running rank, seen from outside."""

    def __init__(self, process: "subprocess.Popen[bytes]", talk: socket.socket, output: IO[bytes]) -> None:
        self.process, self.talk, self.output = process, talk, output
        self.lines = b""

    def receive(self) -> list[bytes] | None:
        """Return the whole lines that have come, None at the end of the file."""
        try:
            got = self.talk.recv(2**20)
        except ConnectionError:
            return None
        *whole, self.lines = (self.lines + got).split(b"\n")
        return whole if got else None

    def text(self, start: int = 0) -> str:
        self.output.seek(start)
        return self.output.read().decode(errors="replace")

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.talk.close()


class RankPool:
    """`ranks` processes of one job on this host, which run functions of modules by name. Used by one thread.

    Nothing is started before the first call. `paths` is where the ranks find modules beside those of this folder;
    `device` is "cpu" or "cuda", where ranks share the devices of this host when there are too few; `strict` makes
    warnings errors in them.
    """

    def __init__(
        self, ranks: int, *, paths: Sequence[Path] = (), device: Literal["cpu", "cuda"] = "cpu", strict: bool = True
    ) -> None:
        self.ranks = ranks
        self.starts = 0
        self._paths, self._device, self._strict = paths, device, strict
        self._running: list[_Rank] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """The process id of each rank that was started."""
        return [rank.process.pid for rank in self._running]

    def call(
        self, function: str, arguments: Mapping[str, object], *, limit_s: float = 60.0, dying: Collection[int] = ()
    ) -> list[Any]:
        """Run "module:function" with these keyword arguments in every rank; return what each found, as JSON carries it.

        The ranks in `dying` are meant to die within the call: their place holds None.

        Raises:
            PoolError: a rank raised, died, or had not answered after `limit_s` seconds.
        """
        if not self._running:
            self._start()
        began = [os.fstat(rank.output.fileno()).st_size for rank in self._running]
        line = json.dumps({"function": function, "arguments": dict(arguments)}).encode() + b"\n"
        for rank in self._running:
            with suppress(OSError):  # a dead rank is noticed below
                rank.talk.sendall(line)
        return self._collect(function, began, limit_s, dying)

    def end(self, *, end_training: bool = True, limit_s: float = 60.0) -> list[Ended]:
        """Let the ranks end by themselves, with or without `accelerator.end_training()`, and tell how they did.

        Raises:
            PoolError: one was still there after `limit_s` seconds.
        """
        for rank in self._running:
            with suppress(OSError):
                rank.talk.sendall(json.dumps({"end_training": end_training}).encode() + b"\n")
        until = time.monotonic() + limit_s
        for number, rank in enumerate(self._running):
            try:
                rank.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise self._failed(f"rank {number} of {self.ranks} did not end within {limit_s:.0f} s") from None
        ended = [Ended(rank.process.returncode, rank.text()) for rank in self._running]
        self.close()
        return ended

    def close(self) -> None:
        """End the ranks as they are, with what they started. Idempotent; a later call starts new ones."""
        running, self._running = self._running, []
        for rank in running:
            rank.end()
            rank.output.close()

    def _start(self) -> None:
        self.starts += 1
        port = _free_port()
        self._running = [self._launched(number, port) for number in range(self.ranks)]
        self._collect("joining the group", [0] * self.ranks, _START_LIMIT_S, ())

    def _launched(self, number: int, port: int) -> _Rank:
        ours, theirs = socket.socketpair()
        output = TemporaryFile()  # noqa: SIM115 - closed by close()
        strict = ["-W", "error"] if self._strict else []
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - our own program beside this one
                [sys.executable, *strict, str(_PROGRAM), str(theirs.fileno()), self._device],
                env=self._environment(number, port),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        return _Rank(process, ours, output)

    def _environment(self, rank: int, port: int) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": self.ranks, "LOCAL_WORLD_SIZE": self.ranks}
        paths = os.pathsep.join(str(path) for path in (*self._paths, _ROOT))
        fixed = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
        return own | {name: str(value) for name, value in place.items()} | fixed

    def _collect(self, what: str, began: Sequence[int], limit_s: float, dying: Collection[int]) -> list[Any]:
        """Wait for one answer of each rank; a launch that did not give all is ended, so none is left over."""
        answers: dict[int, dict[str, Any]] = {}
        until = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            for place, rank in enumerate(self._running):
                selector.register(rank.talk, selectors.EVENT_READ, place)
            while any(place not in answers for place in range(self.ranks) if place not in dying):
                for key, _ in selector.select(_LOOK_EVERY_S):
                    lines = self._running[key.data].receive()
                    if lines is None:  # its end is told better by its exit status
                        selector.unregister(key.fileobj)
                    else:
                        answers.update((key.data, json.loads(line)) for line in lines)
                problem = self._problem(answers, dying, until)
                if problem is not None:
                    raise self._failed(f"{what}: {problem}", began)
        return [answers[place]["found"] if place in answers else None for place in range(self.ranks)]

    def _problem(self, answers: Mapping[int, Any], dying: Collection[int], until: float) -> str | None:
        """Say what is wrong with the call so far, and wait a little for the words of the others."""
        for place, answer in answers.items():
            if answer["error"] is not None:
                return f"rank {place} of {self.ranks} raised {answer['error']}"
        silent = [place for place in range(self.ranks) if place not in answers and place not in dying]
        for place in silent:
            code = self._running[place].process.poll()
            if code is not None:
                return f"rank {place} of {self.ranks} ended with status {code}"
        if silent and time.monotonic() > until:
            return f"ranks {silent} of {self.ranks} hung"
        return None

    def _failed(self, problem: str, began: Sequence[int] | None = None) -> PoolError:
        """End the launch and return the error; ranks that still run first write where they are."""
        for rank in self._running:
            with suppress(ProcessLookupError):
                rank.process.send_signal(signal.SIGUSR1)
        time.sleep(_DUMP_S)
        starts = began or [0] * len(self._running)
        texts = [rank.text(start) for rank, start in zip(self._running, starts, strict=True)]
        self.close()
        return PoolError(problem, texts)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
