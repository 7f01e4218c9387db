"""C1 to C4: read errors, stalls, deaths, skipping and exits."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from accelerate.utils import broadcast_object_list

from fault_cases.making import Fault, Found, Make, Verdict, Wanted, error_words
from fault_cases.rows import Numbers, Series, numbers_of, once_each, real_rows

_GOOD_STEPS = 2
_TOLD_WITHIN_S = 2.0
_DEAD_WITHIN_S = 5.0
_STALL_S = 7.0
_GROUP_TIMEOUT_S = 4.0
"""How long the process group waits meanwhile, shorter than the stall."""

_TIMES_OUT = "the others wait for the process group's time-out, which ends the job"
_HELD: list[Any] = []
"""Iterations that are still held when the process ends."""


class Failing(Series):
    """A series that breaks off after so many rows, or stalls there; remembers when."""

    def __init__(self, rows: int, *, at: int, stall_s: float | None = None) -> None:
        super().__init__(rows)
        self.at, self.stall_s, self.failed_s = at, stall_s, 0.0

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for number, row in enumerate(super().__iter__()):
            if number == self.at:
                self._fail()
            yield row

    def _fail(self) -> None:
        if self.stall_s is not None:
            time.sleep(self.stall_s)
            return
        self.failed_s = time.monotonic()
        raise OSError("the connection was reset")


class FailingRows(Numbers):
    """Rows by number, one of which cannot be read."""

    def __init__(self, rows: int, *, at: int) -> None:
        super().__init__(rows)
        self.at, self.failed_s = at, 0.0

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        if number == self.at:
            self.failed_s = time.monotonic()
            raise OSError("the connection was reset")
        return super().__getitem__(number)


def c1(make: Make) -> Found:
    """Iterate sources that raise in their third step, rows by number and one after another."""
    told = {}
    for kind, source_of in (("rows", FailingRows), ("series", Failing)):
        accelerator = make.accelerator()
        step = 3 * accelerator.num_processes
        source = source_of(8 * step, at=_GOOD_STEPS * step + 1)
        got: list[list[int]] = []
        words = "none"
        try:
            for batch in make.loader(accelerator, source, Wanted(batch_size=3)):
                got.append(batch["number"].tolist())  # noqa: PERF401 - what came before the error is kept
        except Exception as exc:  # noqa: BLE001 - any error is what is looked at
            words = error_words(exc)
        told[kind] = {"steps": got, "error": words, "failed_s": source.failed_s, "told_s": time.monotonic()}
        told[kind]["registered"] = accelerator.gradient_state.in_dataloader
        accelerator.wait_for_everyone()  # the ranks still understand each other
    return {"told": told}


def judge_c1(ranks: Sequence[Found]) -> Verdict:
    """The same error must come on every rank in time, after the good steps."""
    words, right = [], True
    for kind in ("rows", "series"):
        told = [rank["told"][kind] for rank in ranks]
        late_s = max(one["told_s"] for one in told) - max(one["failed_s"] for one in told)
        errors = {one["error"] for one in told}
        same = len(errors) == 1 and "OSError: the connection was reset" in errors.pop()
        good = all(len(one["steps"]) == _GOOD_STEPS and not one["registered"] for one in told)
        right = right and same and good and late_s < _TOLD_WITHIN_S
        words.append(f"{kind}: {told[-1]['error']} after {len(told[-1]['steps'])} steps, {late_s:.2f} s late")
    return Verdict(right, "; ".join(words))


def c2(make: Make) -> Found:
    """Iterate a source that stalls for longer than the process group waits."""
    accelerator = make.accelerator()
    step = 3 * accelerator.num_processes
    source = Failing(5 * step, at=_GOOD_STEPS * step + 1, stall_s=_STALL_S)
    loader = make.loader(accelerator, source, Wanted(batch_size=3))
    with _group_timeout(_GROUP_TIMEOUT_S):
        return numbers_of(loader, accelerator)


@contextlib.contextmanager
def _group_timeout(seconds: float) -> Iterator[None]:
    """Give the process group another time-out, as InitProcessGroupKwargs would at the start of a job."""
    set_timeout = torch.distributed.distributed_c10d._set_pg_timeout  # noqa: SLF001 - torch has no public way
    set_timeout(timedelta(seconds=seconds), torch.distributed.group.WORLD)
    try:
        yield
    finally:
        set_timeout(torch.distributed.constants.default_pg_timeout, torch.distributed.group.WORLD)


def judge_c2(ranks: Sequence[Found]) -> Verdict:
    """A stall must only be waited for."""
    return once_each(ranks, range(5 * 3 * len(ranks)))


def die(make: Make, rank: int) -> Found:
    """Iterate while a rank is killed in mid-epoch, at a time that all know; tell what this one raised, and when."""
    accelerator = make.accelerator()
    loader = make.loader(accelerator, Numbers(3000 * accelerator.num_processes), Wanted(batch_size=3))
    told = [time.monotonic() + 1.0]
    broadcast_object_list(told)
    steps = 0
    try:
        for _ in loader:
            steps += 1
            time.sleep(0.01)
            if accelerator.process_index == rank and time.monotonic() > told[0]:
                os.kill(os.getpid(), signal.SIGKILL)
    except Exception as exc:  # noqa: BLE001 - any error is what is looked at
        return {"error": error_words(exc), "late_s": time.monotonic() - told[0], "steps": steps}
    return {"error": "none", "late_s": time.monotonic() - told[0], "steps": steps}


def judge_death(ranks: Sequence[Found | None], dead: int) -> Verdict:
    """Every survivor must raise in time, and name the dead rank."""
    alive = [rank for rank in ranks if rank is not None]
    named = all(f"rank {dead}" in rank["error"] for rank in alive)
    late_s = max(rank["late_s"] for rank in alive)
    words = f"{alive[0]['error']}, {late_s:.2f} s after the death"
    return Verdict(named and 0 < late_s < _DEAD_WITHIN_S and all(rank["steps"] for rank in alive), words)


def c3(make: Make) -> Found:
    """Skip three steps; note which rows were read, and which were put into batches."""
    told = {}
    for kind, source_of in (("rows", Numbers), ("series", Series)):
        accelerator = make.accelerator()
        source = source_of(6 * 3 * accelerator.num_processes)
        collated: list[int] = []

        def collate(rows: list[dict[str, torch.Tensor]], seen: list[int] = collated) -> dict[str, torch.Tensor]:
            seen.extend(int(row["number"]) for row in rows)
            return {"number": torch.stack([row["number"] for row in rows])}

        skipped = make.skip(make.loader(accelerator, source, Wanted(batch_size=3, collate=collate)), 3)
        steps = numbers_of(skipped, accelerator)
        told[kind] = {**steps, "read": sorted(set(source.read)), "collated": sorted(set(collated))}
    return {"told": told}


def judge_c3(ranks: Sequence[Found]) -> Verdict:
    """Nothing skipped may be read where rows have numbers, and nowhere be put into a batch."""
    step = 3 * len(ranks)
    words, right = [], True
    for kind in ("rows", "series"):
        told = [rank["told"][kind] for rank in ranks]
        read = sum(number < 3 * step for number in told[0]["read"])
        made = sum(number < 3 * step for number in told[0]["collated"])
        exact = real_rows(told) == list(range(3 * step, 6 * step))
        right = right and exact and made == 0 and (read == 0 or kind == "series")
        words.append(f"{kind}: of {3 * step} rows to skip {read} read, {made} put into batches")
    return Verdict(right, "; ".join(words))


def c4(make: Make) -> Found:
    """Iterate an epoch, and hold on to another one that has begun."""
    accelerator = make.accelerator()
    loader = make.loader(accelerator, Numbers(48), Wanted(batch_size=3))
    told = numbers_of(loader, accelerator)
    _HELD.append(iter(make.loader(accelerator, Series(4800), Wanted(batch_size=3, name="held"))))
    next(_HELD[-1])
    return told


def judge_c4(ranks: Sequence[Found]) -> Verdict:
    """The epoch must be whole; how the ranks end is seen from outside."""
    return once_each(ranks, range(48))


FAULTS = (
    Fault(id="C1", what="a read error", run=c1, judge=judge_c1, stock=_TIMES_OUT),
    Fault(id="C2", what="a stall beyond the group's time-out", run=c2, judge=judge_c2, stock=_TIMES_OUT),
    Fault(id="C3", what="skipping", run=c3, judge=judge_c3),
    Fault(id="C4", what="ending", run=c4, judge=judge_c4, holds=True, stock="aborts once in many exits"),
)
