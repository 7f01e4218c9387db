"""How many processes the launcher started, whatever the Accelerator knows of them, and whether a loader knows it."""

import os

import torch

from stream.errors import NotPreparedError


def launched_ranks() -> int:
    """Return how many processes the launcher started, as it says in WORLD_SIZE; 1 where there was no launcher.

    The one environment variable that is read: an `Accelerator()` that found no GPU under torchrun is alone and does
    not know of the others.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    said = os.environ.get("WORLD_SIZE", "1")
    return int(said) if said.isdecimal() else 1


def refuse_unprepared(name: str, ranks: int, *, alone: bool, registered: bool) -> None:
    """Refuse to iterate a loader that does not know the other processes of its job, where there are others.

    `ranks` is how many its Accelerator knows, `alone` tells that it has none, `registered` that it was prepared.

    Raises:
        NotPreparedError: it does not know them.
    """
    launched = max(ranks, launched_ranks())
    if launched == 1:
        return
    if alone:
        raise NotPreparedError(name, launched, "it was made without the job's Accelerator")
    if ranks == 1:
        problem = "its Accelerator is alone; without a GPU write Accelerator(cpu=True) or set ACCELERATE_USE_CPU=1"
        raise NotPreparedError(name, launched, problem)
    if not registered:
        raise NotPreparedError(name, launched, "it has not gone through accelerator.prepare()")
