"""The pool of rank processes: what it brings back, and what becomes of ranks that fail, hang or die."""

import os
import time
from pathlib import Path

import psutil
import pytest

from fault_pool import PoolError, RankPool

pytestmark = pytest.mark.ranks
HERE = [Path(__file__).parent]


@pytest.fixture(scope="module")
def pool():
    with RankPool(2, paths=HERE) as made:
        yield made


def where(found):
    """Runs in the ranks, as all functions down to the first test."""
    return [found, os.environ["RANK"], os.environ["OMP_NUM_THREADS"], os.getpid()]


def fail(rank):
    if os.environ["RANK"] == str(rank):
        raise LookupError("no such word")


def hang(rank):
    while os.environ["RANK"] == str(rank):
        time.sleep(0.05)


def die(rank, held_s=0.0):
    time.sleep(held_s)
    if os.environ["RANK"] == str(rank):
        os.write(1, b"last words")
        os._exit(7)
    return "alive"


def start_child():
    return os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "600")


def dispatching():
    from accelerate import Accelerator, DataLoaderConfiguration

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
    accelerator.gradient_state._add_dataloader(accelerator)
    return [accelerator.dispatch_batches, len(accelerator.gradient_state.dataloader_references)]


def name(function):
    return f"test_benchmarks_fault_pool:{function.__name__}"


def gone(pids, limit_s=10.0):
    until = time.monotonic() + limit_s
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < until:
        time.sleep(0.01)
    return not left


def alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_nothing_is_started_before_the_first_call():
    with RankPool(2) as pool:
        assert (pool.starts, pool.pids) == (0, [])


def test_every_rank_runs_the_function_and_answers_in_its_place(pool):
    found = pool.call(name(where), {"found": {"a": [1, None]}})
    assert found == [[{"a": [1, None]}, str(rank), "1", pool.pids[rank]] for rank in range(2)]


def test_the_same_processes_run_the_next_call(pool):
    first = pool.call(name(where), {"found": 1})
    starts = pool.starts
    assert [answer[3] for answer in pool.call(name(where), {"found": 2})] == [answer[3] for answer in first]
    assert pool.starts == starts


def test_each_call_gets_a_fresh_accelerator_state(pool):
    assert [pool.call(name(dispatching), {}) for _ in range(2)] == [[[True, 2]] * 2] * 2


def test_an_error_in_one_rank_ends_the_launch_and_is_told_with_its_traceback(pool):
    with pytest.raises(PoolError, match=r"rank 1 of 2 raised LookupError: no such word(.|\n)*Traceback"):
        pool.call(name(fail), {"rank": 1})
    assert pool.pids == []


def test_a_hung_rank_is_killed_and_its_stack_is_told(pool):
    with pytest.raises(PoolError, match=r"ranks \[0\] of 2 hung(.|\n)*in hang"):
        pool.call(name(hang), {"rank": 0}, limit_s=1)


def test_a_dead_rank_is_noticed_and_its_words_are_told(pool):
    with pytest.raises(PoolError, match=r"rank 1 of 2 ended with status 7(.|\n)*last words"):
        pool.call(name(die), {"rank": 1}, limit_s=30)


def test_after_a_failure_the_next_call_starts_new_ranks(pool):
    starts = pool.starts
    with pytest.raises(PoolError):
        pool.call(name(fail), {"rank": 0})
    assert [answer[0] for answer in pool.call(name(where), {"found": 3})] == [3, 3]
    assert starts < pool.starts


def test_a_rank_that_is_meant_to_die_leaves_its_place_empty():
    with RankPool(2, paths=HERE) as pool:
        assert pool.call(name(die), {"rank": 0, "held_s": 0.2}, dying=[0]) == [None, "alive"]


def test_closing_ends_the_ranks_and_what_they_started():
    with RankPool(2, paths=HERE) as pool:
        pids = [*pool.pids, *pool.call(name(start_child), {})]
        assert all(alive(pid) for pid in pids)
    pool.close()
    assert gone(pids)


@pytest.mark.parametrize("end_training", [True, False])
def test_ranks_that_end_by_themselves_tell_their_status_and_words(end_training):
    with RankPool(2, paths=HERE) as pool:
        pool.call(name(where), {"found": 0})
        assert [(rank.code, rank.text) for rank in pool.end(end_training=end_training)] == [(0, "")] * 2
        assert pool.pids == []
