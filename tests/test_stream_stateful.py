"""The portions of torchdata's loaders over iterable datasets: where they stop and go on."""

import logging
import warnings

import pytest
import torch
from torch.utils.data import IterableDataset

from ranks import left_behind
from stream.errors import OptionError
from stream.loader_portions import Splitting
from stream.loader_state import LoaderState
from stream.stateful import StatefulPortions

stateful_dataloader = pytest.importorskip("torchdata.stateful_dataloader")
logging.getLogger("torchdata").setLevel(logging.ERROR)


class Series(IterableDataset):
    """Rows one after another; worker w of n gives `shares[w]` of them, in the order of the workers."""

    def __init__(self, rows, shares=()):
        self.rows, self.shares, self.epochs = rows, shares, []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        if info is None or not self.shares:
            return iter(range(self.rows))
        start = sum(self.shares[: info.id])
        return iter(range(start, start + self.shares[info.id]))


class Counting(Series):
    """As `Series`, and can tell how many rows it gave."""

    given = start = 0

    def __iter__(self):
        self.given, self.start = self.start, 0
        for row in list(super().__iter__())[self.given :]:
            self.given += 1
            yield row

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.start = state["given"]


class Batches(IterableDataset):
    """Batches of three rows."""

    def __iter__(self):
        return iter([torch.arange(3 * batch, 3 * batch + 3) for batch in range(5)])


def loader_of(dataset, batch_size=4, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchdata's own affair
        return stateful_dataloader.StatefulDataLoader(dataset, batch_size=batch_size, **options)


def run(portions, start, *, skip=0, stop=None):
    """The steps from a state on, and the state behind the last of them."""
    steps = []
    made = portions.begin(start, skip=skip)
    for step in made:
        steps.append(step)
        if len(steps) == stop:
            break
    made.close()
    if not steps:
        return [], None
    source, rest = portions.source_at(steps[-1].position_after)
    position = steps[-1].position_after
    return steps, LoaderState(epoch=start.epoch, steps=len(steps), position=position, source=source, rest=rest)


def rows(steps):
    return [[portion.tolist() for portion in step.portions] for step in steps]


BEGIN = LoaderState(epoch=3)
CASES = {
    "here": lambda: loader_of(Series(22)),
    "workers": lambda: loader_of(Series(22, shares=(11, 11)), num_workers=2),
    "a state of its own": lambda: loader_of(Counting(22)),
    "a state of its own, workers": lambda: loader_of(Counting(22, shares=(12, 10)), num_workers=2),
    "workers that end unevenly": lambda: loader_of(Series(21, shares=(5, 16)), num_workers=2),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("split", [True, False])
def test_every_row_comes_once_and_only_the_last_step_is_short(case, split):
    steps, _ = run(StatefulPortions(CASES[case](), Splitting(2, split)), BEGIN)
    real = [row for step in steps for portion in rows([step])[0] for row in portion]
    wanted = 21 if "unevenly" in case else 22
    assert sorted(set(real)) == list(range(wanted))
    assert {step.real_rows for step in steps[:-1]} == {4 if split else 8}
    assert sum(step.real_rows for step in steps) == wanted == steps[-1].position_after
    assert [step.last for step in steps] == [[False] * 2] * (len(steps) - 1) + [[True] * 2]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("stop", [1, 2])
def test_it_goes_on_behind_every_step(case, split, stop):
    whole, _ = run(StatefulPortions(CASES[case](), Splitting(2, split)), BEGIN)
    _, state = run(StatefulPortions(CASES[case](), Splitting(2, split)), BEGIN, stop=stop)
    assert (state.source is not None) == case.startswith("a state of its own")
    state = LoaderState.unpacked(state.packed())
    rest, _ = run(StatefulPortions(CASES[case](), Splitting(2, split)), state)
    real = sum(step.real_rows for step in rest)
    flat = [row for portions in rows(whole[stop:]) for portion in portions for row in portion][:real]
    assert [row for portions in rows(rest) for portion in portions for row in portion][:real] == flat
    assert [step.position_after for step in rest] == [step.position_after for step in whole[stop:]]


@pytest.mark.parametrize("case", ["here", "a state of its own"])
def test_it_goes_on_twice(case):
    portions = StatefulPortions(CASES[case](), Splitting(2, split_batches=True))
    _, state = run(portions, BEGIN, stop=2)
    _, again = run(portions, state, stop=1)
    assert rows(run(portions, again)[0])[0] == [[12, 13], [14, 15]]


@pytest.mark.parametrize("split", [True, False])
def test_batches_that_the_dataset_makes_are_counted(split):
    portions = StatefulPortions(loader_of(Batches(), batch_size=None), Splitting(3, split))
    whole, _ = run(portions, BEGIN)
    _, state = run(portions, BEGIN, stop=1)
    assert state.position == (1 if split else 3)
    rest, _ = run(portions, state)
    assert rows(rest) == rows(whole)[1:]


def test_steps_are_skipped():
    portions = StatefulPortions(loader_of(Series(22)), Splitting(2, split_batches=True))
    steps, state = run(portions, BEGIN, skip=2, stop=1)
    assert [rows(steps), state.position] == [[[[8, 9], [10, 11]]], 12]


def test_the_dataset_hears_of_the_epoch():
    dataset = Series(4)
    run(StatefulPortions(loader_of(dataset), Splitting(1, split_batches=True)), BEGIN)
    assert dataset.epochs == [3]


def test_the_users_loader_is_not_touched():
    loader = loader_of(Series(22), num_workers=1, persistent_workers=True)
    collate = loader.collate_fn
    run(StatefulPortions(loader, Splitting(1, split_batches=True)), BEGIN, stop=1)
    assert [loader._iterator, loader.collate_fn, loader.persistent_workers] == [None, collate, True]


def test_leaving_it_leaves_no_process():
    run(StatefulPortions(loader_of(Series(22), num_workers=2), Splitting(1, split_batches=True)), BEGIN, stop=1)
    assert left_behind() == []


def test_a_batch_that_cannot_be_split_is_refused_with_both_numbers():
    with pytest.raises(OptionError, match=r"4 rows cannot be split over 3 ranks"):
        StatefulPortions(loader_of(Series(22)), Splitting(3, split_batches=True))


def test_states_of_boundaries_that_were_passed_are_forgotten():
    portions = StatefulPortions(loader_of(Series(400)), Splitting(1, split_batches=True))
    for step in portions.begin(BEGIN):
        portions.source_at(step.position_after)
        assert len(portions._boundaries) <= 3
