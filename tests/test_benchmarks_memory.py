import os
import subprocess
import sys

import pytest

from memory import MemoryWatch, proportional_kib

_HOLD = "held = bytearray(b'x') * (80 * 2**20); print('ready', flush=True); input()"
_PARENT_OF = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


@pytest.fixture
def holder():
    """A session whose leader does nothing and whose child holds 80 MiB."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PARENT_OF, _HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout.readline() == "ready\n"
    yield process
    process.communicate("\n", timeout=30)


def test_a_process_has_a_proportional_size():
    assert 1_000 < proportional_kib(os.getpid()) < 10**8


def test_a_rank_counts_with_its_children(holder):
    watch = MemoryWatch()
    watch.add(0, holder.pid)
    watch.sample()
    assert 80 <= watch.peak_mib() < 160


def test_the_largest_rank_speaks_for_all(holder):
    watch = MemoryWatch()
    watch.add(0, holder.pid)
    watch.add(1, os.getsid(0))
    watch.sample()
    assert watch.peak_mib() >= 80


def test_a_reset_forgets_the_peak(holder):
    watch = MemoryWatch()
    watch.add(0, holder.pid)
    watch.sample()
    watch.reset(0)
    assert watch.peak_mib() == 0


def test_a_rank_that_has_ended_takes_nothing():
    with subprocess.Popen([sys.executable, "-c", ""], start_new_session=True) as process:
        process.wait()
    watch = MemoryWatch()
    watch.add(0, process.pid)
    watch.sample()
    assert watch.peak_mib() == 0
