"""B1 to B9: batches and sources that end stock with an error, mostly on one rank, so that the others hang."""

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, IterableDataset

from fault_cases.leaves import difference
from fault_cases.making import INSTALLED, Asked, Fault, Found, Make, Verdict, Wanted, error_words
from fault_cases.rows import Numbers, Series, numbers_of, once_each

_HANGS = "rank 0 raises and the others wait for the group's time-out"
_EMPTY = "[0, 0] steps, registered: False"
_Row = dict[str, torch.Tensor]
_Collate = Callable[[list[_Row]], Any]


@dataclass
class About:
    """A dataclass in a batch."""

    keys: list[str]
    sizes: torch.Tensor


def _as_leaves(rows: list[_Row]) -> dict[str, Any]:
    numbers = [int(row["number"]) for row in rows]
    return {
        "number": torch.tensor(numbers),
        "text": [f"row {number} \N{SNOWMAN}" for number in numbers],
        "none": None,
        "flag": True,
        "count": numbers[0],
        "large": 2**80,
        "raw": bytes(numbers),
        "array": np.asfortranarray(np.arange(2 * len(rows), dtype=np.uint16).reshape(len(rows), 2)),
        "scalar": np.float32(1.5),
        "about": About([str(number) for number in numbers], torch.tensor(numbers, dtype=torch.int8)),
        "pair": (torch.ones(len(rows)), "words", {"deep": [None, 0.5]}),
    }


def _padded(rows: list[_Row]) -> dict[str, torch.Tensor]:
    numbers = torch.stack([row["number"] for row in rows])
    return {"number": numbers, "padded": torch.ones(len(rows), 1 + int(numbers.max()), dtype=torch.bfloat16)}


def _with_scalar(rows: list[_Row]) -> dict[str, torch.Tensor]:
    return {"number": torch.stack([row["number"] for row in rows]), "scale": torch.tensor(0.5)}


def _rare(rows: list[_Row]) -> dict[str, Any]:
    numbers = [int(row["number"]) for row in rows]
    return {
        "number": torch.tensor(numbers),
        "uint16": torch.tensor(numbers, dtype=torch.uint16),
        "float8": torch.tensor(numbers, dtype=torch.float32).to(torch.float8_e4m3fn),
        "complex": torch.tensor(numbers, dtype=torch.complex64),
        "grouped": defaultdict(list, {"a": numbers}),
    }


def _compared(make: Make, collate: _Collate, rows: int = 24) -> Found:
    """Iterate one epoch, and compare each batch with what the collate makes of its rows."""
    accelerator = make.accelerator()
    wrong, steps = [], []
    for batch in make.loader(accelerator, Numbers(rows), Wanted(batch_size=3, collate=collate)):
        steps.append(batch["number"].tolist())
        words = difference(batch, collate([{"number": number} for number in batch["number"]]))
        wrong.extend([] if words is None else [words])
    return {"wrong": wrong, "steps": steps, "remainder": -1}


def _judge_compared(ranks: Sequence[Found]) -> Verdict:
    """Every batch must be what the collate made, every row must come once."""
    rows = once_each(ranks, range(24))
    wrong = [words for rank in ranks for words in rank["wrong"]]
    return Verdict(rows.right and not wrong, f"{rows.words}; {wrong[0] if wrong else 'equal to what was collated'}")


def b1(make: Make) -> Found:
    """Iterate batches with plain values of every kind."""
    return _compared(make, _as_leaves)


def b2(make: Make) -> Found:
    """Iterate batches that are padded to their longest row."""
    return _compared(make, _padded)


def b3(make: Make) -> Found:
    """Iterate batches with a tensor of no dimension."""
    return _compared(make, _with_scalar)


def b4(make: Make) -> Found:
    """Iterate empty sources, and one of less than a step with drop_last; twice each."""
    less = {"a stream of nothing": Series(0), "rows, none": Numbers(0), "less than a step": Numbers(4)}
    told = {}
    for name, source in less.items():
        accelerator = make.accelerator()
        loader = make.loader(accelerator, source, Wanted(drop_last=name == "less than a step"))
        try:
            steps = [len(numbers_of(loader, accelerator)["steps"]) for _ in range(2)]
            told[name] = f"{steps} steps, registered: {accelerator.gradient_state.in_dataloader}"
        except (TypeError, ValueError) as exc:  # stock raises them on every rank, at the same place
            told[name] = error_words(exc)
    return {"told": told}


def judge_b4(ranks: Sequence[Found]) -> Verdict:
    """Each must be an empty epoch."""
    wrong = {name: words for rank in ranks for name, words in rank["told"].items() if words != _EMPTY}
    told = "; ".join(f"{name}: {words}" for name, words in wrong.items())
    return Verdict(not wrong, told or "empty epochs")


def b5(make: Make) -> Found:
    """Iterate a source of one row, and gather it."""
    told = []
    for source in (Numbers(1), Series(1)):
        accelerator = make.accelerator()
        numbers = (batch["number"] for batch in make.loader(accelerator, source))
        told += [[got.tolist(), accelerator.gather_for_metrics(got).tolist()] for got in numbers]
    return {"told": told}


def judge_b5(ranks: Sequence[Found]) -> Verdict:
    """Every rank must have the row, gathered it must come once."""
    right = all(rank["told"] == [[[0], [0]]] * 2 for rank in ranks)
    return Verdict(right, f"1 row on {len(ranks)} ranks, each got {[rank['told'][0][0] for rank in ranks]}")


