"""How many steps a loader will have: compared with the steps that come."""

import pytest
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from stream.cuts import NO_ROWS
from stream.lengths import batch_size_of, is_cut_by_rows, rows_of, steps_of
from stream.loader_portions import LoaderPortions, Splitting


class Series(IterableDataset):
    """Rows one after another."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(range(self.rows))


class Sized(Series):
    """As `Series`, with a length."""

    def __len__(self):
        return self.rows


class OwnLists:
    """A batch sampler of a user's own."""

    batch_size = 4

    def __init__(self, rows):
        self.lists = [list(numbers) for numbers in (range(at, min(at + 4, rows)) for at in range(0, rows, 4))]

    def __iter__(self):
        return iter(self.lists)

    def __len__(self):
        return len(self.lists)


MADE = {
    "rows by number": lambda rows, drop: DataLoader(range(rows), batch_size=4, drop_last=drop),
    "a batch sampler": lambda rows, drop: DataLoader(
        range(rows), batch_sampler=BatchSampler(range(rows), 4, drop_last=drop)
    ),
    "a sampler": lambda rows, drop: DataLoader(range(100), batch_size=4, sampler=range(rows), drop_last=drop),
    "a series": lambda rows, drop: DataLoader(Sized(rows), batch_size=4, drop_last=drop),
}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("drop", [True, False])
@pytest.mark.parametrize("portions", [1, 2, 4])
def test_the_length_is_the_number_of_steps_that_come(made, split, even, drop, portions):
    for rows in (0, 1, 3, 4, 5, 16, 17, 23, 32):
        loader = MADE[made](rows, drop)
        splitting = Splitting(portions, split, drop, even)
        steps = list(LoaderPortions(loader, splitting).begin(epoch=0))
        for portion in range(portions):
            came = sum(step.portions[portion] is not NO_ROWS for step in steps)
            assert steps_of(loader, splitting, portion) == came, (rows, portion)


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("rows", [0, 4, 16, 20, 32])
def test_lists_of_a_users_own_sampler_are_counted(split, rows):
    loader, splitting = DataLoader(range(rows), batch_sampler=OwnLists(rows)), Splitting(2, split)
    assert steps_of(loader, splitting, 0) == len(list(LoaderPortions(loader, splitting).begin(epoch=0)))


def test_batches_of_the_dataset_itself_are_counted():
    loader = DataLoader(Sized(7), batch_size=None)
    assert [rows_of(loader), batch_size_of(loader), is_cut_by_rows(loader)] == [7, None, False]
    assert [steps_of(loader, Splitting(2, split), 1) for split in (True, False)] == [7, 4]


def test_the_size_of_a_batch_is_that_of_the_batch_sampler():
    assert batch_size_of(DataLoader(range(9), batch_size=3)) == 3
    assert batch_size_of(DataLoader(range(9), batch_sampler=OwnLists(9))) == 4
    assert batch_size_of(DataLoader(range(9), batch_sampler=[[1], [2, 3]])) is None
    assert not is_cut_by_rows(DataLoader(range(9), batch_sampler=OwnLists(9)))


def test_a_series_without_a_length_has_no_number_of_steps():
    with pytest.raises(TypeError):
        steps_of(DataLoader(Series(9), batch_size=3), Splitting(1, split_batches=True), 0)
