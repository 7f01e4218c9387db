"""stream/aside.py: tasks run in their order in a few threads, which end with it."""

import threading
import weakref

import pytest

from ranks import left_behind
from ranks_in_threads import until
from stream.aside import Aside


def test_tasks_are_run_in_order_by_a_thread_of_that_name():
    done = []
    aside = Aside(lambda task: done.append((task, threading.current_thread().name)), 1, name="stream-test")
    for task in range(50):
        aside.put(task)
    assert until(lambda: len(done) == 50)
    assert done == [(task, "stream-test_0") for task in range(50)]
    aside.close()
    assert left_behind() == []


def test_as_many_run_at_once_as_there_may_be_threads_and_no_more():
    barrier, running = threading.Barrier(4), []

    def run(task):
        running.append(task)
        barrier.wait(20)

    aside = Aside(run, 3, name="stream-test")
    for task in range(6):
        aside.put(task)
    assert until(lambda: len(running) == 3)
    assert aside.waits
    barrier.wait(20)
    assert until(lambda: len(running) == 6)
    assert not aside.waits
    barrier.wait(20)
    aside.close()


def busy():
    """Return threads, all one of them busy with "runs" until the event is set, and what they have done."""
    go, done = threading.Event(), []

    def run(task):
        go.wait(20)
        done.append(task)

    aside = Aside(run, 1, name="stream-test")
    aside.put("runs")
    assert until(lambda: not aside.waits)
    return aside, go, done


def test_what_waits_may_be_taken_back_once():
    aside, go, done = busy()
    aside.put(None)
    assert aside.pop() == [None]
    assert aside.pop() == []
    go.set()
    aside.close()
    assert done == ["runs"]


def test_closing_waits_for_what_runs_and_drops_the_rest():
    aside, go, done = busy()
    aside.put("waits")
    threading.Timer(0.05, go.set).start()
    aside.close()
    aside.close()
    assert done == ["runs"]
    assert left_behind() == []


def test_many_threads_may_put_and_never_start_too_many():
    done = []
    aside = Aside(done.append, 2, name="stream-test")
    putting = [threading.Thread(target=lambda: [aside.put(1) for _ in range(500)]) for _ in range(4)]
    for thread in putting:
        thread.start()
    for thread in putting:
        thread.join(20)
    assert until(lambda: len(done) == 2000)
    assert sum(thread.name.startswith("stream-test") for thread in threading.enumerate()) <= 2
    aside.close()


def test_nothing_of_a_task_is_kept_once_it_has_run():
    class Task:
        pass

    aside = Aside(lambda task: None, 1, name="stream-test")
    task = Task()
    gone = weakref.ref(task)
    aside.put(task)
    del task
    assert until(lambda: gone() is None)
    aside.close()


def test_where_the_system_gives_no_more_threads_those_that_run_do_it(monkeypatch):
    done = []
    aside = Aside(done.append, 3, name="stream-test")
    aside.put(1)
    monkeypatch.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("no more")))
    aside.put(2)
    assert until(lambda: done == [1, 2])
    none = Aside(done.append, 3, name="stream-test")
    with pytest.raises(RuntimeError, match="no more"):
        none.put(3)
    none.close()
    aside.close()
