"""Start the ranks of a job as real processes, one program in each, and bring back what each found and left."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

TESTS = Path(__file__).resolve().parent
PROGRAMS = TESTS / "rank_programs"
LIMIT_S = 120
"""How long a job may take before its ranks are killed: a hang, or a machine that is far too busy."""

_LASTING = ("multiprocessing.resource_tracker", "fault_rank.py")
"""Python's own helper of started (not forked) processes, and the ranks that rank_pool.py keeps for the session."""
_LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Rank:
    """How one rank ended: `found` is the JSON that its program wrote, None if it wrote none."""

    code: int
    killed: bool
    text: str
    found: Any


def run_ranks(program: str, ranks: int, config: object, folder: Path) -> list[Any]:
    """Run a program of rank_programs/ in `ranks` processes to a good end; return what each found."""
    ended = start_ranks(program, ranks, config, folder)
    for number, rank in enumerate(ended):
        assert not rank.killed, f"rank {number} of {ranks} hung:\n{rank.text}"
    for number, rank in enumerate(ended):
        assert rank.code == 0, f"rank {number} of {ranks} ended with {rank.code}:\n{rank.text}"
        assert "Traceback" not in rank.text, f"rank {number} of {ranks} ended, but not quietly:\n{rank.text}"
    return [rank.found for rank in ended]


def start_ranks(program: str, ranks: int, config: object, folder: Path, *, limit_s: float = LIMIT_S) -> list[Rank]:
    """Run a program of rank_programs/ in `ranks` processes, whatever becomes of them.

    It is called with two paths: the config as JSON, and where to write what it found.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    port = _free_port()
    processes = [_start(program, folder, rank, ranks, port) for rank in range(ranks)]
    until = time.monotonic() + limit_s
    killed = [_end(process, until) for process in processes]
    return [_rank(folder, number, processes[number], killed[number]) for number in range(ranks)]


def left_behind() -> list[str]:
    """Threads of this process that the project started, and its child processes."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("stream-")] + child_processes()


def child_processes() -> list[str]:
    """Processes that this one started, by their command lines, without those that live as long as the interpreter."""
    children = [_command(child) for child in psutil.Process().children(recursive=True)]
    return [child for child in children if not any(name in child for name in _LASTING)]


def _command(child: psutil.Process) -> str:
    try:
        return " ".join(child.cmdline())
    except psutil.NoSuchProcess:  # it ended just now, and may still have to be reaped
        return f"process {child.pid}, which has ended"


def soon_left_behind(limit_s: float = 20.0) -> list[str]:
    """As `left_behind`, once nothing is left or the time is up: what was only dropped ends without being waited for."""
    until = time.monotonic() + limit_s
    while (left := left_behind()) and time.monotonic() < until:
        time.sleep(0.01)
    return left


def _start(program: str, folder: Path, rank: int, ranks: int, port: int) -> subprocess.Popen[bytes]:
    values = (rank, ranks, rank, ranks, "127.0.0.1", port)
    env = {
        **os.environ,
        **dict(zip(_LAUNCHER, map(str, values), strict=True)),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]),
    }
    arguments = [sys.executable, "-W", "error", PROGRAMS / program, folder / "config.json", _found(folder, rank)]
    with _output(folder, rank).open("wb") as output:
        return subprocess.Popen(arguments, env=env, stdout=output, stderr=output, start_new_session=True)


def _end(process: subprocess.Popen[bytes], until: float) -> bool:
    """Wait for a process; kill it and its children when time is up, and say so."""
    try:
        process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it leads a session of its own
        process.wait()
        return True
    return False


def _rank(folder: Path, number: int, process: subprocess.Popen[bytes], killed: bool) -> Rank:
    found = _found(folder, number)
    text = _output(folder, number).read_text(errors="replace")
    return Rank(process.returncode, killed, text, json.loads(found.read_text()) if found.exists() else None)


def _output(folder: Path, rank: int) -> Path:
    return folder / f"output{rank}.txt"


def _found(folder: Path, rank: int) -> Path:
    return folder / f"found{rank}.json"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
