"""What the reader does for a prepared loader, with and without the state behind each step."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from stream.errors import OptionError
from stream.loader_portions import Splitting
from stream.loader_state import LoaderState
from stream.reading import Reading
from stream.slicing import Slicing


class Numbers(Dataset):
    """Rows of their number; remembers what was read, and its epochs."""

    def __init__(self, rows):
        self.rows, self.read, self.epochs = rows, [], []

    def __len__(self):
        return self.rows

    def __getitem__(self, row):
        self.read.append(row)
        return row

    def set_epoch(self, epoch):
        self.epochs.append(epoch)


class Series(IterableDataset):
    """Rows one after another."""

    def __iter__(self):
        return iter(range(22))


class OwnLoader(DataLoader):
    """A subclass, as torchdata's is."""

    def __iter__(self):
        raise AssertionError("rows by number are not asked for by iterating")


HALVES = Splitting(2, split_batches=True)
BEGIN = LoaderState(epoch=0)


def own(rows=22, seed=5, kind=OwnLoader, **options):
    generator = torch.Generator().manual_seed(seed)
    return kind(Numbers(rows), batch_size=4, sampler=RandomSampler(range(rows), generator=generator), **options)


def taken(reading, start, *, skip=0, stop=None):
    """The rows of each step of a stateful reading, and the state behind the last."""
    told, note = [], None
    steps = reading.begin(start, skip=skip)
    for step in steps:
        [note] = {note for _, note in filter(None, step.portions)}
        told.append([batch.tolist() for batch, _ in filter(None, step.portions)])
        if len(told) == stop:
            break
    steps.close()
    return told, None if note is None else LoaderState.unpacked(note)


def test_without_a_state_portions_are_batches():
    reading = Reading(DataLoader(Numbers(6), batch_size=4), HALVES)
    steps = list(reading.begin(BEGIN, skip=0))
    assert [[batch.tolist() for batch in step.portions] for step in steps] == [[[0, 1], [2, 3]], [[4], [5]]]


def test_whole_steps_are_skipped_and_not_read():
    loader = DataLoader(Numbers(12), batch_size=2)
    steps = list(Reading(loader, Splitting(2, split_batches=False)).begin(BEGIN, skip=2))
    assert [[batch.tolist() for batch in step.portions] for step in steps] == [[[8, 9], [10, 11]]]
    assert loader.dataset.read == [8, 9, 10, 11]


@pytest.mark.parametrize("stop", [1, 3, 5])
def test_it_goes_on_behind_a_step_with_what_the_sampler_drew(stop):
    whole, _ = taken(Reading(own(), HALVES, stateful=True), BEGIN)
    first, state = taken(Reading(own(), HALVES, stateful=True), BEGIN, stop=stop)
    assert [state.epoch, state.steps, state.position, state.finished] == [0, stop, 4 * stop, False]
    loader = own(seed=6)
    rest, end = taken(Reading(loader, HALVES, stateful=True), state)
    assert first + rest == whole
    assert [end.steps, end.position, end.finished] == [6, 22, True]
    read = {row for step in rest for portion in step for row in portion}
    assert set(loader.dataset.read) == read


def test_the_next_epoch_follows_a_finished_one_as_if_nothing_had_been_between():
    reading = Reading(own(), HALVES, stateful=True)
    _, state = taken(reading, BEGIN)
    second, _ = taken(reading, LoaderState(epoch=1))
    loader = own(seed=6)
    after, now = taken(Reading(loader, HALVES, stateful=True), state)
    assert after == second
    assert [now.epoch, now.steps] == [1, 6]
    assert loader.dataset.epochs[-1] == 1


def test_the_global_generator_is_left_as_it_was():
    def loader():
        return OwnLoader(Numbers(22), batch_size=4, shuffle=True)

    torch.manual_seed(1)
    whole, _ = taken(Reading(loader(), HALVES, stateful=True), BEGIN)
    torch.manual_seed(1)
    _, state = taken(Reading(loader(), HALVES, stateful=True), BEGIN, stop=2)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    rest, _ = taken(Reading(loader(), HALVES, stateful=True), state)
    assert rest == whole[2:]
    assert torch.equal(torch.get_rng_state(), before)


def test_a_state_goes_on_with_another_number_of_ranks():
    whole, _ = taken(Reading(own(rows=24), HALVES, stateful=True), BEGIN)
    _, state = taken(Reading(own(rows=24), HALVES, stateful=True), BEGIN, stop=4)
    rest, _ = taken(Reading(own(rows=24, seed=6), Splitting(4, split_batches=False), stateful=True), state)
    flat = [row for step in whole[4:] for portion in step for row in portion]
    assert [row for step in rest for portion in step for row in portion] == flat


def test_a_state_within_a_step_is_refused():
    _, state = taken(Reading(own(), HALVES, stateful=True), BEGIN, stop=1)
    with pytest.raises(OptionError, match=r"position=4: lies within a step, since a step has 8 rows now"):
        Reading(own(), Splitting(2, split_batches=False), stateful=True).begin(state, skip=0)


def test_skipped_steps_count_in_the_state():
    _, state = taken(Reading(own(), HALVES, stateful=True), BEGIN, skip=2, stop=1)
    assert [state.steps, state.position] == [3, 12]


def test_lists_of_a_users_own_sampler_are_counted_by_steps():
    def loader():
        return OwnLoader(Numbers(9), batch_sampler=[[0], [1, 2], [3, 4, 5], [6, 7, 8]])

    splitting = Splitting(1, split_batches=True)
    whole, _ = taken(Reading(loader(), splitting, stateful=True), BEGIN)
    _, state = taken(Reading(loader(), splitting, stateful=True), BEGIN, stop=2)
    assert taken(Reading(loader(), splitting, stateful=True), state)[0] == whole[2:]


def test_slices_carry_the_state_of_their_step():
    def cut(batch, place, process_index=None, num_processes=None):
        return batch[place]

    slicing = Slicing(cut, torch.cat, len, 2, 2, drop_last=False, even_batches=True)
    splitting = Splitting(2, split_batches=False)
    whole, _ = taken(Reading(own(), splitting, stateful=True, slicing=slicing), BEGIN)
    _, state = taken(Reading(own(), splitting, stateful=True, slicing=slicing), BEGIN, stop=1)
    assert [state.steps, state.position] == [1, 8]
    assert taken(Reading(own(seed=6), splitting, stateful=True, slicing=slicing), state)[0][:1] == whole[1:2]


def test_what_cannot_be_split_is_refused_sliced_or_not():
    slicing = Slicing(len, len, len, 3, 1, drop_last=False, even_batches=True)
    for chosen in (None, slicing):
        with pytest.raises(OptionError, match="4 rows cannot be split over 3 ranks"):
            Reading(DataLoader(Numbers(8), batch_size=4), Splitting(3, split_batches=True), slicing=chosen)


def test_rows_one_after_another_go_by_torchdata():
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    with pytest.warns(UserWarning, match="set_vital"):
        loader = stateful(Series(), batch_size=4)
    whole, _ = taken(Reading(loader, HALVES, stateful=True), BEGIN)
    _, state = taken(Reading(loader, HALVES, stateful=True), BEGIN, stop=2)
    assert taken(Reading(loader, HALVES, stateful=True), state)[0] == whole[2:]


def test_closing_twice_is_closing_once():
    reading = Reading(own(), HALVES)
    reading.close()
    reading.close()
