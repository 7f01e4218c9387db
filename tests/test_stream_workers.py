"""Worker processes: in order, errors in their places, nothing left behind."""

import multiprocessing
import os
import signal
import threading

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from ranks import left_behind, soon_left_behind
from stream.errors import DecodeError, SourceError
from stream.sharded import Failed
from stream.workers import Crew, Hands, guarded, raisable


class Duty(Dataset):
    """Squares numbers, and says by whom."""

    def __init__(self):
        self.dataset = "the user's"

    def __getitem__(self, task):
        return guarded(lambda: self.work(task))

    def work(self, task):
        if isinstance(task, Exception):
            raise task
        if task == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if task == "info":
            return get_worker_info().dataset
        return task * task, os.getpid()


class Counting(IterableDataset):
    """Each worker gives its numbers of range(7)."""

    dataset = None

    def __iter__(self):
        info = get_worker_info()
        yield from range(info.id, 7, info.num_workers)


def squares(found):
    return [square for square, _ in found]


@pytest.mark.parametrize("workers", [0, 2])
def test_results_come_in_the_order_of_the_tasks(workers):
    found = list(Crew(Duty(), Hands(workers=workers)).run(range(20)))
    assert squares(found) == [number * number for number in range(20)]
    assert len({pid for _, pid in found}) == max(1, workers)
    assert (os.getpid() in {pid for _, pid in found}) == (workers == 0)
    assert left_behind() == []


def test_an_iterable_duty_needs_no_tasks():
    assert list(Crew(Counting(), Hands(workers=2)).run()) == list(range(7))


@pytest.mark.parametrize("workers", [0, 2])
def test_nothing_starts_before_the_first_result_is_asked_for(workers):
    run = Crew(Duty(), Hands(workers=workers)).run(iter(lambda: pytest.fail("a task was taken"), None))
    assert left_behind() == []
    run.close()


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_run_that_is_left_early_leaves_nothing(workers, taken):
    run = Crew(Duty(), Hands(workers=workers)).run(range(100))
    for _ in range(taken):
        next(run)
    run.close()
    assert left_behind() == []


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_a_task_comes_in_its_place_as_itself(workers):
    run = Crew(Duty(), Hands(workers=workers)).run([1, 2, DecodeError("a.jpg", "empty file"), 3])
    assert squares([next(run), next(run)]) == [1, 4]
    with pytest.raises(DecodeError, match=r"^image a\.jpg: empty file") as caught:
        next(run)
    assert left_behind() == []  # though the error is held, with all frames it went through
    assert caught.value.name == "a.jpg"


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_the_tasks_comes_behind_all_results(workers):
    def tasks():
        yield from (1, 2, 3)
        raise KeyError("no such row")

    run = Crew(Duty(), Hands(workers=workers)).run(tasks())
    assert squares([next(run), next(run), next(run)]) == [1, 4, 9]
    with pytest.raises(KeyError, match="no such row"):
        next(run)
    assert left_behind() == []


@pytest.mark.timeout(60)
def test_a_worker_that_dies_is_an_error():
    with pytest.raises(RuntimeError, match="worker"):
        list(Crew(Duty(), Hands(workers=1)).run([1, "die", 2]))
    assert soon_left_behind() == []


def test_code_in_a_worker_sees_the_users_dataset():
    assert list(Crew(Duty(), Hands(workers=1)).run(["info"])) == ["the user's"]


class Note:
    """An init function that leaves a note in its process."""

    def __call__(self, worker):
        os.environ["STREAM_TEST_NOTE"] = f"{worker} of {get_worker_info().dataset}"


class Noted(Duty):
    def work(self, task):
        return os.environ["STREAM_TEST_NOTE"]


def test_the_users_init_function_runs_in_each_worker():
    found = list(Crew(Noted(), Hands(workers=2, init=Note())).run(range(2)))
    assert found == ["0 of the user's", "1 of the user's"]


def test_spawned_workers_do_the_same():
    context = multiprocessing.get_context("spawn")
    found = list(Crew(Duty(), Hands(workers=1, context=context)).run([3, "info"]))
    assert (found[0][0], found[1]) == (9, "the user's")
    assert left_behind() == []


def test_persistent_workers_live_until_they_are_closed():
    crew = Crew(Duty(), Hands(workers=2, persistent=True))
    pids = [{pid for _, pid in crew.run(range(10))} for _ in range(2)]
    assert pids[0] == pids[1]
    assert len(left_behind()) == 2
    crew.close()
    crew.close()
    assert left_behind() == []
    assert squares(crew.run([5])) == [25]
    crew.close()
    assert left_behind() == []


def test_persistent_workers_begin_anew_after_a_run_was_left_early():
    crew = Crew(Duty(), Hands(workers=2, persistent=True))
    run = crew.run(range(100))
    next(run)
    run.close()
    assert squares(crew.run(range(5))) == [0, 1, 4, 9, 16]
    crew.close()


def test_the_users_global_generator_is_not_drawn_from():
    state = torch.get_rng_state()
    list(Crew(Duty(), Hands()).run(range(2)))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_stop_iteration_is_no_silent_end():
    def stops():
        raise StopIteration

    found = guarded(stops)
    assert isinstance(found, Failed)
    assert isinstance(found.error, SourceError)


class UnsendableError(Exception):
    def __init__(self):
        super().__init__(threading.Lock())

    def __str__(self):
        return "has a lock"


def test_an_error_that_cannot_leave_a_worker_is_told_in_words():
    class Unsendable(Duty):
        def work(self, task):
            raise UnsendableError

    with pytest.raises(SourceError, match=r"^a worker process: UnsendableError: has a lock"):
        list(Crew(Unsendable(), Hands(workers=1)).run([1]))
    error = UnsendableError()
    assert raisable(error) is error  # here it need not be sent
