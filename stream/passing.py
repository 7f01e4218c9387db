"""Batches on their way to the training loop, through a torch DataLoader."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

from stream.plain import unpack
from stream.point import Bookmark
from stream.sharded import Failed
from stream.steps import Told, unnamed


@dataclass(frozen=True, kw_only=True)
class LoaderParts:
    """What a torch DataLoader is made of.

    `sampler` None means that `dataset` gives finished batches itself. `prefetch` counts batches per worker and has a
    meaning only with workers.
    """

    dataset: Any
    sampler: Any = None
    finish: Any = None
    workers: int = 0
    prefetch: int | None = None
    pin_memory: bool = False

    @property
    def batch_size(self) -> int | None:
        """What torch wants to hear about the batch size beside a batch sampler, or without one."""
        return None if self.sampler is None else 1


class Passing(Iterator[tuple[Any, int | None]]):
    """The batches of one epoch on this rank: (batch, rows of the whole step without padding, where the step told).

    Nothing starts before the first `next`. Raises what failed while the batch was made, in its place.
    """

    def __init__(self, inner: Any, *, packed: bool = False, to_cpu: bool = False) -> None:  # noqa: ANN401 - stock loaders are untyped
        self._inner, self._packed, self._to_cpu = inner, packed, to_cpu
        self._batches: Iterator[Any] | None = None
        self._told_last = False
        self._told_bookmark: Bookmark | None = None

    def __next__(self) -> tuple[Any, int | None]:
        if self._batches is None:
            self._batches = iter(self._inner)
        batch = next(self._batches)
        if isinstance(batch, Failed):
            raise batch.error
        if isinstance(batch, Told):
            self._told_last, self._told_bookmark = batch.last, batch.bookmark
            return batch.batch, batch.real_rows
        if not self._packed:
            return batch, None
        found, real_rows = unpack(batch)
        if real_rows == 0:  # what stands for an epoch without steps
            self.close()
            raise StopIteration
        return unnamed(_to_cpu(found) if self._to_cpu else found), real_rows

    @property
    def position(self) -> int | None:
        """Position in the epoch behind the batch just returned, where the step told it."""
        return None

    @property
    def bookmark(self) -> Bookmark | None:
        """What the source said of itself up to there, where it says anything."""
        return self._told_bookmark

    def is_last(self) -> bool:
        """Tell whether the batch just returned is known to be this rank's last."""
        return self._told_last

    def set_remainder(self, real_rows: int) -> None:
        """Tell whom it concerns how many rows of the last step are no padding."""

    def close(self) -> None:
        """End the epoch with its threads and workers. Idempotent."""
        batches, self._batches = self._batches, iter(())
        close = getattr(batches, "close", None)
        if close is not None:
            close()


def plain_passing(parts: LoaderParts) -> Passing:
    """Return the batches of one process that has no Accelerator, through torch's own DataLoader."""
    return Passing(
        DataLoader(
            parts.dataset,
            batch_size=parts.batch_size,
            batch_sampler=parts.sampler,
            collate_fn=parts.finish or same,
            num_workers=parts.workers,
            prefetch_factor=parts.prefetch,
            pin_memory=parts.pin_memory,
            generator=torch.Generator(),  # else every epoch would draw from the user's global generator
        )
    )


def same(batch: Any) -> Any:  # noqa: ANN401 - whatever a batch is
    """Return the batch: what torch is told to collate finished batches with."""
    return batch


def _to_cpu(batch: Any) -> Any:  # noqa: ANN401 - whatever a batch is
    if isinstance(batch, torch.Tensor):
        return batch.cpu()
    if isinstance(batch, dict):
        return {name: _to_cpu(value) for name, value in batch.items()}
    return [_to_cpu(value) for value in batch] if isinstance(batch, list) else batch
