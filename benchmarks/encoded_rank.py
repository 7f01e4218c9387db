"""One rank of `encoded.py`: brings the same encoded samples into memory, each way in turns, and tells how long it took.

The first steps of an epoch, in which its threads start, and the last ones, in which nothing is read ahead any more, are
left out of every way's time; what was received is counted over whole epochs.
"""

import sys
import time

from answering import Tell, serve
from encoded_arms import Bringer, Steps, bringer
from encoded_plan import Arm, Plan, Turn, Turns
from meeting import joined, meet
from shards.dataset import DatasetReader

LAST_STEPS = 2


class Bench:
    """All ways on this rank."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self._plan, steps = plan, Steps(plan, DatasetReader(plan.data))
        self._timed = range(plan.warmup_steps, steps.schedule.steps - LAST_STEPS)
        self._bringers = {arm: bringer(arm, plan, steps, rank=rank) for arm in plan.arms}

    def turn(self, arm: Arm) -> Turn:
        """Measure one way once; all ranks begin together."""
        passes = [self._pass(arm) for _ in range(self._plan.passes)]
        return Turn(
            arm=arm,
            seconds=sum(one.seconds for one in passes),
            part_bytes=sum(one.part_bytes for one in passes),
            epoch_bytes=sum(one.epoch_bytes for one in passes),
            received_bytes=sum(one.received_bytes for one in passes),
        )

    def close(self) -> None:
        """Give back what the ways hold."""
        for one in self._bringers.values():
            if one is not None:
                one.close()

    def _pass(self, arm: Arm) -> Turn:
        one = self._bringers[arm]
        meet()
        turn = (
            Turn(arm=arm, seconds=0, part_bytes=0, epoch_bytes=0, received_bytes=0)
            if one is None
            else self._epoch(arm, one)
        )
        meet()
        return turn

    def _epoch(self, arm: Arm, one: Bringer) -> Turn:
        received, steps = one.received_bytes(), one.steps()
        before = sum(next(steps) for _ in range(self._timed.start))
        begin = time.perf_counter()
        size = sum(next(steps) for _ in self._timed)
        seconds = time.perf_counter() - begin
        whole = before + size + sum(steps)
        received = one.received_bytes() - received
        return Turn(arm=arm, seconds=seconds, part_bytes=size, epoch_bytes=whole, received_bytes=received)


def work(plan: Plan, tell: Tell) -> Turns:
    """Measure everything; the first turn of each way warms up."""
    accelerator = joined(plan.ranks)
    bench, turns = Bench(plan, accelerator.process_index), list[Turn]()
    for arm in plan.arms:
        bench.turn(arm)
    for number in range(plan.rounds):
        turns += [bench.turn(arm) for arm in (plan.arms[::-1] if number % 2 else plan.arms)]
        if accelerator.is_main_process:
            tell(f"encoded bytes: round {number + 1} of {plan.rounds}")
    bench.close()
    meet()
    accelerator.end_training()
    return Turns(turns)


if __name__ == "__main__":
    sys.exit(serve(Plan, work))
