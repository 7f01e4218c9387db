"""What one launch of a kill trial is told, and what counts in its checkpoints."""

from pathlib import Path
from typing import Literal

import msgspec

Mode = Literal["dispatch", "shard"]
LEDGER = "counted.json"
"""In a checkpoint: the samples of all optimizer steps that its weights are made of."""
LATEST = "latest"
"""In a trial's folder: the name of its last whole checkpoint."""
WHOLE_STEP = 12
"""Rows of a step; 1 to 4 ranks can share them."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One launch: how it reads, how often it saves, where its checkpoints are."""

    data: str
    folder: str
    ranks: int
    mode: Mode
    epochs: int
    accumulation: int
    save_every: int
    step_s: float


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of all samples that counted, epoch by epoch, in order; and how many launches had a part in them."""

    epochs: list[list[str]]
    launches: int


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The last word of a rank whose job is done."""

    samples: int


def latest(folder: Path) -> Path | None:
    """Return the last whole checkpoint of a trial; None before the first."""
    name = folder / LATEST
    return folder / name.read_text() if name.exists() else None


def ledger_of(checkpoint: Path) -> Ledger:
    """Return what counted in a checkpoint."""
    return msgspec.json.decode((checkpoint / LEDGER).read_bytes(), type=Ledger)
