"""Who gets which positions at each step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.errors import OptionError
from stream.order import Order
from stream.schedule import Schedule, Slot, slots

ROWS = st.integers(0, 100)
RANKS = st.integers(1, 4)


def make(rows, *, global_batch=12, ranks=1, drop_last=False, even_batches=True):
    return Schedule(rows, global_batch=global_batch, ranks=ranks, drop_last=drop_last, even_batches=even_batches)


def portions(schedule, ranks):
    return [[schedule.portion(step, rank).tolist() for rank in range(ranks)] for step in range(schedule.steps)]


@given(ROWS, st.integers(1, 5), RANKS, st.booleans())
def test_every_row_comes_once_and_padding_only_at_the_end(rows, share, ranks, even_batches):
    schedule = make(rows, global_batch=share * ranks, ranks=ranks, even_batches=even_batches)
    positions = [p for step in range(schedule.steps) for p in schedule.positions(step).tolist()]
    assert positions[:rows] == list(range(rows))
    padding = positions[rows:]
    assert padding == [number % rows for number in range(len(padding))]
    assert len(padding) < ranks
    assert even_batches or not padding
    assert sum(schedule.real_rows(step) for step in range(schedule.steps)) == rows


@given(ROWS, st.integers(1, 5), RANKS)
def test_drop_last_gives_whole_steps_and_loses_less_than_one(rows, share, ranks):
    schedule = make(rows, global_batch=share * ranks, ranks=ranks, drop_last=True)
    positions = [p for step in range(schedule.steps) for p in schedule.positions(step).tolist()]
    assert positions == list(range(len(positions)))
    assert 0 <= rows - len(positions) < share * ranks
    assert all(len(part) == share for step in portions(schedule, ranks) for part in step)


@given(ROWS, st.integers(1, 5), RANKS, st.booleans(), st.booleans())
def test_portions_in_order_of_the_ranks_make_the_step(rows, share, ranks, drop_last, even_batches):
    schedule = make(rows, global_batch=share * ranks, ranks=ranks, drop_last=drop_last, even_batches=even_batches)
    for step, parts in enumerate(portions(schedule, ranks)):
        assert [position for part in parts for position in part] == schedule.positions(step).tolist()
        sizes = [len(part) for part in parts]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] - sizes[-1] <= (0 if even_batches else 1)
        assert sizes[0] > 0


@given(ROWS, st.booleans(), st.booleans())
def test_steps_hold_the_same_rows_for_1_to_4_ranks(rows, drop_last, even_batches):
    schedules = [make(rows, ranks=n, drop_last=drop_last, even_batches=even_batches) for n in (1, 2, 3, 4)]
    assert len({schedule.steps for schedule in schedules}) == 1
    assert len({schedule.remainder for schedule in schedules}) == 1
    for step in range(schedules[0].steps):
        real = [s.positions(step)[: s.real_rows(step)].tolist() for s in schedules]
        assert real == [real[0]] * 4


@given(ROWS, RANKS, st.booleans())
def test_steps_of_a_rank_are_those_with_rows_for_it(rows, ranks, even_batches):
    schedule = make(rows, ranks=ranks, even_batches=even_batches)
    for rank in range(ranks):
        with_rows = [step for step in range(schedule.steps) if len(schedule.portion(step, rank))]
        assert with_rows == list(range(schedule.steps_of(rank)))


def test_five_rows_on_two_ranks_are_padded_to_three_each():
    assert portions(make(17, ranks=2), 2)[1] == [[12, 13, 14], [15, 16, 0]]


def test_an_epoch_shorter_than_the_ranks_is_padded_in_a_circle():
    assert portions(make(2, ranks=3, global_batch=3), 3) == [[[0], [1], [0]]]
    assert portions(make(1, ranks=4), 4) == [[[0], [0], [0], [0]]]


def test_uneven_batches_give_the_first_ranks_one_more():
    assert portions(make(19, ranks=3, even_batches=False), 3)[1] == [[12, 13, 14], [15, 16], [17, 18]]


def test_a_rank_without_rows_ends_one_step_earlier():
    schedule = make(14, ranks=4, even_batches=False)
    assert portions(schedule, 4)[1] == [[12], [13], [], []]
    assert [schedule.steps_of(rank) for rank in range(4)] == [2, 2, 1, 1]


@pytest.mark.parametrize(("rows", "remainder"), [(0, 0), (5, 5), (12, 12), (17, 5), (24, 12)])
def test_the_remainder_is_the_rows_of_the_last_step_without_padding(rows, remainder):
    assert make(rows, ranks=4).remainder == remainder


def test_the_remainder_of_dropped_rows_is_a_whole_step():
    assert make(17, drop_last=True).remainder == 12
    assert make(5, drop_last=True).remainder == 0


def test_an_empty_epoch_has_no_steps():
    schedule = make(0, ranks=2)
    assert schedule.steps == 0
    assert schedule.steps_of(1) == 0
    with pytest.raises(IndexError, match="step 0 of an epoch of 0 steps"):
        schedule.positions(0)


def test_positions_are_int64():
    assert make(5, ranks=2).positions(0).dtype == np.int64
    assert make(5, ranks=2).portion(0, 1).dtype == np.int64


@pytest.mark.parametrize(("global_batch", "near"), [(10, "8 or 12"), (3, "e.g. 4")])
def test_a_batch_that_cannot_be_split_is_refused_with_both_numbers(global_batch, near):
    with pytest.raises(OptionError, match=f"{global_batch} rows cannot be split over 4 ranks.*{near}"):
        make(100, global_batch=global_batch, ranks=4)


@pytest.mark.parametrize(("name", "value"), [("rows", -1), ("global_batch", 0), ("ranks", 0)])
def test_numbers_out_of_bounds_are_refused(name, value):
    numbers = {"rows": 1, "global_batch": 1, "ranks": 1, name: value}
    with pytest.raises(OptionError, match=f"{name}={value}"):
        make(**numbers)


@pytest.mark.parametrize("step", [-1, 2])
def test_a_step_outside_is_refused(step):
    with pytest.raises(IndexError, match=f"step {step} of an epoch of 2 steps"):
        make(17).portion(step, 0)


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_outside_is_refused(rank):
    with pytest.raises(IndexError, match=f"rank {rank} of 2 ranks"):
        make(17, ranks=2).portion(0, rank)
    with pytest.raises(IndexError, match=f"rank {rank} of 2 ranks"):
        make(17, ranks=2).steps_of(rank)


def test_slots_join_each_position_with_its_row():
    order = Order([3, 4], shuffle="full", seed=0, epoch=0, window_shards=4)
    assert slots(order, np.array([6, 0, 6], dtype=np.int64)) == [
        Slot(6, order.row(6)),
        Slot(0, order.row(0)),
        Slot(6, order.row(6)),
    ]
