"""Run the faults of stock dispatch mode on stock and on ours, and say side by side what each did.

The ranks are real processes (fault_pool.py); a fault that ends them costs a fresh start, no more. Faults that stock
does not survive are not run: they would end the process group, or wait for its time-out.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from fault_cases.cost import NEEDS_CUDA
from fault_cases.making import Fault, Side, Verdict
from fault_cases.runner import ALL
from fault_pool import PoolError, RankPool

_RUNNER = "fault_cases.runner:run"
_MOST_WORDS = 110


class FaultLine(NamedTuple):
    """One fault: what each side did, in words, and whether it was right."""

    id: str
    what: str
    stock: Verdict
    ours: Verdict

    def __str__(self) -> str:
        return f"{self.id:4} {self.what}\n     stock: {_told(self.stock)}\n     ours:  {_told(self.ours)}"


def run_faults(
    ranks: int, report: Callable[[str], object], *, only: Sequence[str] | None = None, ours: Side | None = None
) -> list[FaultLine]:
    """Run the faults that stock survives on both sides, in ranks of their own; tell of each as soon as it is known.

    Args:
        ranks: How many processes, 2 or more.
        report: Is given one text for each fault, of three lines.
        only: Ids of the faults to run; None means all that stock survives.
        ours: "loader" or "installed"; None takes the first of them that the fault is for.
    """
    lines = []
    with RankPool(ranks, paths=[Path(__file__).parent]) as pool:
        for fault in _survived(only):
            line = FaultLine(fault.id, fault.what, _verdict(pool, fault, "stock"), _verdict(pool, fault, ours))
            report(str(line))
            lines.append(line)
    return lines


def not_run() -> dict[str, str]:
    """Return the faults that are not run on stock, with the reason."""
    return {fault.id: fault.stock for fault in ALL.values() if fault.stock}


def _survived(only: Sequence[str] | None) -> list[Fault]:
    able = [fault for fault in ALL.values() if not fault.stock]
    able = [fault for fault in able if fault.id != NEEDS_CUDA or torch.cuda.is_available()]
    return [fault for fault in able if only is None or fault.id in only]


def _verdict(pool: RankPool, fault: Fault, side: Side | None) -> Verdict:
    side = side if side in ("stock", *fault.sides) else fault.sides[0]
    try:
        answers = pool.call(_RUNNER, {"fault": fault.id, "side": side}, limit_s=fault.limit_s)
    except PoolError as exc:
        return Verdict(right=False, words=exc.problem)
    return fault.judge([answer["found"] for answer in answers])


def _told(verdict: Verdict) -> str:
    words = " ".join(verdict.words.split())
    short = words if len(words) <= _MOST_WORDS else f"{words[:_MOST_WORDS]}..."
    return f"{'right' if verdict.right else 'WRONG'}; {short}"
