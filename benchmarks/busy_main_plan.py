"""What `busy_main.py` and its ranks (`busy_main_rank.py`) say to each other; plain data, no torch."""

from typing import Literal

import msgspec

DecodeIn = Literal["thread", "process"]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks are told: `rows` are those of a whole step, a turn is `steps` steps after `warmup_steps`."""

    data: str
    ranks: int
    rows: int
    side: int
    decode_in: list[DecodeIn]
    rounds: int
    warmup_steps: int
    steps: int


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank saw in one round.

    `calm_s` and `busy_s` are the seconds of all steps without and with Python in them; `python_s` is what the Python of
    one step took beside the loader, `alone_s` what it takes when nothing else runs.
    """

    decode_in: DecodeIn
    calm_s: float
    busy_s: float
    python_s: float
    alone_s: float


class Turns(msgspec.Struct, frozen=True):
    """All that one rank saw, in the order in which it happened."""

    turns: list[Turn]
