"""The ways to carry ready batches from rank 0 to all ranks, made alike so that one loop measures each.

    stock    accelerate's own DataLoaderDispatcher, around a DataLoader of ready batches
    scatter  torch.distributed.scatter; the sender gives views of the batch, each receiver's memory is taken once
    ours     StreamLoader, its source the same ready batches

Scatter has no structure to announce, no end to look for and no memory to hand over, so it has less to do than a loader.
"""

from collections.abc import Iterator
from itertools import cycle, islice, repeat
from typing import Any, Protocol

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.data_loader import DataLoaderDispatcher
from torch.utils.data import IterableDataset

from stream.loader import StreamLoader
from stream.options import StreamOptions
from tcp_bytes import tcp_received_bytes
from transport_plan import Arm, Dtype, Plan

BATCHES = 4  # that the source gives in turns: none is still in a cache when it comes again
_MARKS = 251  # the largest prime in a byte, so that marks of different batches differ
_DTYPES = {"float32": torch.float32, "uint8": torch.uint8}


class WrongPortionError(Exception):
    """A rank got something else than its portion, so the speed means nothing."""

    def __init__(self, step: int, got: object, expected: object) -> None:
        super().__init__(step, got, expected)
        self.step, self.got, self.expected = step, got, expected

    def __str__(self) -> str:
        return f"the portion of step {self.step} is wrong: got {self.got}, expected {self.expected}"


class ReadyBatches(IterableDataset[dict[str, torch.Tensor]]):
    """So many `steps` of ready batches {"image": [rows, 3, side, side]}; first and last value of each row mark it."""

    def __init__(self, plan: Plan, dtype: Dtype, *, filled: bool) -> None:
        """Make the batches, on the one rank where they are read (`filled`)."""
        super().__init__()
        self.steps = 0
        shape = (plan.rows, 3, plan.side, plan.side)
        self._images = [torch.ones(shape, dtype=_DTYPES[dtype]) for _ in range(BATCHES if filled else 0)]
        for number, image in enumerate(self._images):
            marks = torch.tensor([mark(plan, number, row) for row in range(plan.rows)])
            image[:, 0, 0, 0] = image[:, -1, -1, -1] = marks.to(image.dtype)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return ({"image": image} for image in islice(cycle(self._images), self.steps))


def mark(plan: Plan, step: int, row: int) -> int:
    """Return what marks a row of a step."""
    return (step % BATCHES * plan.rows + row) % _MARKS


def check(image: torch.Tensor, plan: Plan, dtype: Dtype, *, step: int, rank: int) -> None:
    """Look at a portion: its shape, its type, and the marks at its beginning and end.

    Raises:
        WrongPortionError: it is not this rank's portion of this step.
    """
    share = plan.rows // plan.ranks
    first, last = mark(plan, step, rank * share), mark(plan, step, (rank + 1) * share - 1)
    expected = ((share, 3, plan.side, plan.side), _DTYPES[dtype], first, last)
    got = (tuple(image.shape), image.dtype, int(image[0, 0, 0, 0].item()), int(image[-1, -1, -1, -1].item()))
    if got != expected:
        raise WrongPortionError(step, got, expected)


class Carrier(Protocol):
    """One way."""

    def images(self, steps: int) -> Iterator[torch.Tensor]:
        """Begin an epoch of so many steps and yield this rank's portion of each."""

    def received_bytes(self) -> int:
        """Return how many bytes this rank received so far; only differences mean something."""

    def close(self) -> None:
        """Give back what is held."""


class Stock:
    """See the top of this file."""

    def __init__(self, plan: Plan, dtype: Dtype, accelerator: Accelerator) -> None:
        self._source = ReadyBatches(plan, dtype, filled=accelerator.is_main_process)
        # Made here, for prepare() refuses to split the batches of a DataLoader without a batch size
        self._loader: Any = DataLoaderDispatcher(self._source, split_batches=True, _drop_last=True, batch_size=None)

    def images(self, steps: int) -> Iterator[torch.Tensor]:
        """Yield this rank's slices."""
        self._source.steps = steps
        for batch in self._loader:
            yield batch["image"]

    def received_bytes(self) -> int:
        """Return what came over all TCP connections of this process."""
        return tcp_received_bytes()

    def close(self) -> None:
        """Do nothing: it holds but memory."""


class Scatter:
    """See the top of this file."""

    def __init__(self, plan: Plan, dtype: Dtype, accelerator: Accelerator) -> None:
        self._ranks, self._reads = plan.ranks, accelerator.is_main_process
        self._source = ReadyBatches(plan, dtype, filled=self._reads)
        self._portion = torch.empty((plan.rows // plan.ranks, 3, plan.side, plan.side), dtype=_DTYPES[dtype])

    def images(self, steps: int) -> Iterator[torch.Tensor]:
        """Yield the same memory again and again, filled anew."""
        self._source.steps = steps
        for batch in self._source if self._reads else repeat(None, steps):
            pieces = None if batch is None else list(batch["image"].chunk(self._ranks))
            dist.scatter(self._portion, pieces)
            yield self._portion

    def received_bytes(self) -> int:
        """Return what came over all TCP connections of this process."""
        return tcp_received_bytes()

    def close(self) -> None:
        """Do nothing: it holds but memory."""


class Ours:
    """See the top of this file."""

    def __init__(self, plan: Plan, dtype: Dtype, accelerator: Accelerator) -> None:
        self._source = ReadyBatches(plan, dtype, filled=accelerator.is_main_process)
        self._loader = StreamLoader(
            self._source, batch_size=None, accelerator=accelerator, options=StreamOptions(transport="ours")
        )
        accelerator.prepare(self._loader)

    def images(self, steps: int) -> Iterator[torch.Tensor]:
        """Yield this rank's portions."""
        self._source.steps = steps
        for batch in self._loader:
            yield batch["image"]

    def received_bytes(self) -> int:
        """Return what the loader counts, headers and messages included."""
        return self._loader.stats.received_bytes

    def close(self) -> None:
        """Close the loader with its links."""
        self._loader.close()


CARRIERS: dict[Arm, type[Stock] | type[Scatter] | type[Ours]] = {"stock": Stock, "scatter": Scatter, "ours": Ours}
