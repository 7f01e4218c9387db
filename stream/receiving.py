"""What a rank's side of an iteration is told, and what it gives: see receiver.py."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from stream.inbox import Arrived
from stream.owning import Empty, new_memory
from stream.point import Bookmark


class Delivered(NamedTuple):
    """One step as this rank gets it. `real_rows` counts the whole step's rows.

    `position` is that after the step, and `bookmark` what the source said of itself up to there.
    """

    batch: Any
    real_rows: int
    last: bool
    position: int
    bookmark: Bookmark | None = None


@dataclass(frozen=True, kw_only=True)
class ReceiverOptions:
    """`make` turns a portion into a batch and its bytes, in `aside` threads; 0: by who receives it.

    `empty` gives memory for batches that are copied; `borrow`: they may be laid over memory that the reader lends.
    Times are in seconds; `timeout_s` None waits for ever.
    """

    make: Callable[[Arrived], tuple[Any, int]]
    aside: int
    prefetch_steps: int
    budget_bytes: int
    empty: Empty = new_memory
    borrow: bool = False
    warn_after_s: float = 30.0
    timeout_s: float | None = None
