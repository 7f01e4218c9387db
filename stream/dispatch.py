"""The seam to accelerate: what a job is, and batches that take part in its gradient state.

`transport="ours"` brings steps over an `Exchange`; torch.distributed carries nothing but its addresses. Shard mode
uses accelerate's stock sharded loader. `transport="stock"` is the baseline: the main process loads whole steps,
accelerate's `DataLoaderDispatcher` sends each whole step to every rank and each cuts out its slice. It carries tensors
only, so steps travel packed (stream/plain.py). Steps come already padded to a multiple of the ranks, so its own padding
never runs.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard
from accelerate.state import GradientState
from accelerate.utils import gather_object
from accelerate.utils.environment import get_cpu_distributed_information
from torch.utils.data import IterableDataset

from stream.exchange import Iteration
from stream.job import Job
from stream.passing import LoaderParts, Passing, same
from stream.point import Bookmark

_SHARED = 1002


def job_of(accelerator: Accelerator) -> Job:
    """Read an Accelerator's ranks and configuration."""
    return Job(
        ranks=accelerator.num_processes,
        rank=accelerator.process_index,
        group=group_of(accelerator.torch_device_mesh),
        host_ranks=min(get_cpu_distributed_information().local_world_size, accelerator.num_processes),
        dispatch_batches=accelerator.dispatch_batches,
        split_batches=bool(accelerator.split_batches),
        even_batches=bool(accelerator.even_batches),
        device=accelerator.device,
        on_device=bool(accelerator.device_placement),
        non_blocking=bool(accelerator.non_blocking),
        accumulation=int(accelerator.gradient_accumulation_steps),
        without_effect=_without_effect(accelerator),
    )


def _without_effect(accelerator: Accelerator) -> tuple[str, ...]:
    """Name what the DataLoaderConfiguration sets though it means nothing to a StreamLoader, see stream/describe.py."""
    config = accelerator.dataloader_config
    said = {
        "use_seedable_sampler": config.use_seedable_sampler,
        "data_seed": config.data_seed is not None,
        "use_stateful_dataloader": config.use_stateful_dataloader,
    }
    return tuple(name for name, is_set in said.items() if is_set)


def group_of(mesh: Any) -> int:  # noqa: ANN401 - torch's mesh, or None
    """Return how many ranks get the same portion: those that split one model's tensors or sequences among them."""
    names = () if mesh is None else mesh.mesh_dim_names
    group = 1
    for name in ("tp", "cp"):  # not "sp": accelerate lets each of those ranks read, and exchanges sequences itself
        if name in names:
            group *= mesh[name].size()
    return group


def share_over(job: Job) -> Callable[[bytes], bytes]:
    """Return what broadcasts rank 0's bytes, at most 1,000, to all ranks, by the job's own process group."""

    def share(data: bytes) -> bytes:
        if len(data) > _SHARED - 2:
            raise ValueError(f"{len(data)} bytes are too many to share, at most {_SHARED - 2}")
        padded = len(data).to_bytes(2, "little") + data
        message = torch.zeros(_SHARED, dtype=torch.uint8)
        message[: len(padded)] = torch.frombuffer(bytearray(padded), dtype=torch.uint8)
        message = message.to(job.device)
        torch.distributed.broadcast(message, src=0)
        got = message.cpu().numpy().tobytes()
        return got[2 : 2 + int.from_bytes(got[:2], "little")]

    return share


def is_prepared(accelerator: Accelerator, loader: object) -> bool:
    """Tell whether `accelerator.prepare` has seen this very loader."""
    return any(known is loader for known in accelerator._dataloaders)  # noqa: SLF001 - accelerate has no public way


class LinkedPassing(Passing):
    """Steps of an exchange; `owner` takes part in accelerate's gradient state until closed, also in mid-epoch.

    `hand_over` makes a batch usable by the training loop's thread; `ends` are called
    before and after the iteration's threads end.
    """

    def __init__(
        self,
        iteration: Iteration,
        owner: Any,  # noqa: ANN401 - a loader
        hand_over: Callable[[Any], Any],
        *,
        registered: bool,
        ends: tuple[Callable[[], None], Callable[[], None]],
    ) -> None:
        super().__init__(())
        self._iteration, self._owner, self._hand_over, self._ends = iteration, owner, hand_over, ends
        self._state = GradientState() if registered else None
        self._is_last = self._begun = self._closed = False
        self._position: int | None = None
        self._bookmark: Bookmark | None = None

    def __next__(self) -> tuple[Any, int | None]:
        if self._closed or self._is_last:
            raise StopIteration
        if self._state is not None and not self._begun:
            self._state._add_dataloader(self._owner)  # noqa: SLF001 - as accelerate's own loaders do
        self._begun = True
        try:
            delivered = self._iteration.take()
        except BaseException as exc:
            self.close(exc)
            raise
        if delivered is None:
            raise StopIteration
        self._is_last, self._position, self._bookmark = delivered.last, delivered.position, delivered.bookmark
        return self._hand_over(delivered.batch), delivered.real_rows

    @property
    def position(self) -> int | None:
        """Position in the epoch behind the batch just returned."""
        return self._position

    @property
    def bookmark(self) -> Bookmark | None:
        """What the source said of itself up to that position."""
        return self._bookmark

    def is_last(self) -> bool:
        """Tell whether the batch just returned is this rank's last."""
        return self._is_last

    def close(self, error: BaseException | None = None) -> None:
        """End the iteration; the other ranks hear of the error, if it is one. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._state is not None and self._begun:
            self._state._remove_dataloader(self._owner)  # noqa: SLF001 - as above
        before, after = self._ends
        before()
        self._iteration.end(error)
        after()


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


def union(numbers: list[int]) -> list[int]:
    """Return all ranks' numbers, ascending, each once; every rank must call it."""
    return sorted(set(gather_object(numbers)))


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