def _nested(rows: list[_Row]) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a prototype, torch says
        return torch.nested.nested_tensor([torch.ones(1 + place) for place in range(len(rows))])


def _with_sparse(rows: list[_Row]) -> dict[str, Any]:
    return {"number": torch.stack([row["number"] for row in rows]), "odd": [torch.eye(len(rows)).to_sparse()]}


def _with_nested(rows: list[_Row]) -> dict[str, Any]:
    return {"number": torch.stack([row["number"] for row in rows]), "odd": [_nested(rows)]}


def b6(make: Make) -> Found:
    """Iterate batches of rare types; then such as cannot be carried."""
    refused = {}
    for name, collate in (("sparse", _with_sparse), ("nested", _with_nested)):
        try:
            _compared(make, collate)
            refused[name] = "not refused"
        except Exception as exc:  # noqa: BLE001 - any error is what is looked at
            refused[name] = error_words(exc)
    return {**_compared(make, _rare), "refused": refused}


def judge_b6(ranks: Sequence[Found]) -> Verdict:
    """Rare types must come as they are, what cannot be carried must be named by its place on every rank."""
    carried = _judge_compared(ranks)
    told = [rank["refused"] for rank in ranks]
    clear = all("batch['odd'][0]" in words and name in words for one in told for name, words in one.items())
    return Verdict(carried.right and clear and told == [told[0]] * len(told), f"{carried.words}; {told[0]['sparse']}")


class Batches(IterableDataset[dict[str, Any]]):
    """A source that makes batches of 8 rows itself."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in range(self.batches):
            yield {"number": torch.arange(8 * batch, 8 * batch + 8), "pair": torch.full((8, 2), batch)}


def b7(make: Make) -> Found:
    """Iterate with split_batches a source that makes batches itself."""
    accelerator = make.accelerator(Asked(split=True))
    try:
        loader = make.loader(accelerator, Batches(6), Wanted(batch_size=None))
    except ValueError as exc:  # on every rank, so none waits
        return {"error": error_words(exc), "steps": [], "remainder": -1}
    return {"error": None, **numbers_of(loader, accelerator)}


def judge_b7(ranks: Sequence[Found]) -> Verdict:
    """Each batch must be cut for the ranks."""
    if ranks[0]["error"] is not None:
        return Verdict(right=False, words=ranks[0]["error"])
    return once_each(ranks, range(48))


def _cut(data: Any, place: slice, process_index: int | None = None, num_processes: int | None = None) -> Any:  # noqa: ANN401, ARG001 - accelerate's signature
    return {name: tensor[place] for name, tensor in data.items()}


def b8(make: Make) -> Found:
    """Skip a step of a loader that was prepared with a mesh, non_blocking and a function that slices."""
    accelerator = make.accelerator()
    mesh = init_device_mesh("cpu", (accelerator.num_processes,), mesh_dim_names=("tp",))
    loader = prepare_data_loader(
        DataLoader(Numbers(12), batch_size=3),
        device=accelerator.device,
        put_on_device=True,
        dispatch_batches=True,
        non_blocking=True,
        slice_fn_for_dispatch=_cut,
        torch_device_mesh=mesh,
    )
    skipped = skip_first_batches(loader, 1)
    kept = {
        "non_blocking": skipped._non_blocking is True,  # noqa: SLF001 - accelerate has no public way
        "slice_fn": skipped.slice_fn is _cut,
        "mesh": skipped.torch_device_mesh is mesh,
    }
    return {"kept": kept, "steps": [batch["number"].tolist() for batch in skipped]}


def judge_b8(ranks: Sequence[Found]) -> Verdict:
    """All three must be kept, and ranks beside each other get the same."""
    lost = [name for name, kept in ranks[0]["kept"].items() if not kept]
    same = all(rank["steps"] == [[3, 4, 5], [6, 7, 8], [9, 10, 11]] for rank in ranks)
    words = f"lost: {', '.join(lost) or 'nothing'}; ranks beside each other got {'the same' if same else 'other'} rows"
    return Verdict(not lost and same, words)


def b9(make: Make) -> Found:
    """Ask a loader for the size of a whole step, and of the source."""
    accelerator = make.accelerator()
    loader = make.loader(accelerator, Numbers(24))
    try:
        return {"told": [loader.total_batch_size, loader.total_dataset_length]}
    except AttributeError as exc:  # on every rank
        return {"told": error_words(exc)}


def judge_b9(ranks: Sequence[Found]) -> Verdict:
    """It must be a number."""
    return Verdict(all(rank["told"] == [4 * len(ranks), 24] for rank in ranks), f"told {ranks[0]['told']}")


FAULTS = (
    Fault(id="B1", what="plain values in a batch", run=b1, judge=_judge_compared, stock=_HANGS),
    Fault(id="B2", what="batches padded to the longest", run=b2, judge=_judge_compared, stock=_HANGS),
    Fault(id="B3", what="tensors of no dimension", run=b3, judge=_judge_compared, stock=_HANGS),
    Fault(id="B4", what="an empty stream", run=b4, judge=judge_b4),
    Fault(id="B5", what="one sample", run=b5, judge=judge_b5, stock="gather hangs where ranks got empty batches"),
    Fault(id="B6", what="rare types", run=b6, judge=judge_b6, stock=_HANGS),
    Fault(id="B7", what="batches made by the source", run=b7, judge=judge_b7),
    Fault(id="B8", what="skip_first_batches", run=b8, judge=judge_b8, sides=INSTALLED),
    Fault(id="B9", what="total_batch_size", run=b9, judge=judge_b9),
)
