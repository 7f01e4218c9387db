"""Who gets which positions at each step."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.errors import OptionError
from stream.order import Order
from stream.schedule import Schedule, Slot, slots

ROWS = st.integers(0, 100)
RANKS = st.integers(1, 4)


@st.composite
def resumed(draw):
    """Any epoch that is taken up anywhere: rows, ranks, the share of a rank, both policies of the tail, the start."""
    rows = draw(st.integers(0, 60))
    options = {
        "ranks": draw(st.integers(1, 6)),
        "share": draw(st.integers(1, 5)),
        "drop_last": draw(st.booleans()),
        "even_batches": draw(st.booleans()),
        "start": draw(st.integers(0, rows)),
    }
    return rows, options


def make(rows, *, global_batch=12, ranks=1, drop_last=False, even_batches=True, start=0):
    return Schedule(
        rows, global_batch=global_batch, ranks=ranks, drop_last=drop_last, even_batches=even_batches, start=start
    )


def portions(schedule, ranks):
    steps = [[schedule.portion(step, rank).tolist() for rank in range(ranks)] for step in range(schedule.steps)]
    assert [[one.tolist() for one in schedule.portions(step)] for step in range(schedule.steps)] == steps
    return steps


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


thousands = settings(max_examples=2000, deadline=None)


@thousands
@given(resumed())
def test_every_row_from_a_start_on_comes_once_and_padding_only_at_the_end(case):
    rows, options = case
    schedule, ranks, step = of_case(rows, options)
    found = [position for step in portions(schedule, ranks) for part in step for position in part]
    real = sum(schedule.real_rows(number) for number in range(schedule.steps))
    assert found[:real] == list(range(options["start"], options["start"] + real))
    left_out = rows - options["start"] - real
    assert 0 <= left_out < step if options["drop_last"] else left_out == 0
    padding = found[real:]
    assert padding == [number % rows for number in range(len(padding))]
    assert len(padding) < ranks
    if options["drop_last"] or not options["even_batches"]:
        assert not padding


@thousands
@given(resumed())
def test_sizes_are_equal_where_promised_and_only_the_last_step_is_short(case):
    rows, options = case
    schedule, ranks, _ = of_case(rows, options)
    sizes = [[len(part) for part in step] for step in portions(schedule, ranks)]
    assert sizes[:-1] == [[options["share"]] * ranks] * max(0, schedule.steps - 1)
    for last in sizes[-1:]:
        uneven = 0 if options["drop_last"] or options["even_batches"] else 1
        assert last == sorted(last, reverse=True)
        assert last[0] - last[-1] <= uneven
        assert 0 < last[0] <= options["share"]
        assert schedule.remainder == schedule.real_rows(schedule.steps - 1)
    if not sizes:
        assert schedule.remainder == 0


@thousands
@given(resumed())
def test_steps_of_a_rank_are_those_with_rows_for_it_from_any_start(case):
    rows, options = case
    schedule, ranks, _ = of_case(rows, options)
    found = portions(schedule, ranks)
    for rank in range(ranks):
        with_rows = [number for number, step in enumerate(found) if step[rank]]
        assert with_rows == list(range(schedule.steps_of(rank)))


@thousands
@given(resumed(), st.integers(0, 12))
def test_an_epoch_taken_up_after_a_step_goes_on_as_if_it_had_not_stopped(case, done):
    rows, options = case
    schedule, ranks, step = of_case(rows, options)
    start = min(rows, options["start"] + min(done, schedule.steps) * step)
    again, _, _ = of_case(rows, {**options, "start": start})
    assert portions(again, ranks) == portions(schedule, ranks)[done:]


def of_case(rows, options):
    """The schedule of a drawn case, its ranks, and the rows of a whole step."""
    ranks, step = options["ranks"], options["share"] * options["ranks"]
    given = {name: value for name, value in options.items() if name != "share"}
    return make(rows, global_batch=step, **given), ranks, step


def test_an_epoch_taken_up_in_its_midst_is_padded_with_its_first_rows():
    schedule = make(20, ranks=2, start=3)
    assert portions(schedule, 2) == [[[3, 4, 5, 6, 7, 8], [9, 10, 11, 12, 13, 14]], [[15, 16, 17], [18, 19, 0]]]
    assert schedule.remainder == 5


def test_an_epoch_taken_up_at_its_end_has_no_steps():
    schedule = make(20, ranks=2, start=20)
    assert (schedule.steps, schedule.remainder, schedule.steps_of(0)) == (0, 0, 0)


@pytest.mark.parametrize("start", [-1, 21])
def test_a_start_outside_the_epoch_is_refused(start):
    with pytest.raises(OptionError, match=f"start={start}: must be one of the positions 0 to 20"):
        make(20, start=start)


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


def test_all_portions_of_a_step_are_views_of_one_array():
    whole = make(10**6, ranks=1000, global_batch=1000).portions(3)
    assert len(whole) == 1000
    assert all(portion.base is whole[0].base for portion in whole)
