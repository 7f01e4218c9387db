"""A dataset that is asked for lists of row numbers."""

import copy
import pickle

import pytest
from torch.utils.data import DataLoader

from stream.by_lists import ByLists


class Listed:
    """Rows of their number, asked for by lists."""

    name = "listed"

    def __len__(self):
        return 5

    def __getitem__(self, numbers):
        assert isinstance(numbers, list)
        return [10 * number for number in numbers]


def test_lists_are_passed_on_whole():
    assert ByLists(Listed()).__getitems__((1, 2)) == [10, 20]
    assert ByLists(Listed())[[3]] == [30]


def test_torch_asks_it_for_lists():
    loader = DataLoader(ByLists(Listed()), batch_size=2, collate_fn=tuple)
    assert list(loader) == [(0, 10), (20, 30), (40,)]


def test_all_else_is_the_datasets_own():
    assert len(ByLists(Listed())) == 5
    assert ByLists(Listed()).name == "listed"
    with pytest.raises(AttributeError, match="nothing"):
        ByLists(Listed()).nothing  # noqa: B018 - asking is the test


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_it_can_be_copied_and_pickled(copied):
    assert copied(ByLists(Listed())).__getitems__([4]) == [40]
