"""A12: ranks beside each other in a tensor-parallel or context-parallel group."""

from collections.abc import Sequence

from torch.distributed.device_mesh import init_device_mesh

from fault_cases.making import Fault, Found, Make, Verdict, Wanted
from fault_cases.rows import Numbers, numbers_of, once_each

_BESIDE = 2
"""Ranks of a tensor-parallel or context-parallel group."""


def a12(make: Make) -> Found:
    """Iterate under a mesh of two ranks beside each other, for both kinds of group."""
    told = {}
    for kind in ("tp", "cp"):
        accelerator = make.accelerator()
        shape = (accelerator.num_processes // _BESIDE, _BESIDE)
        # As ParallelismConfig makes it, which refuses ranks on CPU
        accelerator.state.device_mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp_shard", kind))
        told[kind] = numbers_of(make.loader(accelerator, Numbers(24), Wanted(batch_size=3)), accelerator)
        accelerator.state.device_mesh = None
    return told


def judge_a12(ranks: Sequence[Found]) -> Verdict:
    """Ranks of one group must get the same, the groups together every row once."""
    words, right = [], True
    for kind in ("tp", "cp"):
        told = [rank[kind] for rank in ranks]
        same = all(told[rank]["steps"] == told[rank - 1]["steps"] for rank in range(1, len(ranks), _BESIDE))
        rows = once_each(told[::_BESIDE], range(24))
        right = right and same and rows.right
        words.append(f"{kind}: {'the same' if same else 'other'} rows beside each other, {rows.words} over the groups")
    return Verdict(right, "; ".join(words))


FAULTS = (Fault(id="A12", what="tensor and context parallel groups", run=a12, judge=judge_a12),)
