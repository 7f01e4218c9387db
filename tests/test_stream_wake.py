"""stream/wake.py: a bell wakes who waits for its descriptor."""

import gc
import os
import queue
import select
import sys
import threading

import pytest

from descriptors import new_descriptors, open_descriptors
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
    assert new_descriptors(before) == {}


def test_a_bell_that_nobody_closes_goes_with_its_last_user():
    before = open_descriptors()
    bell = Bell()
    bell.ring()
    del bell
    assert new_descriptors(before) == {}


def test_a_forked_child_neither_rings_nor_silences_the_bell_of_its_parent():
    bell = Bell()
    for act in (bell.ring, bell.silence):
        child = os.fork()
        if child == 0:
            act()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert rings(bell) == (act == bell.silence)
        bell.ring()
    assert rings(bell)
    bell.silence()
    assert not rings(bell)
    bell.close()


def test_none_of_many_rings_is_lost():
    bell, box, seen = Bell(), queue.SimpleQueue(), 0

    def work():
        for _ in range(5000):
            box.put(1)
            bell.ring()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    while seen < 15_000:
        assert select.select([bell.fileno()], [], [], 20)[0], "nobody woke the one who waits"
        bell.silence()
        while not box.empty():
            seen += box.get()
    for thread in threads:
        thread.join()
    bell.close()


def test_a_bell_whose_descriptor_cannot_be_made_goes_quietly(monkeypatch):
    def refuse(*_):
        raise OSError("too many open files")

    monkeypatch.setattr(os, "eventfd", refuse)
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    with pytest.raises(OSError, match="too many open files"):
        Bell()
    gc.collect()
    assert unraisable == []
