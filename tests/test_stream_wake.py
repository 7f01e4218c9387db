"""stream/wake.py: a bell wakes who waits for its descriptor."""

import select
import threading

from descriptors import open_descriptors
from stream.wake import Bell


def rings(bell):
    return bool(select.select([bell.fileno()], [], [], 0)[0])


def test_it_rings_until_it_is_silenced():
    bell = Bell()
    assert not rings(bell)
    bell.ring()
    bell.ring()
    assert rings(bell)
    bell.silence()
    assert not rings(bell)
    bell.silence()
    bell.close()


def test_another_thread_wakes_who_waits():
    bell = Bell()
    thread = threading.Thread(target=bell.ring)
    thread.start()
    assert select.select([bell.fileno()], [], [], 20)[0]
    thread.join()
    bell.close()


def test_a_closed_bell_may_be_rung_and_closed_again():
    before = open_descriptors()
    bell = Bell()
    bell.close()
    bell.ring()
    bell.close()
    assert bell.fileno() == -1
    assert open_descriptors() == before


def test_a_bell_that_nobody_closes_goes_with_its_last_user():
    before = open_descriptors()
    bell = Bell()
    bell.ring()
    del bell
    assert open_descriptors() == before
