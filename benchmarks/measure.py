"""Start the ranks of a job, let them measure many configurations one after the other, collect what they say.

One launch measures many configurations of one number of ranks, so that starting processes is paid once. The ranks
are `rank.py`, one process each. They get a `Plan` on standard input and answer with one JSON message a line on
standard output. Every wait here has a limit; what goes wrong in a job fails its configuration, and the configurations
left are measured by a fresh launch.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryFile
from threading import Thread
from types import TracebackType
from typing import IO, Self

import msgspec

from launching import environment, free_port
from memory import MemoryWatch
from messages import Began, Config, Epoch, Fault, Job, Message, Plan, Ready, Setting, Shot, Window, combine

_RANK = Path(__file__).with_name("rank.py")
_SAMPLE_EVERY_S = 0.25
_START_LIMIT_S = 180.0
_EPOCH_LIMIT_S = 300.0
_END_LIMIT_S = 30.0


class RankError(Exception):
    """The ranks did not do a job; `job` is None where they failed before the first or after the last."""

    def __init__(self, job: int | None, problem: str) -> None:
        super().__init__(job, problem)
        self.job, self.problem = job, problem

    def __str__(self) -> str:
        return self.problem


class Outcome(msgspec.Struct):
    """What came of jobs: shots and keys (a list per rank) by job number, faults by configuration.

    `devices` tells by the number of ranks where their batches arrived.
    """

    shots: dict[int, Shot] = msgspec.field(default_factory=dict)
    epochs: dict[int, list[list[str]]] = msgspec.field(default_factory=dict)
    faults: dict[Config, str] = msgspec.field(default_factory=dict)
    problems: list[str] = msgspec.field(default_factory=list)
    devices: dict[int, str] = msgspec.field(default_factory=dict)

    def left(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the jobs that are neither done nor in vain."""
        done = self.shots.keys() | self.epochs.keys()
        return [job for job in jobs if job.number not in done and job.config not in self.faults]


Tell = Callable[[Job, "Shot | str | None"], object]
"""Is told of each job that ended: with a shot, with None (an epoch) or with what went wrong."""


def run_jobs(setting: Setting, jobs: Sequence[Job], outcome: Outcome, tell: Tell) -> None:
    """Do jobs for one number of ranks, with as many launches as faults make necessary, and add to the outcome.

    Configurations that had a fault already are passed over.
    """
    left = outcome.left(jobs)
    while left:
        try:
            _launch(Plan(setting=setting, ranks=left[0].config.ranks, jobs=left), outcome, tell)
        except RankError as exc:
            _blame(exc, outcome, left, tell)
        left = outcome.left(left)


def _blame(error: RankError, outcome: Outcome, jobs: Sequence[Job], tell: Tell) -> None:
    """Note whose fault it was: that of one job's configuration, or of all that are left."""
    left = outcome.left(jobs)
    if not left:
        outcome.problems.append(f"after the last job: {error}")
    for job in [job for job in jobs if job.number == error.job] or left:
        if job.config not in outcome.faults:
            outcome.faults[job.config] = error.problem
            tell(job, error.problem)


def _launch(plan: Plan, outcome: Outcome, tell: Tell) -> None:
    with Launch(plan) as launch:
        for job in plan.jobs:
            answer = launch.answer(job)
            outcome.devices[plan.ranks] = launch.device
            if isinstance(answer, Shot):
                outcome.shots[job.number] = answer
            else:
                outcome.epochs[job.number] = answer
            tell(job, answer if isinstance(answer, Shot) else None)
        launch.finish()


