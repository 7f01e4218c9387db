"""What the ranks of a measurement do together: join, meet, agree on a number. On CPUs, over gloo."""

import torch
import torch.distributed as dist
from accelerate import Accelerator, DataLoaderConfiguration


class WrongRanksError(Exception):
    """The launcher started another number of processes than the Accelerator sees."""

    def __init__(self, found: int, planned: int) -> None:
        super().__init__(found, planned)
        self.found, self.planned = found, planned

    def __str__(self) -> str:
        return f"the Accelerator sees {self.found} ranks, {self.planned} were planned"


def joined(ranks: int) -> Accelerator:
    """Join the other ranks; batches are dispatched and split over them.

    Raises:
        WrongRanksError: there are more or fewer of them than planned.
    """
    torch.set_num_threads(1)
    config = DataLoaderConfiguration(dispatch_batches=True, split_batches=True)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    if accelerator.num_processes != ranks:
        raise WrongRanksError(accelerator.num_processes, ranks)
    return accelerator


def largest(value: float) -> float:
    """Return the largest of all ranks' values, when all have come here."""
    if not dist.is_initialized():
        return value
    told = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(told, op=dist.ReduceOp.MAX)
    return float(told.item())


def meet() -> None:
    """Wait until all ranks have come here."""
    largest(0.0)
