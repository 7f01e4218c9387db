"""What `end_to_end.py` and its ranks (`end_to_end_rank.py`) say to each other; plain data, no torch."""

from typing import Literal

import msgspec

Arm = Literal["ceiling", "ours-uint8", "ours-float32", "stock-uint8", "stock-float32", "pillow-uint8", "pillow-float32"]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks are told: `rows` are those of a whole step, `side` is that of the images in pixels.

    A turn is `steps` steps after `warmup_steps`; `ceiling_s` is how long the ceiling is measured in a turn. `sleeps`:
    whether to measure also with a step that sleeps that many times the loading of one step, None: not.
    """

    data: str
    ranks: int
    rows: int
    side: int
    arms: list[Arm]
    rounds: int
    warmup_steps: int
    steps: int
    ceiling_s: float
    sleeps: float | None


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank saw of one arm in one round: `rows` that it got in `seconds`."""

    arm: Arm
    rows: float
    seconds: float


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank saw in one round with a step that sleeps: of `seconds`, `wait_s` in `next()`."""

    sleep_s: float
    wait_s: float
    seconds: float


class Seen(msgspec.Struct, frozen=True):
    """All that one rank saw, in the order in which it happened."""

    turns: list[Turn]
    waiting: list[Waiting]
