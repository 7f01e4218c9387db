"""Where a loader is: epochs and positions, counted by what was handed out."""

import pytest

from stream.errors import OptionError
from stream.progress import Progress


def run(progress, *rows, end=True):
    """Hand out an epoch, or its begin, in steps of so many rows."""
    epoch, *_ = progress.begin()
    for number, count in enumerate(rows):
        progress.hand_out(count, position=None, last=end and number == len(rows) - 1)
    if end:
        progress.end(epoch)


def test_it_begins_at_the_first_row_of_the_first_epoch():
    progress = Progress()
    assert progress.place[:2] == (0, 0)
    assert progress.begin()[:2] == (0, 0)
    assert (progress.at_end, progress.remainder) == (False, -1)


def test_the_position_counts_the_rows_that_were_handed_out():
    progress = Progress()
    run(progress, 4, 4, end=False)
    assert (progress.position, progress.place[:2]) == (8, (0, 8))


def test_a_position_that_the_step_told_is_taken_as_it_is():
    progress = Progress()
    progress.begin()
    progress.hand_out(4, position=9, last=False)
    assert progress.position == 9


def test_with_the_last_batch_in_hand_the_place_is_the_next_epoch():
    progress = Progress()
    progress.begin()
    progress.hand_out(3, position=None, last=True)
    assert (progress.epoch, progress.position, progress.place[:2]) == (0, 3, (1, 0))
    assert (progress.at_end, progress.remainder) == (True, 3)


def test_behind_the_end_of_an_epoch_the_next_one_is_delivered():
    progress = Progress()
    run(progress, 4, 3)
    assert (progress.epoch, progress.position, progress.place[:2]) == (1, 0, (1, 0))
    assert progress.begin()[:2] == (1, 0)


def test_an_epoch_that_was_left_is_delivered_again_from_its_beginning():
    progress = Progress()
    run(progress, 4, end=False)
    assert progress.begin()[:2] == (0, 0)
    assert progress.position == 0


def test_an_iteration_begins_where_it_was_told_once():
    progress = Progress()
    progress.go_to(2, 8)
    assert progress.place[:2] == (2, 8)
    assert progress.begin()[:2] == (2, 8)
    assert progress.position == 8
    assert progress.begin()[:2] == (2, 0)


def test_going_elsewhere_forgets_the_end_of_the_epoch():
    progress = Progress()
    progress.begin()
    progress.hand_out(3, position=None, last=True)
    progress.go_to(0, 0)
    assert (progress.at_end, progress.remainder, progress.place[:2]) == (False, -1, (0, 0))


def test_setting_the_epoch_that_it_is_in_changes_nothing():
    progress = Progress()
    progress.go_to(1, 8)
    progress.set_epoch(1)
    assert progress.begin()[:2] == (1, 8)


def test_another_epoch_begins_at_its_first_row():
    progress = Progress()
    progress.go_to(1, 8)
    progress.set_epoch(2)
    assert progress.begin()[:2] == (2, 0)


def test_an_epoch_that_is_set_in_mid_iteration_is_not_advanced_by_what_that_still_hands_out():
    progress = Progress()
    begun, *_ = progress.begin()
    progress.set_epoch(7)
    progress.hand_out(4, position=None, last=True)
    assert (progress.at_end, progress.remainder) == (True, 4)  # accelerate asks about the batch in hand
    assert progress.place[:2] == (7, 0)
    progress.end(begun)
    assert progress.begin()[:2] == (7, 0)


@pytest.mark.parametrize("epoch", [-1, 1.0, True, None, "1"])
def test_an_epoch_that_is_none_is_refused(epoch):
    with pytest.raises(OptionError, match="epoch="):
        Progress().set_epoch(epoch)


def test_skipping_begins_so_many_steps_later():
    progress = Progress()
    progress.skip(2, rows_a_step=4, rows=20)
    progress.skip(1, rows_a_step=4, rows=20)
    assert progress.begin()[:2] == (0, 12)


@pytest.mark.parametrize(("rows", "start"), [(7, 7), (None, 40)])
def test_skipping_ends_at_the_end_of_the_epoch_where_that_is_known(rows, start):
    progress = Progress()
    progress.skip(10, rows_a_step=4, rows=rows)
    assert progress.begin()[:2] == (0, start)


@pytest.mark.parametrize("steps", [-1, 1.0, True, None])
def test_a_number_of_steps_that_is_none_is_refused(steps):
    with pytest.raises(OptionError, match="steps="):
        Progress().skip(steps, rows_a_step=4, rows=20)
