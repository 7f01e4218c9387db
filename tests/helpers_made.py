"""Memory files for tests of the helper process, and what is seen of processes and descriptors from outside."""

import gc
import os
import signal
import time
from pathlib import Path

import numpy as np


def memory_file(*pieces, size=None):
    """A descriptor of a new memory file that holds the pieces one after another, and their offsets."""
    fd = os.memfd_create("stream-test", os.MFD_CLOEXEC)
    os.ftruncate(fd, sum(map(len, pieces)) if size is None else size)
    offsets = [0, *np.cumsum([len(piece) for piece in pieces]).tolist()]
    for piece, offset in zip(pieces, offsets, strict=False):
        os.pwrite(fd, piece, offset)
    return fd, offsets[:-1]


def descriptors():
    """The open descriptors of this process, by what they lead to; what earlier tests left as garbage is collected."""
    gc.collect()
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(link.readlink()))
        except FileNotFoundError:  # the one that listed them
            continue
    return sorted(found)


def state(pid):
    """The letter that the kernel has for the state of a process, Z once it is a zombie or nothing at all."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def is_there(pid):
    """Whether a process exists and is no zombie."""
    return state(pid) != "Z"


def stop(pid):
    """Stop a process, and wait until it has stopped."""
    os.kill(pid, signal.SIGSTOP)
    while state(pid) not in "TZ":
        time.sleep(0.001)


def is_gone(pid, *, within_s=10):
    """Whether a process ends within that time."""
    end = time.monotonic() + within_s
    while is_there(pid):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def is_reaped(pid):
    """Whether a process is gone without a trace, not even a zombie."""
    return not Path(f"/proc/{pid}").exists()
