"""Counts what is read from shards on a local disk: each range that came, by file."""

from pathlib import Path

import pytest

from shards.local import LocalStore


class Reads:
    """`ranges` are (name of the tar, start, end) of all that was read from tars, in order."""

    def __init__(self):
        self.ranges = []

    @property
    def bytes(self):
        return sum(end - start for _, start, end in self.ranges)

    def add(self, name, ranges):
        if Path(name).suffix == ".tar":
            self.ranges += [(name, start, end) for start, end in ranges]


@pytest.fixture
def reads(monkeypatch):
    """What this process reads from tars from now on."""
    found, read, read_ranges_into = Reads(), LocalStore.read, LocalStore.read_ranges_into

    def counting_read(self, name, *, start=0, end=None):
        data = read(self, name, start=start, end=end)
        found.add(name, [(start, start + len(data))])
        return data

    def counting_read_ranges_into(self, name, buffer, ranges, *, wait=True):
        came = read_ranges_into(self, name, buffer, ranges, wait=wait)
        if came:
            found.add(name, ranges)
        return came

    monkeypatch.setattr(LocalStore, "read", counting_read)
    monkeypatch.setattr(LocalStore, "read_ranges_into", counting_read_ranges_into)
    return found
