"""What this machine is, for the head of a report."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

import torch

from report import Machine

_GIB = 2**30


def describe_machine() -> Machine:
    """Look at the machine as it is now."""
    return Machine(
        cpu=_cpu(),
        cores=cores(),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB, 1),
        accelerator=_accelerator(),
        load=round(os.getloadavg()[0], 2),
        python=platform.python_version(),
        torch=str(torch.__version__),
        accelerate=version("accelerate"),
    )


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _accelerator() -> str:
    count = torch.cuda.device_count()
    return f"{count} x {torch.cuda.get_device_name(0)}" if count else "no accelerator"
