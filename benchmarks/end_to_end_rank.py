"""One rank of `end_to_end.py`: takes batches, each way in turns, and tells how long it took.

A round of a way begins a new iteration, takes some steps to warm up, and then the steps that count. The ceiling is
measured by rank 0 while the others wait for it without work.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import closing
from statistics import median
from typing import Any, cast

import torch

from answering import Tell, serve
from ceiling import decode_ceiling
from dataset import images_of
from end_to_end_arms import Loader, loader
from end_to_end_plan import Arm, Plan, Seen, Turn, Waiting
from meeting import joined, largest, meet
from shards.dataset import DatasetReader
from stream.resize import ResizeSpec

SLEEPER: Arm = "ours-uint8"
_CEILING_IMAGES = 512


class WrongImagesError(Exception):
    """A rank got other images than it should, so the speed means nothing."""

    def __init__(self, arm: Arm, got: object, expected: object) -> None:
        super().__init__(arm, got, expected)
        self.arm, self.got, self.expected = arm, got, expected

    def __str__(self) -> str:
        return f"the images by {self.arm} are wrong: got {self.got}, expected {self.expected}"


class Bench:
    """All ways on this rank."""

    def __init__(self, plan: Plan, accelerator: Any) -> None:  # noqa: ANN401 - accelerate is untyped
        self._plan, self._measures_ceiling = plan, accelerator.is_main_process
        self._loaders: dict[Arm, Loader] = {
            arm: loader(arm, plan, accelerator) for arm in plan.arms if arm != "ceiling"
        }
        self._step_s: dict[Arm, list[float]] = {arm: [] for arm in plan.arms}
        reader = DatasetReader(plan.data)
        self._encoded = images_of(reader, most=_CEILING_IMAGES) if self._measures_ceiling else []

    def turn(self, arm: Arm) -> Turn:
        """Measure one way once; all ranks begin together."""
        if arm == "ceiling":
            return self._ceiling()
        plan = self._plan
        with closing(self._images(arm)) as images:
            self._take(arm, images, plan.warmup_steps)
            meet()
            begin = time.perf_counter()
            self._take(arm, images, plan.steps)
            seconds = time.perf_counter() - begin
        self._step_s[arm].append(largest(seconds) / plan.steps)
        return Turn(arm=arm, rows=plan.rows / plan.ranks * plan.steps, seconds=seconds)

    def waiting(self, sleeps: float) -> Waiting:
        """Measure the waits where a step sleeps so many times the loading of one step, as measured before."""
        plan, sleep_s = self._plan, sleeps * median(self._step_s[SLEEPER])
        with closing(self._images(SLEEPER)) as images:
            self._take(SLEEPER, images, plan.warmup_steps, sleep_s)
            meet()
            begin = time.perf_counter()
            wait_s = self._take(SLEEPER, images, plan.steps, sleep_s)
            seconds = time.perf_counter() - begin
        meet()
        return Waiting(sleep_s=sleep_s, wait_s=wait_s, seconds=seconds)

    def close(self) -> None:
        """Give back what the ways hold."""
        for one in self._loaders.values():
            one.close()

    def _images(self, arm: Arm) -> Any:  # noqa: ANN401 - a generator, which can be closed
        return cast("Any", self._loaders[arm].images())

    def _take(self, arm: Arm, images: Iterator[torch.Tensor], steps: int, sleep_s: float = 0.0) -> float:
        """Take steps and return the seconds that were spent waiting for them."""
        wait_s = 0.0
        for _ in range(steps):
            begin = time.perf_counter()
            image = next(images)
            wait_s += time.perf_counter() - begin
            self._check(arm, image)
            if sleep_s:
                time.sleep(sleep_s)
        return wait_s

    def _check(self, arm: Arm, image: torch.Tensor) -> None:
        plan = self._plan
        dtype = torch.float32 if arm.endswith("float32") else torch.uint8
        got, expected = (tuple(image.shape), image.dtype), ((plan.rows // plan.ranks, 3, plan.side, plan.side), dtype)
        if got != expected:
            raise WrongImagesError(arm, got, expected)

    def _ceiling(self) -> Turn:
        plan, found = self._plan, Turn(arm="ceiling", rows=0, seconds=0)
        if self._measures_ceiling:
            spec = ResizeSpec(plan.side, plan.side)
            rate = decode_ceiling(self._encoded, spec=spec, threads=plan.ranks, seconds=plan.ceiling_s, repeats=1)
            found = Turn(arm="ceiling", rows=rate.images_per_s * plan.ceiling_s, seconds=plan.ceiling_s)
        meet()
        return found


def work(plan: Plan, tell: Tell) -> Seen:
    """Measure everything."""
    accelerator = joined(plan.ranks)
    bench, seen = Bench(plan, accelerator), Seen([], [])
    for number in range(plan.rounds):
        seen.turns.extend(bench.turn(arm) for arm in (plan.arms[::-1] if number % 2 else plan.arms))
        if accelerator.is_main_process:
            tell(f"end to end: round {number + 1} of {plan.rounds}")
    if plan.sleeps is not None:
        seen.waiting.extend(bench.waiting(plan.sleeps) for _ in range(plan.rounds))
    bench.close()
    accelerator.free_memory()
    meet()
    accelerator.end_training()
    return seen


if __name__ == "__main__":
    sys.exit(serve(Plan, work))
