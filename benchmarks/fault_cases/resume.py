"""A6 to A10: what is left of an epoch after a stop, and which epoch it is."""

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fault_cases.making import LOADER, Asked, Fault, Found, Make, Verdict, Wanted, shared_folder
from fault_cases.rows import Numbers, Series, numbers_of, once_each, real_rows, whole_steps

_NEEDS = "its loaders have a state only with torchdata; tests/test_upstream_checks.py runs that case on ours"
_TIMES = 3


class WithState(Series):
    """A source that can tell where it is and be put there, as Hugging Face's streamed datasets can."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.start = 0

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        start, self.start = self.start, 0
        return itertools.islice(super().__iter__(), start, None)

    def state_dict(self) -> dict[str, int]:
        """Return how many rows were read, those read ahead included."""
        return {"start": len(self.read)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next iteration start there."""
        self.start = state["start"]


def _stopped(loader: Any, steps: int) -> list[list[int]]:  # noqa: ANN401 - either kind of loader
    """Iterate a few steps and leave."""
    got = []
    for batch in loader:
        got.append(batch["number"].tolist())
        if len(got) == steps:
            break
    return got


def a6(make: Make) -> Found:
    """Save the state in mid-epoch and go on in new loaders, several times over."""
    told, files, states = [], [], []
    for steps in range(1, 1 + _TIMES):
        with shared_folder() as folder:
            accelerator = make.accelerator()
            loader = make.loader(accelerator, Numbers(48), Wanted(batch_size=3))
            before = _stopped(loader, steps)
            states.append(loader.state_dict())
            own = folder if accelerator.is_main_process else folder / f"rank{accelerator.process_index}"
            accelerator.save_state(str(own))  # a folder for each rank shows who writes
            accelerator.wait_for_everyone()
            files.append(len(list(own.glob("stream_*.json"))))
            accelerator = make.accelerator()
            loader = make.loader(accelerator, Numbers(48), Wanted(batch_size=3))
            accelerator.load_state(str(folder))
            rest = numbers_of(loader, accelerator)
            told.append({**rest, "steps": before + rest["steps"]})
    return {"told": told, "files": files, "states": json.loads(json.dumps(states))}


def judge_a6(ranks: Sequence[Found]) -> Verdict:
    """Only the main process may write, all must have the same state, no row may be lost or come twice."""
    rows = [once_each([rank["told"][time] for rank in ranks], range(48)) for time in range(_TIMES)]
    files = [sum(rank["files"]) for rank in ranks]
    same = all(rank["states"] == ranks[0]["states"] for rank in ranks)
    right = same and files == [_TIMES, *[0] * (len(ranks) - 1)] and all(verdict.right for verdict in rows)
    wrong = sum(not verdict.right for verdict in rows)
    words = (
        f"{wrong} of {_TIMES} resumed epochs wrong; files of the ranks {files}; states {'' if same else 'not '}equal"
    )
    return Verdict(right, words)


def _resumed(make: Make, source: Any, wanted: Wanted, asked: Asked) -> Found:  # noqa: ANN401 - any dataset
    """Stop after two steps; a new loader takes the state over and gives the rest."""
    accelerator = make.accelerator(asked)
    loader = make.loader(accelerator, source(), wanted)
    before = _stopped(loader, 2)
    state = json.loads(json.dumps(loader.state_dict()))
    accelerator = make.accelerator(asked)
    loader = make.loader(accelerator, source(), wanted)
    loader.load_state_dict(state)
    rest = numbers_of(loader, accelerator)
    return {**rest, "steps": before + rest["steps"]}


def a7(make: Make) -> Found:
    """Resume over a source that has a state of its own."""
    return _resumed(make, lambda: WithState(40), Wanted(batch_size=3), Asked())


def judge_a7(ranks: Sequence[Found]) -> Verdict:
    """No row may be lost or come twice."""
    return once_each(ranks, range(40))


def a8(make: Make) -> Found:
    """Resume with split_batches, rows by number and one after another."""
    asked, wanted = Asked(split=True), Wanted(batch_size=8)
    return {"rows": _resumed(make, lambda: Numbers(40), wanted, asked)} | {
        "series": _resumed(make, lambda: Series(40), wanted, asked)
    }


def judge_a8(ranks: Sequence[Found]) -> Verdict:
    """No row may be lost or come twice."""
    verdicts = {kind: once_each([rank[kind] for rank in ranks], range(40)) for kind in ("rows", "series")}
    words = "; ".join(f"{kind}: {verdict.words}" for kind, verdict in verdicts.items())
    return Verdict(all(verdict.right for verdict in verdicts.values()), words)


def a9(make: Make) -> Found:
    """Skip two steps of map-style data."""
    accelerator = make.accelerator()
    source = Numbers(6 * 3 * accelerator.num_processes)
    skipped = make.skip(make.loader(accelerator, source, Wanted(batch_size=3)), 2)
    return {**numbers_of(skipped, accelerator), "read": sorted(set(source.read))}


def judge_a9(ranks: Sequence[Found]) -> Verdict:
    """Exactly two whole steps must be left out."""
    step = 3 * len(ranks)
    got = real_rows(ranks)
    words = f"2 steps of {step} rows to skip, began at row {got[0] if got else 'none'}"
    return Verdict(got == list(range(2 * step, 6 * step)), words)


def a10(make: Make) -> Found:
    """Save the state after an epoch, go on; and load it in new loaders, go on there."""
    asked = Asked(data_seed=5)
    with shared_folder() as folder:
        accelerator = make.accelerator(asked)
        loader = make.loader(accelerator, Numbers(24), Wanted(batch_size=3, shuffle=True))
        first = numbers_of(loader, accelerator)
        accelerator.save_state(str(folder))
        second = numbers_of(loader, accelerator)
        accelerator = make.accelerator(asked)
        loader = make.loader(accelerator, Numbers(24), Wanted(batch_size=3, shuffle=True))
        accelerator.load_state(str(folder))
        return {"first": first, "second": second, "resumed": numbers_of(loader, accelerator)}


def judge_a10(ranks: Sequence[Found]) -> Verdict:
    """After loading, the second epoch's order must come."""
    first, second, resumed = (
        [number for step in whole_steps([rank[name] for rank in ranks]) for number in step]
        for name in ("first", "second", "resumed")
    )
    named = {True: "epoch 1's order", False: "epoch 0's order again" if resumed == first else "another order"}
    right = resumed == second != first and sorted(set(resumed)) == list(range(24))
    return Verdict(right, f"after load_state {named[resumed == second]}")


FAULTS = (
    Fault(id="A6", what="save_state in mid-epoch", run=a6, judge=judge_a6, sides=LOADER, stock=_NEEDS),
    Fault(id="A7", what="resume over a source with a state", run=a7, judge=judge_a7, sides=LOADER, stock=_NEEDS),
    Fault(id="A8", what="resume with split_batches", run=a8, judge=judge_a8, sides=LOADER, stock=_NEEDS),
    Fault(id="A9", what="skip_first_batches", run=a9, judge=judge_a9),
    Fault(id="A10", what="load_state after an epoch", run=a10, judge=judge_a10, sides=LOADER),
)
