"""What must hold of every loader that can be resumed, whatever it reads and however."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any


@dataclass(frozen=True)
class Step:
    """One step as its user had it: `batch` in a form that can be compared, and the state that was saved with it."""

    epoch: int
    batch: Any
    state: dict[str, Any]


def walk(loader: Any, until: int, rows: Callable[[Any], list[Any]]) -> list[Step]:
    """All steps of a loader until its epoch is `until`, with its state at each as JSON keeps it."""
    steps = []
    while loader.epoch < until:
        epoch = loader.epoch
        steps += [Step(epoch, rows(batch), json.loads(json.dumps(loader.state_dict()))) for batch in loader]
    return steps


def check_resume(
    make: Callable[[], Any],
    rows: Callable[[Any], list[Any]],
    *,
    epochs: int = 3,
    others: Iterable[Callable[[], Any]] = (),
    padded: int = 0,
) -> list[Step]:
    """Save at every step of some epochs; a new loader, and the same one, must go on behind it as if nothing had been.

    Also when it is restored twice in a row. `others` make loaders that cut the epoch into other steps, or read it in
    another way: they must give the same rows; of the last step's padding, at most `padded` rows, only real ones count.
    Returns the steps.
    """
    first = make()
    whole = walk(first, epochs, rows)
    same = make()
    for number, step in enumerate(whole):
        rest = whole[number + 1 :]
        other = make()
        for loader in (other, same):
            loader.load_state_dict(step.state)
            assert loader.state_dict() == step.state
        assert [(one.epoch, one.batch, one.state) for one in walk(other, epochs, rows)] == [
            (one.epoch, one.batch, one.state) for one in rest
        ], f"restored with step {number} of {len(whole)} in hand"
        other.close()
        if rest:  # restored again after one step more, in a loader that lives
            (again,) = _first(same, rows, 1)
            assert (again.epoch, again.batch, again.state) == (rest[0].epoch, rest[0].batch, rest[0].state)
    for made in others:
        _check_rows(made, whole, epochs, rows, padded)
    for loader in (first, same):
        loader.close()
    return whole


def _first(loader: Any, rows: Callable[[Any], list[Any]], count: int) -> list[Step]:
    found = []
    epoch = loader.epoch
    for batch in loader:
        found.append(Step(epoch, rows(batch), json.loads(json.dumps(loader.state_dict()))))
        if len(found) == count:
            break
    return found


def _check_rows(
    make: Callable[[], Any], whole: list[Step], epochs: int, rows: Callable[[Any], list[Any]], padded: int
) -> None:
    """Compare rows, epoch by epoch: another loader's steps may end elsewhere."""
    for number, step in enumerate(whole):
        loader = make()
        loader.load_state_dict(step.state)
        found = walk(loader, epochs, rows)
        loader.close()
        for epoch in range(step.state["epoch"], epochs):
            expected = _real(one for one in whole[number + 1 :] if one.epoch == epoch)
            got = _real(one for one in found if one.epoch == epoch)
            assert got[: len(expected)] == expected, f"epoch {epoch}, restored with step {number} in hand"
            assert len(got) - len(expected) <= padded


def _real(steps: Iterable[Step]) -> list[Any]:
    return list(chain.from_iterable(step.batch for step in steps))
