"""stream/quiet.py: warnings of one thread are ignored, those of the others are not."""

import threading
import warnings

import pytest

from stream.quiet import quiet


def test_a_warning_inside_is_ignored():
    with quiet():
        warnings.warn("inside", stacklevel=1)


def test_a_warning_after_it_is_seen():
    with quiet():
        pass
    with pytest.warns(UserWarning, match="after"):
        warnings.warn("after", stacklevel=1)


def test_the_inner_of_two_does_not_end_the_outer():
    with quiet():
        with quiet():
            pass
        warnings.warn("outer", stacklevel=1)


def test_it_ends_with_an_exception():
    with pytest.raises(KeyError), quiet():
        raise KeyError
    with pytest.warns(UserWarning, match="after"):
        warnings.warn("after", stacklevel=1)


def test_a_filter_that_was_added_later_does_not_win():
    with quiet():
        pass
    warnings.simplefilter("error")
    with quiet():
        warnings.warn("inside", stacklevel=1)


def test_another_thread_still_warns():
    inside, warned = threading.Event(), threading.Event()

    def silent():
        with quiet():
            inside.set()
            warned.wait(10)

    thread = threading.Thread(target=silent)
    thread.start()
    try:
        assert inside.wait(10)
        with pytest.raises(UserWarning, match="loud"):
            warnings.warn("loud", stacklevel=1)
    finally:
        warned.set()
        thread.join()


def test_one_filter_is_added_however_often_it_is_entered():
    with quiet():
        before = len(warnings.filters)
    for _ in range(10):
        warnings.simplefilter("error", UserWarning)  # moves ours from the front
        with quiet():
            pass
    assert len(warnings.filters) <= before + 1


def test_catch_warnings_in_another_thread_gets_its_filters_back():
    before = list(warnings.filters)
    with warnings.catch_warnings():
        with quiet():
            pass
        warnings.simplefilter("ignore")
    assert warnings.filters == before
