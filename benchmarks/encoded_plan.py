"""What `encoded.py` and its ranks (`encoded_rank.py`) say to each other; plain data, no torch."""

from typing import Literal

import msgspec

Arm = Literal["copy", "preadv", "ours", "ours-verified"]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks are told: `rows` are those of a whole step; a turn goes `passes` times over the dataset."""

    data: str
    ranks: int
    rows: int
    arms: list[Arm]
    rounds: int
    passes: int
    warmup_steps: int


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank saw of one arm in one round.

    `part_bytes` are those of the images and captions that it got in `seconds`. Over whole epochs it got `epoch_bytes`
    of them, for which it received `received_bytes` from the reader.
    """

    arm: Arm
    seconds: float
    part_bytes: int
    epoch_bytes: int
    received_bytes: int


class Turns(msgspec.Struct, frozen=True):
    """All that one rank saw, in the order in which it happened."""

    turns: list[Turn]
