"""The seam to accelerate: its stock dispatcher and its stock sharded loader, built around our steps.

`transport="stock"` is the baseline: the main process loads whole steps, accelerate's `DataLoaderDispatcher` sends
each whole step to every rank and each cuts out its slice. It carries tensors only, so steps travel packed
(stream/plain.py). Steps come already padded to a multiple of the ranks, so its own padding never runs.
"""

from collections.abc import Iterator
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard
from accelerate.utils.environment import get_cpu_distributed_information
from torch.utils.data import IterableDataset

from stream.job import Job
from stream.passing import LoaderParts, Passing, same


def job_of(accelerator: Accelerator) -> Job:
    """Read an Accelerator's ranks and configuration."""
    return Job(
        ranks=accelerator.num_processes,
        rank=accelerator.process_index,
        host_ranks=min(get_cpu_distributed_information().local_world_size, accelerator.num_processes),
        dispatch_batches=accelerator.dispatch_batches,
        split_batches=bool(accelerator.split_batches),
        even_batches=bool(accelerator.even_batches),
        device=accelerator.device,
        on_device=bool(accelerator.device_placement),
        non_blocking=bool(accelerator.non_blocking),
        accumulates=accelerator.gradient_accumulation_steps > 1,
    )


def is_prepared(accelerator: Accelerator, loader: object) -> bool:
    """Tell whether `accelerator.prepare` has seen this very loader."""
    return any(known is loader for known in accelerator._dataloaders)  # noqa: SLF001 - accelerate has no public way


class StockPassing(Passing):
    """Batches through a stock loader; takes part in accelerate's gradient state until closed, also in mid-epoch."""

    def is_last(self) -> bool:
        """Tell whether the batch just returned is this rank's last."""
        return bool(self._inner.end_of_dataloader)

    def set_remainder(self, real_rows: int) -> None:
        """Tell accelerate, so that gather_for_metrics trims the padding."""
        self._inner.remainder = real_rows

    def close(self) -> None:
        """End the epoch; accelerate forgets the loader. Idempotent."""
        super().close()
        self._inner.end()


def stock_shard(parts: LoaderParts, job: Job) -> Passing:
    """Return this rank's own batches through accelerate's `DataLoaderShard`."""
    inner = DataLoaderShard(
        parts.dataset,
        device=job.device if job.on_device else None,
        _drop_last=True,  # the remainder is told by set_remainder
        _non_blocking=job.non_blocking,
        batch_size=parts.batch_size,
        batch_sampler=parts.sampler,
        collate_fn=parts.finish or same,
        num_workers=parts.workers,
        prefetch_factor=parts.prefetch,
        pin_memory=parts.pin_memory,
        generator=torch.Generator(),
    )
    return StockPassing(inner)


def stock_dispatch(parts: LoaderParts, job: Job) -> Passing:
    """Return this rank's slice of each step that the main process loads, through `DataLoaderDispatcher`.

    Only the main process uses the parts; the other ranks load nothing and start no workers.
    """
    mine = parts if job.rank == 0 else LoaderParts(dataset=_Nothing())
    inner = DataLoaderDispatcher(
        mine.dataset,
        split_batches=True,
        _drop_last=True,  # steps come padded to a multiple of the ranks
        _non_blocking=job.non_blocking,
        batch_size=mine.batch_size,
        batch_sampler=mine.sampler,
        collate_fn=mine.finish or same,
        num_workers=mine.workers,
        prefetch_factor=mine.prefetch,
        pin_memory=mine.pin_memory,
        generator=torch.Generator(),
    )
    return StockPassing(inner, packed=True, to_cpu=not job.on_device)


class _Nothing(IterableDataset[Any]):
    """What a rank reads that only receives."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())
