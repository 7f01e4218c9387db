"""The job that a loader is part of: how many ranks, which one this is, and what its Accelerator was told."""

from dataclasses import dataclass

import torch

_CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Job:
    """The ranks as one of them sees them.

    `rank` counts from 0 over all hosts; `host_ranks` share this host's cores. Ranks of one data-parallel group (tensor
    or context parallel beside it) get the same portion, so there are `ranks // group` portions. The rest is the
    Accelerator's own configuration, see `accelerate.DataLoaderConfiguration`; `on_device` tells whether batches are
    moved to `device`, `accumulation` over how many steps gradients are accumulated, `without_effect` names what was
    set though it means nothing to our loaders.
    """

    ranks: int = 1
    rank: int = 0
    host_ranks: int = 1
    group: int = 1
    dispatch_batches: bool | None = None
    split_batches: bool = True
    even_batches: bool = True
    device: torch.device = _CPU
    on_device: bool = False
    accumulation: int = 1
    non_blocking: bool = False
    without_effect: tuple[str, ...] = ()

    @property
    def portions(self) -> int:
        """How many portions a step is cut into."""
        return self.ranks // self.group

    @property
    def portion(self) -> int:
        """Which portion this rank gets."""
        return self.rank // self.group
