"""stream/gil.py: the time of a job is split by clocks that the tests turn; and once by the real ones."""

import threading
import time

import pytest

from stream.gil import GilMeter, Held, queue_s


class Clocks:
    """Clocks that only go when they are told to."""

    def __init__(self):
        self.wall_s = self.cpu_s = 100.0
        self.queued = 0.0

    def meter(self):
        return GilMeter(wall=lambda: self.wall_s, cpu=lambda: self.cpu_s, queue=lambda _: self.queued)

    def go(self, wall_s, cpu_s):
        self.wall_s += wall_s
        self.cpu_s += cpu_s


def in_a_thread(work):
    thread = threading.Thread(target=work, name="stream-test")
    thread.start()
    thread.join()


def test_nothing_measured_is_no_time_and_no_share():
    assert (GilMeter().snapshot(), GilMeter().snapshot().share) == (Held(0, 0, 0), 0)


def test_what_was_neither_on_a_core_nor_in_the_queue_for_one_was_waiting():
    clocks = Clocks()
    meter = clocks.meter()
    with meter.job():
        clocks.go(10, 4)
    clocks.queued = 1
    held = meter.snapshot()
    assert held == (10, 4, 1)
    assert (held.gil_wait_s, held.share) == (5, 0.5)


def test_jobs_of_all_threads_add_up_and_what_lies_between_them_does_not_count():
    clocks = Clocks()
    meter = clocks.meter()

    def job():
        with meter.job():
            clocks.go(3, 2)

    job()
    clocks.go(50, 50)
    in_a_thread(job)
    assert meter.snapshot()[:2] == (6, 4)


def test_a_job_that_fails_counts_and_its_error_passes():
    clocks = Clocks()
    meter = clocks.meter()

    def job():
        with meter.job():
            clocks.go(2, 1)
            raise KeyError

    with pytest.raises(KeyError):
        job()
    assert meter.snapshot()[:2] == (2, 1)


def test_a_queue_longer_than_the_jobs_is_no_negative_wait():
    assert Held(1, 1, 5).gil_wait_s == 0


def test_the_real_clocks_tell_sleep_from_work():
    meter = GilMeter()

    def work():
        with meter.job():
            time.sleep(0.05)

    in_a_thread(work)
    held = meter.snapshot()
    assert held.wall_s >= 0.05
    assert held.cpu_s < held.wall_s


def test_a_thread_that_is_not_there_waited_for_nothing():
    assert queue_s(2**30) == 0


def test_the_system_counts_the_queue_of_this_thread():
    assert queue_s(threading.get_native_id()) >= 0
