"""Where sequences are cut, against the schedule of a source of known length."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.cuts import Cut, cut_items, cut_lists, split_items
from stream.errors import SourceError
from stream.schedule import Schedule

CUTS = st.builds(
    lambda portions, share, drop_last, even: Cut(portions * share, portions, drop_last, even),
    st.integers(1, 5),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
)


def failing(good):
    yield from range(good)
    raise OSError("the connection was reset")


def check_last(steps):
    """`last` is true from each portion's last step on, and at no step before."""
    for number, step in enumerate(steps):
        following = [later.portions for later in steps[number + 1 :]]
        assert step.last == [not any(later[portion] for later in following) for portion in range(len(step.portions))]


@settings(deadline=None, max_examples=300)
@given(rows=st.integers(0, 50), cut=CUTS, data=st.data())
def test_items_are_cut_as_a_source_of_known_length_would_be(rows, cut, data):
    start = data.draw(st.integers(0, rows))
    schedule = Schedule(
        rows,
        global_batch=cut.global_batch,
        ranks=cut.portions,
        drop_last=cut.drop_last,
        even_batches=cut.even_batches,
        start=start,
    )
    steps = list(cut_items(iter(range(rows)), cut, start=start))
    assert [step.portions for step in steps] == [
        [schedule.portion(step, portion).tolist() for portion in range(cut.portions)] for step in range(schedule.steps)
    ]
    assert [step.real for step in steps] == [schedule.real_rows(step) for step in range(schedule.steps)]
    assert [step.last for step in steps] == [
        [step + 1 >= schedule.steps_of(portion) for portion in range(cut.portions)] for step in range(schedule.steps)
    ]
    assert [step.position_after for step in steps] == [
        start + sum(done.real for done in steps[: number + 1]) for number in range(len(steps))
    ]


@pytest.mark.parametrize(
    ("cut", "seen"), [(Cut(4, 2), 5), (Cut(4, 2, drop_last=True), 8), (Cut(4, 2, even_batches=False), 6)]
)
def test_it_looks_ahead_no_farther_than_to_know_the_last_step(cut, seen):
    items = iter(range(100))
    next(cut_items(items, cut))
    assert next(items) == seen


@pytest.mark.parametrize("cut", [Cut(4, 2), Cut(4, 2, drop_last=True), Cut(4, 2, even_batches=False)])
def test_an_error_comes_behind_the_whole_steps_and_none_of_them_is_the_last(cut):
    steps = cut_items(failing(9), cut)
    for _ in range(2):
        assert next(steps).last == [False, False]
    with pytest.raises(OSError, match="reset"):
        next(steps)


# --- lists of items ---------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=300)
@given(lengths=st.lists(st.integers(1, 4), max_size=12), cut=CUTS)
def test_lists_come_exactly_once_and_padding_only_at_the_end(lengths, cut):
    items = iter(range(100))
    lists = [[next(items) for _ in range(length)] for length in lengths]
    steps = list(cut_lists(iter(lists), cut))
    flat = [item for step in steps for portion in step.portions for item in portion]
    real = sum(step.real for step in steps)
    whole = lists[: len(lists) - len(lists) % cut.portions] if cut.drop_last else lists
    assert flat[:real] == list(range(sum(map(len, whole))))
    first = [item for items in lists[: cut.portions] for item in items][: cut.portions]
    assert flat[real:] == [first[place % len(first)] for place in range(len(flat) - real)]
    check_last(steps)
    for number, step in enumerate(steps[:-1]):
        assert step.portions == lists[number * cut.portions : (number + 1) * cut.portions]
    if steps and cut.even_batches:
        assert len({len(portion) for portion in steps[-1].portions}) == 1


def test_lists_that_are_too_few_for_the_last_step_are_recut():
    steps = list(cut_lists(iter([[0, 1], [2, 3], [4, 5, 6]]), Cut(1, 2)))
    assert steps[-1].portions == [[4, 5], [6, 0]]
    assert steps[-1].real == 3


def test_lists_of_several_lengths_stay_as_they_are_before_the_last_step():
    steps = list(cut_lists(iter([[0], [1, 2], [3, 4], [5]]), Cut(1, 2)))
    assert [step.portions for step in steps] == [[[0], [1, 2]], [[3, 4], [5, 0]]]
    assert [step.real for step in steps] == [3, 3]


# --- items that are steps of their own size -----------------------------------------------------------------------


@settings(deadline=None, max_examples=300)
@given(
    shares=st.lists(st.integers(0, 3), max_size=8), tail=st.integers(0, 9), portions=st.integers(1, 4), data=st.data()
)
def test_each_row_of_an_item_comes_once_and_only_the_last_item_is_padded(shares, tail, portions, data):
    cut = Cut(1, portions, data.draw(st.booleans()), data.draw(st.booleans()))
    sizes = [share * portions for share in shares] + [tail]
    steps = list(split_items(iter(sizes), cut, lambda size: size))
    kept = [size for size in sizes if size]
    odd = tail % portions if cut.even_batches else 0 < tail < portions
    if cut.drop_last and tail and odd:
        kept.pop()
    assert [step.item for step in steps] == [step.real for step in steps] == kept
    for step in steps:
        flat = [row for rows in step.rows for row in rows]
        assert flat[: step.real] == list(range(step.real))
        assert flat[step.real :] == [place % step.real for place in range(len(flat) - step.real)]
        assert not cut.even_batches or len({len(rows) for rows in step.rows}) == 1
    for number, step in enumerate(steps):
        following = [later.rows for later in steps[number + 1 :]]
        assert step.last == [not any(later[portion] for later in following) for portion in range(portions)]


def test_an_odd_item_in_the_middle_is_refused_with_both_numbers():
    steps = split_items(iter([4, 3, 4]), Cut(1, 2), lambda size: size)
    assert next(steps).last == [False, False]
    with pytest.raises(SourceError, match=r"batch 1 of the source: has 3 rows, which cannot be split over 2 ranks"):
        next(steps)
