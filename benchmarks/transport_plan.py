"""What `transport.py` and its ranks (`transport_rank.py`) say to each other; plain data, no torch."""

from typing import Literal

import msgspec

Dtype = Literal["float32", "uint8"]
Arm = Literal["stock", "scatter", "ours"]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks are told: `rows` are those of a whole step, `side` is that of the images in pixels."""

    ranks: int
    rows: int
    side: int
    dtypes: list[Dtype]
    arms: list[Arm]
    rounds: int
    seconds: float
    warmup_steps: int


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank saw of one arm in one round: `steps` took `seconds`, each brought so many bytes."""

    dtype: Dtype
    arm: Arm
    steps: int
    seconds: float
    received_bytes: int


class Turns(msgspec.Struct, frozen=True):
    """All that one rank saw, in the order in which it happened."""

    turns: list[Turn]


def portion_bytes(plan: Plan, dtype: Dtype) -> int:
    """Return the bytes of one rank's portion of a step."""
    return plan.rows // plan.ranks * 3 * plan.side**2 * (4 if dtype == "float32" else 1)
