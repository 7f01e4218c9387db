"""How much memory ranks take, looked at from outside while they work (Linux: /proc)."""

import os
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_KIB_PER_MIB = 1024


class MemoryWatch:
    """The peak memory of some ranks, each with all processes of its session (its workers).

    A sample is the sum of their proportional set sizes (Pss in /proc/<pid>/smaps_rollup): memory of their own, and of
    memory that several processes share, such as a forked worker's copy of its rank or a library, everyone's part. So
    nothing counts twice. Peaks between two samples are missed. Page-locked memory of an accelerator is not in it.
    """

    def __init__(self) -> None:
        self._sessions: dict[int, int] = {}
        self._peaks_kib: dict[int, int] = {}

    def add(self, rank: int, session: int) -> None:
        """Watch a rank that leads this session."""
        self._sessions[session] = rank

    def reset(self, rank: int) -> None:
        """Forget what a rank took so far."""
        self._peaks_kib[rank] = 0

    def sample(self) -> None:
        """Look at all ranks now."""
        for rank, kib in self._now().items():
            self._peaks_kib[rank] = max(kib, self._peaks_kib.get(rank, 0))

    def peak_mib(self) -> float:
        """Return the peak of the rank that took most, in MiB."""
        return max(self._peaks_kib.values(), default=0) / _KIB_PER_MIB

    def _now(self) -> dict[int, int]:
        """Return the KiB of each rank."""
        found = dict.fromkeys(self._sessions.values(), 0)
        for entry in _PROC.iterdir():
            if entry.name.isdecimal():
                with suppress(OSError):  # ended meanwhile
                    rank = self._sessions.get(os.getsid(int(entry.name)))
                    if rank is not None:
                        found[rank] += proportional_kib(int(entry.name))
        return found


def proportional_kib(pid: int) -> int:
    """Return the proportional set size of a process in KiB.

    Raises:
        OSError: there is no such process.
    """
    for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0
