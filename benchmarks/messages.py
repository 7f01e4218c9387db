"""What `measure.py` and its ranks (`rank.py`) say to each other, and what becomes of it; plain data, no torch.

A rank gets one `Plan` on standard input and answers with one `Message` a line on standard output, as JSON.
"""

from collections.abc import Sequence
from statistics import mean, median
from typing import Literal

import msgspec

Mode = Literal["dispatch", "shard"]


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What one row of the report is about. `prefetch` is in steps, as `StreamOptions.prefetch_steps`."""

    mode: Mode
    ranks: int
    workers: int
    prefetch: int
    pin_memory: bool

    def __str__(self) -> str:
        pin = "on" if self.pin_memory else "off"
        return f"{self.mode} ranks={self.ranks} workers={self.workers} prefetch={self.prefetch} pin={pin}"


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same for all rows: `batch_size` counts the rows of a step over all ranks, `rows` those of an epoch.

    `patience_s` is how much longer than planned a job may take, in seconds.
    """

    data: str
    rows: int
    batch_size: int
    image_size: int
    warmup_s: float
    window_s: float
    patience_s: float = 120.0


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that all ranks do together: measure one window, or with `whole_epoch` report one epoch's keys."""

    number: int
    config: Config
    whole_epoch: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks are told."""

    setting: Setting
    ranks: int
    jobs: list[Job]


class Ready(msgspec.Struct, frozen=True, tag=True):
    """A rank has joined the others; `device` is the type of device that its batches arrive on ("cpu", "cuda")."""

    device: str


class Began(msgspec.Struct, frozen=True, tag=True):
    """A rank starts a job; whatever an earlier one held is given back."""

    job: int


class Window(msgspec.Struct, frozen=True, tag=True):
    """What one rank saw in one window.

    `samples` counts keys; `first_s` runs from making the loader to its first batch; `waits_ms` holds one wait in
    `next()` per step; `delivered_bytes` is the average of one sample as it arrived.
    """

    job: int
    samples: int
    epochs: int
    seconds: float
    first_s: float
    delivered_bytes: float
    waits_ms: list[float]


class Epoch(msgspec.Struct, frozen=True, tag=True):
    """The keys that one rank got in one epoch, in order."""

    job: int
    keys: list[str]


class Fault(msgspec.Struct, frozen=True, tag=True):
    """A rank's last message: what went wrong."""

    job: int
    problem: str


Message = Ready | Began | Window | Epoch | Fault


class Shot(msgspec.Struct, frozen=True, kw_only=True):
    """One window over all ranks.

    `first_s` and `peak_mib` are those of the worst rank, the waits are taken over all steps of all ranks.
    """

    samples_per_s: float
    first_s: float
    wait_ms: float
    wait_mean_ms: float
    peak_mib: float
    delivered_bytes: float
    steps: int
    epochs: int


def combine(windows: Sequence[Window], peak_mib: float) -> Shot:
    """Put the ranks' views of one window together."""
    samples = sum(window.samples for window in windows)
    waits = [wait for window in windows for wait in window.waits_ms]
    return Shot(
        samples_per_s=samples / max(window.seconds for window in windows),
        first_s=max(window.first_s for window in windows),
        wait_ms=median(waits),
        wait_mean_ms=mean(waits),
        peak_mib=peak_mib,
        delivered_bytes=sum(window.delivered_bytes * window.samples for window in windows) / samples,
        steps=max(len(window.waits_ms) for window in windows),
        epochs=max(window.epochs for window in windows),
    )
