"""No work that may hold a lock runs while the process forks."""

import os
import threading
import time

import pytest

from stream import forks
from stream.forks import working
from stream.read_ahead import ReadAhead


def forked(work) -> int:
    """The exit status of a forked child that runs `work`: 0 where it returns true."""
    child = os.fork()
    if child == 0:
        os._exit(0 if work() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_fork_waits_until_the_work_is_done():
    lock, inside = threading.Lock(), threading.Event()

    def work():
        with working(), lock:
            inside.set()
            time.sleep(0.3)

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait()
    assert forked(lambda: lock.acquire(timeout=1)) == 0
    thread.join()


def test_a_load_is_such_work():
    lock, inside = threading.Lock(), threading.Event()

    def load(item):
        with lock:
            inside.set()
            time.sleep(0.3)
        return item

    with ReadAhead(load, [1, 2, 3], depth=2) as ahead:
        assert next(ahead) == 1
        inside.wait()
        assert forked(lambda: lock.acquire(timeout=1)) == 0
        assert list(ahead) == [2, 3]


def test_nobody_begins_while_the_process_forks_and_everybody_goes_on_after():
    with ReadAhead(lambda item: item, range(100), depth=4) as ahead:
        found = [next(ahead)]
        for _ in range(5):
            assert forked(lambda: True) == 0
            found.append(next(ahead))
        assert found + list(ahead) == list(range(100))


def test_a_child_can_work_itself():
    def work():
        with working():
            return True

    assert forked(work) == 0


def test_work_may_fork_itself():
    with working():
        assert forked(lambda: True) == 0


def test_work_that_never_ends_delays_a_fork_but_does_not_stop_it(monkeypatch):
    monkeypatch.setattr(forks, "PATIENCE_S", 0.05)
    inside, end = threading.Event(), threading.Event()

    def work():
        with working():
            inside.set()
            end.wait()

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait()
    try:
        assert forked(lambda: True) == 0
    finally:
        end.set()
        thread.join()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_work_that_fails_has_ended(error):
    with pytest.raises(error), working():
        raise error
    assert forked(lambda: True) == 0


def test_hooks_run_while_nobody_is_inside(monkeypatch):
    """So they may take locks that the work needs: taken earlier, the fork would wait for work that waits for it."""
    monkeypatch.setattr(forks._Process, "hooks", [])
    lock, inside, order = threading.Lock(), threading.Event(), []

    def work():
        with working():
            inside.set()
            time.sleep(0.2)
            with lock:
                order.append("work")

    forks.while_closed(
        before=lambda: (lock.acquire(), order.append("before")),
        in_parent=lambda: (lock.release(), order.append("parent")),
        in_child=lambda: order.append("child"),
    )
    thread = threading.Thread(target=work)
    thread.start()
    inside.wait()
    assert forked(lambda: order == ["work", "before", "child"]) == 0
    thread.join()
    assert order == ["work", "before", "parent"]
