"""D1 to D7: what a step costs: bytes, memory, waiting, processes, collectives, copies."""

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch

from fault_cases.making import Asked, Fault, Found, Make, Verdict, Wanted, started_processes
from fault_cases.rows import Numbers, Series, numbers_of, once_each, wait_until

_PIXELS = 64
_OVER = 1.05
"""How much more than its portion a rank may receive or hold: headers, and alignment."""

_GATE_S = 2.0
_COLLECTIVES = (
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "recv",
    "scatter",
    "scatter_object_list",
    "send",
)


def _images(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    numbers = torch.stack([row["number"] for row in rows])
    return {"number": numbers, "image": torch.ones(len(rows), 3, _PIXELS, _PIXELS)}


def _portion_bytes(batch: dict[str, torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in batch.values())


@contextlib.contextmanager
def _counting(owner: Any, name: str, told: Callable[[tuple[Any, ...], Any], None]) -> Iterator[None]:  # noqa: ANN401
    """Tell of each call of a function or method, with its arguments and what it returned."""
    inner = getattr(owner, name)

    @functools.wraps(inner)
    def counted(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever it takes
        result = inner(*arguments, **named)
        told((*arguments, *named.values()), result)
        return result

    with mock.patch.object(owner, name, counted):
        yield


@contextlib.contextmanager
def _received_bytes() -> Iterator[list[int]]:
    """Collect the sizes of what this rank receives: in broadcasts, in shared memory, over TCP."""
    sizes: list[int] = []
    slab, link = importlib.import_module("stream.slab_view"), importlib.import_module("stream.link")

    def payload(_: tuple[Any, ...], frame: Any) -> None:  # noqa: ANN401 - a Frame
        sizes.append(0 if frame.payload is None else frame.payload.nbytes)

    with contextlib.ExitStack() as stack:
        broadcast = lambda given, _: sizes.append(given[0].nbytes)  # noqa: E731 - one of three
        view = lambda _, memory: sizes.append(memory.nbytes)  # noqa: E731 - as above
        stack.enter_context(_counting(torch.distributed, "broadcast", broadcast))
        stack.enter_context(_counting(slab.SlabView, "open", view))
        stack.enter_context(_counting(link.Link, "take", payload))
        yield sizes


def d1(make: Make) -> Found:
    """Count the bytes that a rank receives and those that it is given."""
    accelerator = make.accelerator()
    loader = make.loader(accelerator, Numbers(16 * accelerator.num_processes), Wanted(collate=_images))
    with _received_bytes() as sizes:
        kept = sum(_portion_bytes(batch) for batch in loader)
    return {"kept": kept, "received": sum(sizes)}


def judge_d1(ranks: Sequence[Found]) -> Verdict:
    """The ranks beside the reader's must receive their portions, and little more."""
    ratios = [rank["received"] / rank["kept"] for rank in ranks[1:]]
    return Verdict(all(1 <= ratio <= _OVER for ratio in ratios), f"received {max(ratios):.2f} times what is kept")


def d2(make: Make) -> Found:
    """Measure the memory behind a batch."""
    accelerator = make.accelerator()
    worst = 0.0
    for batch in make.loader(accelerator, Numbers(16 * accelerator.num_processes), Wanted(collate=_images)):
        behind = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in batch.values()}
        worst = max(worst, sum(behind.values()) / _portion_bytes(batch))
    return {"ratio": worst}


def judge_d2(ranks: Sequence[Found]) -> Verdict:
    """A batch may hold its own memory only."""
    worst = max(rank["ratio"] for rank in ranks)
    return Verdict(0 < worst <= _OVER, f"a batch holds {worst:.2f} times its own bytes")


class Gated(Series):
    """A series whose rows behind the first step, and one more, wait until the first batch is in the user's hands."""

    def __init__(self, rows: int, *, free: int) -> None:
        super().__init__(rows)
        self.free, self.gate = free, threading.Event()
        self.early = True

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for number, row in enumerate(super().__iter__()):
            if number == self.free and not self.gate.wait(_GATE_S):
                self.early = False
            yield row


def _gated(make: Make) -> Found:
    accelerator = make.accelerator()
    step = 3 * accelerator.num_processes
    source = Gated(6 * step, free=step + 1)
    steps, behind = [], False
    for batch in make.loader(accelerator, source, Wanted(batch_size=3)):
        steps.append(batch["number"].tolist())
        if len(steps) == 1 and accelerator.is_main_process:
            source.gate.set()
            read = len(source.read)
            behind = wait_until(lambda before=read: len(source.read) > before, _GATE_S / 4)
    return {"steps": steps, "remainder": -1, "behind": behind, "early": source.early}


def d3(make: Make) -> Found:
    """Look whether the source is read while the user holds a batch."""
    return _gated(make)


def judge_d3(ranks: Sequence[Found]) -> Verdict:
    """It must be."""
    rows, behind = once_each(ranks, range(6 * 3 * len(ranks))), ranks[0]["behind"]
    return Verdict(rows.right and behind, f"{'reads' if behind else 'reads nothing'} while the user holds a batch")


def d4(make: Make) -> Found:
    """Look whether the first batch comes when one step and one sample can be read."""
    return _gated(make)


def judge_d4(ranks: Sequence[Found]) -> Verdict:
    """It must."""
    rows, early = once_each(ranks, range(6 * 3 * len(ranks))), ranks[0]["early"]
    return Verdict(rows.right and early, f"the first batch needs {'one step' if early else 'more than one step'}")


def d5(make: Make) -> Found:
    """Count the worker processes while batches come."""
    accelerator = make.accelerator()
    loader = make.loader(accelerator, Numbers(160 * accelerator.num_processes), Wanted(workers=2))
    counts = [len(started_processes()) for _ in loader]
    return {"workers": max(counts)}


def judge_d5(ranks: Sequence[Found]) -> Verdict:
    """Only the reader may have any."""
    counts = [rank["workers"] for rank in ranks]
    return Verdict(counts == [2, *[0] * (len(ranks) - 1)], f"worker processes of the ranks: {counts}")


def d6(make: Make) -> Found:
    """Count the collectives of a second epoch."""
    accelerator = make.accelerator()
    loader = make.loader(accelerator, Numbers(16 * accelerator.num_processes), Wanted(collate=_images))
    numbers_of(loader, accelerator)
    calls: list[int] = []
    with contextlib.ExitStack() as stack:
        for name in _COLLECTIVES:
            stack.enter_context(_counting(torch.distributed, name, lambda _, __: calls.append(1)))
        steps = len(numbers_of(loader, accelerator)["steps"])
    return {"calls": len(calls), "steps": steps}


def judge_d6(ranks: Sequence[Found]) -> Verdict:
    """A step must do without."""
    each = max(rank["calls"] / rank["steps"] for rank in ranks)
    return Verdict(each == 0, f"{each:.1f} collectives a step")


def d7(make: Make) -> Found:
    """Profile the copies to a CUDA device."""
    accelerator = make.accelerator(Asked(non_blocking=True))
    wanted = Wanted(collate=_images, pin_memory=True)
    loader = make.loader(accelerator, Numbers(16 * accelerator.num_processes), wanted)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        devices = {str(batch["image"].device) for batch in loader}
        torch.cuda.synchronize()
    copies = [event.name for event in profile.events() if "Memcpy HtoD" in event.name]
    pageable = sum("Pageable" in name for name in copies)
    return {"devices": sorted(devices), "copies": len(copies), "pageable": pageable}


def judge_d7(ranks: Sequence[Found]) -> Verdict:
    """All copies must come out of pinned memory."""
    copies, pageable = (sum(rank[name] for rank in ranks) for name in ("copies", "pageable"))
    there = all(device.startswith("cuda") for rank in ranks for device in rank["devices"])
    return Verdict(there and copies > 0 and not pageable, f"{pageable} of {copies} copies out of pageable memory")


NEEDS_CUDA = "D7"
FAULTS = (
    Fault(id="D1", what="bytes received", run=d1, judge=judge_d1),
    Fault(id="D2", what="memory behind a batch", run=d2, judge=judge_d2),
    Fault(id="D3", what="reading behind the step", run=d3, judge=judge_d3),
    Fault(id="D4", what="what the first batch needs", run=d4, judge=judge_d4),
    Fault(id="D5", what="workers", run=d5, judge=judge_d5),
    Fault(id="D6", what="collectives", run=d6, judge=judge_d6),
    Fault(id="D7", what="pinned memory", run=d7, judge=judge_d7),
)
