"""One rank of `busy_main.py`: a training loop that runs pure Python, beside a loader that decodes in threads or not.

The work of a step is a fixed number of turns of a loop, chosen so that it takes half as long as the loading of a step
when nothing else runs. The loop never waits, so the interpreter's lock is all its own for that half.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from statistics import median
from typing import Any, cast

import torch

from answering import Tell, serve
from busy_main_plan import DecodeIn, Plan, Turn, Turns
from meeting import joined, largest, meet
from stream.loader import StreamLoader
from stream.options import StreamOptions

_SHARE = 0.5  # of the loading of a step
_PROBE_TURNS = 200_000
_PROBES = 5


class Bench:
    """One way of decoding on this rank."""

    def __init__(self, plan: Plan, decode_in: DecodeIn, accelerator: Any) -> None:  # noqa: ANN401 - accelerate is untyped
        self._plan, self._decode_in = plan, decode_in
        self._loader = StreamLoader(
            plan.data,
            accelerator=accelerator,
            batch_size=plan.rows,
            image_size=plan.side,
            name=decode_in,
            options=StreamOptions(transport="ours", decode_in=decode_in, decode_threads=1),
        )
        accelerator.prepare(self._loader)
        self._turns = 1

    def fit(self) -> None:
        """Find how many turns of the loop take their share of a step."""
        step_s = largest(self._steps(lambda: None)) / self._plan.steps
        turn_s = _alone(_PROBE_TURNS) / _PROBE_TURNS
        self._turns = max(1, round(_SHARE * step_s / turn_s))

    def turn(self) -> Turn:
        """Measure once without and once with Python in the steps; all ranks begin together."""
        meet()
        alone_s, took = _alone(self._turns), list[float]()
        calm_s = self._steps(lambda: None)
        busy_s = self._steps(lambda: took.append(spin(self._turns)))
        return Turn(
            decode_in=self._decode_in,
            calm_s=calm_s,
            busy_s=busy_s,
            python_s=median(took[self._plan.warmup_steps :]),
            alone_s=alone_s,
        )

    def close(self) -> None:
        """Give back what the loader holds."""
        self._loader.close()

    def _steps(self, work: Callable[[], object]) -> float:
        """Return the seconds of the steps of a turn, each with this work."""
        with closing(cast("Any", iter(self._loader))) as batches:
            _take(batches, self._plan.warmup_steps, work)
            meet()
            begin = time.perf_counter()
            _take(batches, self._plan.steps, work)
            seconds = time.perf_counter() - begin
        meet()
        return seconds


def _take(batches: Iterator[dict[str, torch.Tensor]], steps: int, work: Callable[[], object]) -> None:
    for _ in range(steps):
        next(batches)["image"][0, 0, 0, 0].item()
        work()


def spin(turns: int) -> float:
    """Run pure Python and return the seconds it took."""
    begin, value = time.perf_counter(), 1
    for turn in range(turns):
        value = (value * 31 + turn) % 1009
    return time.perf_counter() - begin


def _alone(turns: int) -> float:
    return median(spin(turns) for _ in range(_PROBES))


def work(plan: Plan, tell: Tell) -> Turns:
    """Measure everything."""
    accelerator = joined(plan.ranks)
    benches = [Bench(plan, decode_in, accelerator) for decode_in in plan.decode_in]
    turns: list[Turn] = []
    for bench in benches:
        bench.fit()
    for number in range(plan.rounds):
        turns += [bench.turn() for bench in (benches[::-1] if number % 2 else benches)]
        if accelerator.is_main_process:
            tell(f"busy main thread: round {number + 1} of {plan.rounds}")
    for bench in benches:
        bench.close()
    meet()
    accelerator.end_training()
    return Turns(turns)


if __name__ == "__main__":
    sys.exit(serve(Plan, work))
