"""A job of rank processes seen from outside while it runs: who belongs to it, what it has, and what it leaves."""

import json
import os
import shutil
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from unittest import mock

import psutil

from ranks import _free_port, _start


class RunningJob:
    """Ranks that were started. Its `with` block ends all that belongs to it."""

    def __init__(self, program: str, ranks: int, config: object, folder: Path) -> None:
        self.ranks, self.folder = ranks, folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        self.files = Path(tempfile.mkdtemp(prefix="job-"))
        """Where the job's temporary files go; a short name, since sockets are made there."""
        port = _free_port()
        with mock.patch.dict(os.environ, TMPDIR=str(self.files)):
            self.processes = [_start(program, folder, rank, ranks, port) for rank in range(ranks)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.belonging():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for process in self.processes:
            process.wait()
        shutil.rmtree(self.files)

    def wait_for(self, mark: str, *, limit_s: float = 100) -> None:
        """Wait until all ranks made the file `mark.RANK`."""
        until = time.monotonic() + limit_s
        for rank in range(self.ranks):
            while not (self.folder / f"{mark}.{rank}").exists():
                assert time.monotonic() < until, f"rank {rank} did not come to {mark!r}:\n{self.text()}"
                assert self.processes[rank].poll() is None, f"rank {rank} ended before {mark!r}:\n{self.text()}"
                time.sleep(0.01)

    def kill(self, rank: int) -> float:
        """Kill one rank, not what it started; return when, on the clock that processes share."""
        os.kill(self.processes[rank].pid, signal.SIGKILL)
        return time.monotonic()

    def found(self, rank: int, *, limit_s: float = 60) -> Any:
        """What a rank found, once it has ended."""
        assert self.processes[rank].wait(limit_s) == 0, self.text()
        return json.loads((self.folder / f"found{rank}.json").read_text())

    def belonging(self) -> list[psutil.Process]:
        """The running processes of the job, whoever their parents and sessions are now."""
        return [process for process in psutil.process_iter(["cmdline"]) if self._belongs(process)]

    def socket_names(self) -> set[str]:
        """The names of all abstract sockets that the job's processes have."""
        return {name for process in self.belonging() for name in socket_names(process.pid)}

    def text(self) -> str:
        """What all ranks wrote."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("output*.txt")))

    def _belongs(self, process: psutil.Process) -> bool:
        try:  # every process of the job was started with this variable, or forked from one that was
            return process.environ().get("TMPDIR") == str(self.files) and process.status() != "zombie"
        except psutil.Error:
            return False


def abstract_sockets() -> list[tuple[str, str]]:
    """The inode and the name of each of our abstract sockets in this network namespace."""
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return [(line[6], line[7]) for line in lines if len(line) > 7 and line[7].startswith("@stream-")]


def socket_names(pid: int | str) -> list[str]:
    """The names of the abstract sockets that a process has."""
    own = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            own.add(str(fd.readlink()))
    return [name for inode, name in abstract_sockets() if f"socket:[{inode}]" in own]
