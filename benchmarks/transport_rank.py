"""One rank of `transport.py`: takes portions of ready batches, each way in turns, and tells how long it took.

A round of a way is an epoch: some steps to warm up, then so many as were found to take the seconds that the plan asks
for, then a few in which nothing is read ahead any more, which do not count. So no way has anything under way while
another is measured, and what was received is known to the byte.
"""

import math
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

from answering import Tell, serve
from meeting import joined, largest, meet
from transport_arms import CARRIERS, Carrier, WrongPortionError, check
from transport_plan import Arm, Dtype, Plan, Turn, Turns

_LEAST_STEPS = 4
_LAST_STEPS = 4
_MOST_STEPS = 5000


class Bench:
    """The ways of one type of pixels on this rank."""

    def __init__(self, plan: Plan, dtype: Dtype, accelerator: Any) -> None:  # noqa: ANN401 - accelerate is untyped
        self._plan, self._dtype, self._rank = plan, dtype, accelerator.process_index
        self._carriers: dict[Arm, Carrier] = {name: CARRIERS[name](plan, dtype, accelerator) for name in plan.arms}
        self._steps = dict.fromkeys(plan.arms, _LEAST_STEPS)

    def fit(self, arm: Arm) -> None:
        """Find how many steps of a way take the seconds of the plan."""
        step_s = largest(self.turn(arm).seconds) / self._steps[arm]
        self._steps[arm] = min(_MOST_STEPS, max(_LEAST_STEPS, math.ceil(self._plan.seconds / step_s)))

    def turn(self, arm: Arm) -> Turn:
        """Measure one way once; all ranks begin together."""
        carrier, steps, warmup = self._carriers[arm], self._steps[arm], self._plan.warmup_steps
        whole = warmup + steps + _LAST_STEPS
        received = carrier.received_bytes()
        images = carrier.images(whole)
        self._take(images, range(warmup))
        meet()
        begin = time.perf_counter()
        self._take(images, range(warmup, warmup + steps))
        seconds = time.perf_counter() - begin
        self._take(images, range(warmup + steps, whole))
        if next(images, None) is not None:
            raise WrongPortionError(whole, "another step", "none")
        received = (carrier.received_bytes() - received) // whole
        meet()
        return Turn(dtype=self._dtype, arm=arm, steps=steps, seconds=seconds, received_bytes=received)

    def close(self) -> None:
        """Give back what the ways hold."""
        for carrier in self._carriers.values():
            carrier.close()

    def _take(self, images: Iterator[torch.Tensor], steps: range) -> None:
        for step in steps:
            check(next(images), self._plan, self._dtype, step=step, rank=self._rank)


def work(plan: Plan, tell: Tell) -> Turns:
    """Measure everything."""
    accelerator = joined(plan.ranks)
    turns: list[Turn] = []
    for dtype in plan.dtypes:
        bench = Bench(plan, dtype, accelerator)
        for arm in plan.arms:
            bench.fit(arm)
        for number in range(plan.rounds):
            turns += [bench.turn(arm) for arm in (plan.arms[::-1] if number % 2 else plan.arms)]
            if accelerator.is_main_process:
                tell(f"{plan.ranks} ranks, {dtype}: round {number + 1} of {plan.rounds}")
        bench.close()
        accelerator.free_memory()
    meet()
    accelerator.end_training()
    return Turns(turns)


if __name__ == "__main__":
    sys.exit(serve(Plan, work))
