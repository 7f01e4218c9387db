"""tools/stopping.py: the first signal stops, the second is not heard, afterwards all is as before."""

import os
import signal
from contextlib import contextmanager

import pytest

from stopping import Stopped, ignore_signals, stoppable

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_becomes_an_exception_with_the_exit_status_of_shells(number):
    with pytest.raises(Stopped) as caught, stoppable():
        os.kill(os.getpid(), number)
    assert caught.value.exit_status == 128 + number
    assert str(caught.value) == f"stopped by {number.name}"


def test_a_second_signal_does_not_interrupt_the_cleaning_up():
    cleaned = []

    @contextmanager
    def work():
        try:
            yield
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            cleaned.append(True)

    with pytest.raises(Stopped) as caught, stoppable(), work():
        os.kill(os.getpid(), signal.SIGINT)
    assert (cleaned, caught.value.number) == ([True], signal.SIGINT)


def test_ignored_signals_do_nothing_until_the_end():
    with stoppable():
        ignore_signals()
        for number in SIGNALS:
            os.kill(os.getpid(), number)


def test_the_former_handlers_come_back():
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(Stopped), stoppable():
        os.kill(os.getpid(), signal.SIGINT)
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_signal_that_was_ignored_before_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stoppable():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_stopped_is_no_exception_that_a_program_might_swallow():
    assert not issubclass(Stopped, Exception)
