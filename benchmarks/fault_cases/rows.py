"""The datasets of the faults, and how the steps that ranks got are told and put together again."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from fault_cases.making import Found, Verdict


class Numbers(Dataset[dict[str, torch.Tensor]]):
    """`rows` rows that hold their number; remembers when which was read in this process."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        self.read.append(number)
        return {"number": torch.tensor(number)}


class Series(IterableDataset[dict[str, torch.Tensor]]):
    """As `Numbers`, one after another; the order changes with the epoch when `turned`.

    Worker w of several gives the rows of `shares[w]` (rows by worker), in the order of the workers.
    """

    def __init__(self, rows: int, *, shares: Sequence[int] = (), turned: bool = False) -> None:
        self.rows, self.shares, self.turned = rows, shares, turned
        self.epoch = 0
        self.read: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        """Turn the order."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        turn = self.epoch if self.turned else 0
        for number in self._own():
            self.read.append(number)
            yield {"number": torch.tensor((number + turn) % self.rows)}

    def _own(self) -> range:
        worker = get_worker_info()
        if worker is None or not self.shares:
            return range(self.rows)
        start = sum(self.shares[: worker.id])
        return range(start, start + self.shares[worker.id])


def numbers_of(loader: Any, accelerator: Accelerator) -> Found:  # noqa: ANN401 - either kind of loader
    """Iterate one epoch: the numbers of each step, and what accelerate knew at the last."""
    state, steps = accelerator.gradient_state, []
    last, remainder = False, -1
    for batch in loader:
        steps.append(batch["number"].tolist())
        last, remainder = state.end_of_dataloader, state.remainder
    return {"steps": steps, "last": last, "remainder": remainder}


def whole_steps(ranks: Sequence[Found]) -> list[list[int]]:
    """Put the portions of each step together, in the order of the ranks."""
    longest = max(len(rank["steps"]) for rank in ranks)
    portions = [[rank["steps"][step] for rank in ranks if step < len(rank["steps"])] for step in range(longest)]
    return [[number for portion in step for number in portion] for step in portions]


def real_rows(ranks: Sequence[Found]) -> list[int]:
    """Return all numbers in order without the padding of the last step, as gather_for_metrics would."""
    steps = whole_steps(ranks)
    remainder = ranks[0]["remainder"]
    if steps and 0 < remainder < len(steps[-1]):
        steps[-1] = steps[-1][:remainder]
    return [number for step in steps for number in step]


def once_each(ranks: Sequence[Found], wanted: Sequence[int]) -> Verdict:
    """Judge whether every row came exactly once, padding apart, and only the last step was short."""
    got, sizes = real_rows(ranks), [[len(portion) for portion in rank["steps"]] for rank in ranks]
    missing, twice = len(set(wanted) - set(got)), len(got) - len(set(got))
    uneven = any(size != sizes[0][0] for rank in sizes for size in rank[:-1])
    words = f"{len(wanted)} rows in, {len(set(got))} out" + (f", {twice} of them twice" if twice else "")
    if uneven:
        words += f", steps of unequal size in mid-epoch {sizes[0]}"
    return Verdict(not missing and not twice and not uneven, words)


def wait_until(holds: Any, limit_s: float) -> bool:  # noqa: ANN401 - a function without arguments
    """Wait until it holds, and tell whether it did within the limit."""
    until = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True