class Launch:
    """The running ranks of one plan; leaving it ends them, each in the session that it was started in.

    Raises:
        RankError: from its methods: a rank said so, died, or was silent for too long.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._messages: SimpleQueue[tuple[int, Message]] = SimpleQueue()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._errors: list[IO[bytes]] = []
        self._watch = MemoryWatch()
        self._joined: set[int] = set()
        self._since = time.monotonic()
        self.device = "cpu"

    def __enter__(self) -> Self:
        port = free_port()
        for rank in range(self._plan.ranks):
            self._start(rank, port)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its own session: the rank and its workers
            process.wait()
        for file in self._errors:
            file.close()

    def answer(self, job: Job) -> Shot | list[list[str]]:
        """Wait for all ranks' answers to a job; an epoch's keys come as a list per rank."""
        self._since = time.monotonic()
        windows: dict[int, Window] = {}
        epochs: dict[int, Epoch] = {}
        while len(windows) + len(epochs) < self._plan.ranks:
            rank, message = self._receive(job)
            self._watch.sample()
            if isinstance(message, Ready):
                self.device, self._since = message.device, time.monotonic()
                self._joined.add(rank)
            elif isinstance(message, Began):
                self._watch.reset(rank)
            elif isinstance(message, Window):
                windows[rank] = message
            elif isinstance(message, Epoch):
                epochs[rank] = message
        if job.whole_epoch:
            return [epochs[rank].keys for rank in sorted(epochs)]
        return combine(list(windows.values()), self._watch.peak_mib())

    def finish(self) -> None:
        """Wait until all ranks have ended by themselves."""
        deadline = time.monotonic() + _END_LIMIT_S
        for rank, process in enumerate(self._processes):
            try:
                status = process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired as exc:
                raise RankError(None, f"rank {rank} did not end within {_END_LIMIT_S:.0f} s") from exc
            if status:
                raise RankError(None, self._died(rank, status))

    def _start(self, rank: int, port: int) -> None:
        errors = TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._errors.append(errors)
        process = subprocess.Popen(  # noqa: S603 - our own program beside this one
            [sys.executable, str(_RANK)],
            env=environment(rank, self._plan.ranks, port),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        self._processes.append(process)
        self._watch.add(rank, process.pid)
        Thread(target=self._talk, args=(rank, process), daemon=True).start()

    def _talk(self, rank: int, process: "subprocess.Popen[bytes]") -> None:
        """Tell a rank the plan and pass on what it says, until it ends."""
        if process.stdin is None or process.stdout is None:
            return
        with suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(msgspec.json.encode(self._plan))
        decoder = msgspec.json.Decoder(Message)
        with process.stdout as stdout:
            for line in stdout:
                if line.endswith(b"\n"):  # else the rank died within it, which is noticed elsewhere
                    self._messages.put((rank, decoder.decode(line)))

    def _limit_s(self, job: Job) -> float:
        """How long the ranks may take, in seconds: for the job, or before it for joining."""
        setting = self._plan.setting
        if not self._all_joined:
            return _START_LIMIT_S
        return setting.patience_s + (_EPOCH_LIMIT_S if job.whole_epoch else setting.warmup_s + setting.window_s)

    @property
    def _all_joined(self) -> bool:
        return len(self._joined) == self._plan.ranks

    def _receive(self, job: Job) -> tuple[int, Message]:
        """Return the next message, with the rank that sent it; memory is looked at while waiting."""
        number = job.number if self._all_joined else None
        while True:
            dead = [(rank, process.returncode) for rank, process in enumerate(self._processes) if process.poll()]
            try:
                rank, message = self._messages.get(timeout=_SAMPLE_EVERY_S)
            except Empty:
                if dead:
                    raise RankError(number, self._died(*dead[0])) from None
                if time.monotonic() - self._since > self._limit_s(job):
                    raise RankError(number, "the ranks were silent for too long; they have been ended") from None
                self._watch.sample()
                continue
            if isinstance(message, Fault):
                raise RankError(message.job, f"rank {rank}: {message.problem}")
            return rank, message

    def _died(self, rank: int, status: int) -> str:
        self._errors[rank].seek(0)
        words = self._errors[rank].read().decode(errors="replace").strip().splitlines()
        return f"rank {rank} ended with status {status}: {words[-1] if words else 'it said nothing'}"
