"""The job that a loader is part of: how many ranks, which one this is, and what its Accelerator was told."""

from dataclasses import dataclass

import torch

_CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Job:
    """The ranks as one of them sees them.

    `rank` counts from 0 over all hosts; `host_ranks` share this host's cores. The rest is the Accelerator's own
    configuration, see `accelerate.DataLoaderConfiguration`; `on_device` tells whether batches are moved to `device`,
    `accumulates` whether gradients are accumulated over several steps.
    """

    ranks: int = 1
    rank: int = 0
    host_ranks: int = 1
    dispatch_batches: bool | None = None
    split_batches: bool = True
    even_batches: bool = True
    device: torch.device = _CPU
    on_device: bool = False
    accumulates: bool = False
    non_blocking: bool = False
