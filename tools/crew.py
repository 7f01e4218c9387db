"""Processes that check runs of images, and their verdicts in order.

Invariants: verdicts come in the order of the runs, whoever was faster; at most two runs lie with a process and at most
four per process are ahead of the reader; a process that ends early is an error that names its images, never a wait;
all processes are gone when the crew is left. They are programs of their own (checker.py) in process groups of their
own: nothing is forked, a terminal's Ctrl-C reaches the packer alone, and they end when the packer does, in any case.
"""

import selectors
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from pack_errors import WorkerDiedError
from verdict import Settings, Task, Verdict, frame, read_frame

if TYPE_CHECKING:
    from io import FileIO

_CHECKER = Path(__file__).with_name("checker.py")
_RUNS_EACH = 2
_AHEAD_EACH = 4


class _Worker:
    """One checking process and the runs that lie with it, oldest first."""

    def __init__(self, settings: Settings) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own program beside this one
            [sys.executable, str(_CHECKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            process_group=0,
        )
        self._input = cast("FileIO", self._process.stdin)
        self.output = cast("FileIO", self._process.stdout)
        self.runs: deque[tuple[int, Sequence[Task]]] = deque()
        self._send(frame(settings))

    def give(self, number: int, run: Sequence[Task]) -> None:
        self.runs.append((number, run))
        self._send(frame(run))

    def take(self) -> tuple[int, list[Verdict]]:
        """Return (number, verdicts) of the oldest run; waits for them."""
        verdicts = read_frame(self.output.read, list[Verdict])
        if verdicts is None:
            raise self._died()
        return self.runs.popleft()[0], verdicts

    def end(self) -> None:
        self._process.kill()  # it holds nothing that could be lost
        self._process.wait()
        self._input.close()
        self.output.close()

    def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._input.write(rest) :]
        except BrokenPipeError as exc:
            raise self._died() from exc

    def _died(self) -> WorkerDiedError:
        status = self._process.wait()
        ending = f"ended with status {status}"
        if status < 0:
            ending = f"was killed by signal {-status} ({signal.Signals(-status).name})"
        run = self.runs[0][1] if self.runs else ()
        return WorkerDiedError([task.file_name for task in run], ending)


class Crew:
    """A context manager around `workers` checking processes; they start when it is made."""

    def __init__(self, workers: int, settings: Settings) -> None:
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        try:
            for _ in range(workers):
                worker = _Worker(settings)
                self._workers.append(worker)
                self._selector.register(worker.output, selectors.EVENT_READ, worker)
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Stop all processes and wait for their end. Idempotent."""
        self._selector.close()
        while self._workers:
            self._workers.pop().end()

    def verdicts(self, runs: Iterable[Sequence[Task]]) -> Iterator[list[Verdict]]:
        """Yield the verdicts of each run, in the order of the runs.

        Raises:
            WorkerDiedError: a process ended before its work did.
        """
        coming = enumerate(runs)
        done: dict[int, list[Verdict]] = {}
        wanted = given = 0
        while True:
            given += self._feed(islice(coming, wanted + _AHEAD_EACH * len(self._workers) - given))
            if wanted not in done and not any(worker.runs for worker in self._workers):
                return
            for key, _ in self._selector.select(0 if wanted in done else None):
                number, verdicts = key.data.take()
                done[number] = verdicts
            if wanted in done:
                yield done.pop(wanted)
                wanted += 1

    def _feed(self, runs: Iterator[tuple[int, Sequence[Task]]]) -> int:
        """Give runs to the least busy processes while one has room; return how many were given."""
        given = 0
        while len((worker := min(self._workers, key=lambda worker: len(worker.runs))).runs) < _RUNS_EACH:
            run = next(runs, None)
            if run is None:
                break
            worker.give(*run)
            given += 1
        return given
