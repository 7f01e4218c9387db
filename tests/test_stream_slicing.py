"""Steps that are sliced by a function of the user's own."""

import pytest
import torch

from stream.cuts import NO_ROWS
from stream.errors import SourceError
from stream.portions import PortionStep
from stream.slicing import Slicing, sliced


def cut(batch, place, process_index=None, num_processes=None):
    assert 0 <= process_index < num_processes
    return batch[place]


def steps_of(*sizes, fails=False):
    position = 0
    for size in sizes:
        yield PortionStep([torch.arange(position, position + size)], size, [False], position + size, f"row {position}")
        position += size
    if fails:
        raise LookupError("no more")


def slicing(portions=2, batches=1, *, drop_last=False, even_batches=True):
    return Slicing(cut, torch.cat, len, portions, batches, drop_last, even_batches)


def told(steps):
    return [
        ([None if part is NO_ROWS else part.tolist() for part in step.portions], step.real_rows, step.last)
        for step in steps
    ]


def test_a_step_is_cut_into_equal_slices():
    found = list(sliced(steps_of(4, 4), slicing()))
    assert told(found) == [([[0, 1], [2, 3]], 4, [False] * 2), ([[4, 5], [6, 7]], 4, [True] * 2)]
    assert [step.position_after for step in found] == [4, 8]
    assert found[1].where == "row 4"


def test_several_batches_are_put_together_before_they_are_cut():
    found = told(sliced(steps_of(2, 2, 2, 2), slicing(batches=2)))
    assert found == [([[0, 1], [2, 3]], 4, [False] * 2), ([[4, 5], [6, 7]], 4, [True] * 2)]


def test_the_last_step_is_padded_with_the_first_rows():
    assert told(sliced(steps_of(4, 3), slicing()))[1] == ([[4, 5], [6, 0]], 3, [True] * 2)


def test_fewer_rows_than_ranks_are_padded_round():
    assert told(sliced(steps_of(1), slicing(portions=4))) == [([[0]] * 4, 1, [True] * 4)]


def test_uneven_slices_end_a_rank_one_step_earlier():
    found = told(sliced(steps_of(4, 1), slicing(even_batches=False)))
    assert found == [([[0, 1], [2, 3]], 4, [False, True]), ([[4], None], 1, [True] * 2)]


def test_uneven_slices_give_the_first_ranks_one_more():
    assert told(sliced(steps_of(5), slicing(even_batches=False))) == [([[0, 1, 2], [3, 4]], 5, [True] * 2)]


@pytest.mark.parametrize("sizes", [(2, 2, 2), (2, 2, 1)])
def test_drop_last_leaves_out_an_incomplete_step(sizes):
    assert told(sliced(steps_of(*sizes), slicing(batches=2, drop_last=True))) == [([[0, 1], [2, 3]], 4, [True] * 2)]


def test_drop_last_leaves_out_an_odd_last_batch():
    assert len(told(sliced(steps_of(4, 3), slicing(drop_last=True)))) == 1


def test_an_odd_step_before_the_last_is_refused_by_its_place():
    with pytest.raises(SourceError, match=r"row 4: has 3 rows.*2 ranks"):
        list(sliced(steps_of(4, 3, 4), slicing()))


def test_an_error_comes_behind_the_good_steps():
    found = sliced(steps_of(4, 4, fails=True), slicing())
    assert [next(found).real_rows, next(found).real_rows] == [4, 4]
    with pytest.raises(LookupError):
        next(found)


def test_closing_closes_the_steps():
    closed = []

    def steps():
        try:
            yield from steps_of(4, 4, 4)
        finally:
            closed.append(True)

    found = sliced(steps(), slicing())
    next(found)
    found.close()
    assert closed == [True]


def test_nothing_is_an_empty_epoch():
    assert list(sliced(steps_of(), slicing())) == []
