"""stream/loans.py: a span is back when the last view of it is gone, and worn if a child of this process saw it."""

import gc
import os

import numpy as np
import torch

from stream.loans import Loans, Returned


def lent(loans, number):
    memory = np.zeros(1000, np.uint8)
    loans.lend(number, memory)
    return memory


def test_a_span_is_back_once_when_the_last_view_of_it_is_gone():
    loans = Loans()
    memory = lent(loans, 7)
    batch = torch.from_numpy(memory[64:]).view(torch.int32)[3:9].view(2, 3)
    del memory
    assert (loans.returned(), loans.out()) == (Returned([], []), [7])
    row = batch.numpy()[1:]
    del batch
    assert loans.returned() == Returned([], [])
    del row
    assert loans.returned() == Returned([7], [])
    assert (loans.returned(), loans.out()) == (Returned([], []), [])


def test_what_a_reference_cycle_holds_is_back_after_a_collection():
    loans = Loans()
    batch = {"image": torch.from_numpy(lent(loans, 1))}
    batch["self"] = batch
    del batch
    gc.collect()
    assert loans.returned() == Returned([1], [])


def test_those_of_two_links_are_apart():
    first, second = Loans(), Loans()
    lent(first, 1)
    kept = lent(second, 1)
    assert (first.returned().back, second.returned().back) == ([1], [])
    assert second.out() == [1]
    del kept


def test_what_was_in_use_during_a_fork_is_worn_and_what_came_later_is_not():
    loans = Loans()
    before = lent(loans, 1)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    after = lent(loans, 2)
    del before, after
    assert loans.returned() == Returned([2], [1])
    assert loans.returned() == Returned([], [1]), "told again, for what was told may be lost"
    assert loans.out() == []
