"""Start the ranks of a measurement, one process each, and collect one answer from each (`answering.py`).

Every wait has a limit, and leaving ends the ranks with all processes of theirs.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryFile
from threading import Thread
from typing import IO, NamedTuple, TypeVar

import msgspec

from answering import Done, Failed, Told, Word

A = TypeVar("A", bound=msgspec.Struct)

_LOOK_EVERY_S = 0.25
_SILENCE_S = 180.0
_END_LIMIT_S = 30.0
_FATAL, _TAIL, _MOST_WORDS = "Fatal Python error", "Extension modules", 1500
"""How faulthandler begins and ends, and the most characters that are told of what it says."""
_FOREIGN = ("ACCELERATE_", "TORCHELASTIC_")  # another launcher's settings must not change what is measured


class FailedRankError(Exception):
    """A rank did not answer."""

    def __init__(self, rank: int, problem: str) -> None:
        super().__init__(rank, problem)
        self.rank, self.problem = rank, problem

    def __str__(self) -> str:
        return f"rank {self.rank}: {self.problem}"


class Limits(NamedTuple):
    """How long a job may take.

    `silence_s`: seconds without a word from any rank after which they are given up. `kill_after_s`: seconds after
    which all ranks are killed at once (SIGKILL) if they are still there.
    """

    silence_s: float = _SILENCE_S
    kill_after_s: float | None = None


_LIMITS = Limits()


class KilledError(Exception):
    """The ranks were killed, as was asked for."""


class _Rank(NamedTuple):
    process: "subprocess.Popen[bytes]"
    errors: IO[bytes]

    def last_words(self) -> str:
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        fatal = next((number for number, line in enumerate(lines) if line.startswith(_FATAL)), len(lines))
        said = [line.strip() for line in lines[max(0, fatal - 1) :] if line.strip() and not line.startswith(_TAIL)]
        return "; ".join(said)[:_MOST_WORDS] if said else "it said nothing"


def run_ranks(
    program: Path,
    plan: msgspec.Struct,
    *,
    ranks: int,
    answer: type[A],
    limits: Limits = _LIMITS,
    tell: Callable[[str], object] = lambda text: sys.stderr.write(f"{text}\n"),
) -> list[A]:
    """Run `program` on every rank with this plan and return their answers by rank.

    Args:
        program: A Python program that calls `answering.serve`.
        plan: What each rank is told.
        ranks: How many processes.
        answer: What each of them answers.
        limits: How long to wait.
        tell: Is told how far the ranks are.

    Raises:
        FailedRankError: a rank said that it failed, ended without an answer, or was silent for too long.
        KilledError: they were killed.
    """
    words: SimpleQueue[tuple[int, Word]] = SimpleQueue()
    answers: dict[int, A] = {}
    kill_at = None if limits.kill_after_s is None else time.monotonic() + limits.kill_after_s
    with _started(program, ranks) as started:
        for number, rank in enumerate(started):
            about = (number, rank.process, msgspec.json.encode(plan), words)
            Thread(target=_talk, args=about, name=f"talk-{number}", daemon=True).start()
        while len(answers) < ranks:
            number, word = _next(words, started, answers.keys(), limits.silence_s, kill_at)
            if isinstance(word, Failed):
                raise FailedRankError(number, word.problem)
            if isinstance(word, Told):
                tell(word.text)
            else:
                answers[number] = msgspec.json.decode(word.answer, type=answer)
        _await_end(started)
    return [answers[number] for number in range(ranks)]


@contextmanager
def _started(program: Path, ranks: int) -> Iterator[list[_Rank]]:
    port = free_port()
    with ExitStack() as stack:
        started: list[_Rank] = []
        for number in range(ranks):
            errors = stack.enter_context(TemporaryFile())
            process = subprocess.Popen(  # noqa: S603 - our own programs beside this one
                [sys.executable, str(program)],
                env=environment(number, ranks, port),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
            stack.callback(_end, process)
            started.append(_Rank(process, errors))
        yield started


def _end(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # its own session: the rank and its workers
    process.wait()


def _talk(number: int, process: "subprocess.Popen[bytes]", plan: bytes, words: "SimpleQueue[tuple[int, Word]]") -> None:
    """Tell a rank the plan and pass on what it says, until it ends."""
    if process.stdin is None or process.stdout is None:
        return
    with suppress(BrokenPipeError), process.stdin as stdin:
        stdin.write(plan)
    decoder = msgspec.json.Decoder(Word)
    with process.stdout as stdout:
        for line in stdout:
            if line.endswith(b"\n"):  # else the rank died within it, which is noticed elsewhere
                words.put((number, decoder.decode(line)))


def _next(
    words: "SimpleQueue[tuple[int, Word]]",
    started: Sequence[_Rank],
    answered: Collection[int],
    silence_s: float,
    kill_at: float | None,
) -> tuple[int, Told | Failed | Done]:
    begin = time.monotonic()
    while True:
        dead = [number for number, rank in enumerate(started) if rank.process.poll() is not None]
        try:
            left_s = _LOOK_EVERY_S if kill_at is None else min(_LOOK_EVERY_S, kill_at - time.monotonic())
            return words.get(timeout=max(0.0, left_s))
        except Empty:
            if kill_at is not None and time.monotonic() >= kill_at:
                raise KilledError from None  # leaving kills them
            for number in dead:
                if number not in answered:
                    status = started[number].process.returncode
                    raise FailedRankError(
                        number, f"ended with status {status}: {started[number].last_words()}"
                    ) from None
            if time.monotonic() - begin > silence_s:
                raise FailedRankError(0, f"no rank said anything for {silence_s:g} s") from None


def _await_end(started: Sequence[_Rank]) -> None:
    deadline = time.monotonic() + _END_LIMIT_S
    for number, rank in enumerate(started):
        try:
            status = rank.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired as exc:
            raise FailedRankError(number, f"did not end within {_END_LIMIT_S:.0f} s") from exc
        if status:
            raise FailedRankError(number, f"answered, then ended with status {status}: {rank.last_words()}")


def environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """Return what a rank of a job on this host finds in its environment."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    fixed = {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    return own | {name: str(value) for name, value in place.items()} | fixed


def free_port() -> int:
    """Return a TCP port of this host that nobody listened on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
