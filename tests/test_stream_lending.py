"""Batches in memory that the reader lends: the rank's alone until nothing of them is left, in whatever order."""

import gc
import os
import random

import numpy as np
import pytest

import stream.exchange
from exchanges_made import ExchangeJob, Held, receiving, shared_memory
from offers_made import pattern, steps_offered
from ranks_in_threads import until
from stream.errors import SlabError
from stream.memory_file import MemoryFile

LARGE = 300_000


def laid(arrived):
    """Make a batch of a portion as `wire.unpack` does: over the memory itself where it may, else a copy."""
    if arrived.portion.kind == "thing":
        header, body = arrived.thing
    else:
        header, body = arrived.header, arrived.body if arrived.owned else arrived.body.copy()
    assert body.flags.writeable
    return Batch(header, body, lent=arrived.lent), len(body)


class Batch:
    def __init__(self, header, body, *, lent):
        self.body, self.lent = body, lent
        self.step, self.share, self.size = np.frombuffer(header, np.uint64).astype(int).tolist()

    def is_right(self):
        return np.array_equal(self.body, pattern(self.step, self.share, self.size))


@pytest.fixture
def job(monkeypatch):
    monkeypatch.setattr(stream.exchange, "own_address", lambda: "127.0.0.1")
    held = Held()
    job = ExchangeJob(2, budget_bytes=2 * 16 * LARGE)
    yield job
    job.close()
    del job
    held.is_all()


def steps(exchange, count, **options):
    iteration = exchange.begin(
        {}, steps_offered(count, size=LARGE, kind="batch"), receiving(make=laid, borrow=True, **options)
    )
    while (delivered := iteration.take()) is not None:
        yield delivered.batch
    iteration.end()


@pytest.mark.parametrize("kept", [0, 1, 4, 30])
def test_a_training_loop_may_keep_batches_and_change_them(job, kept):
    """Also more than are lent: the others are copies."""

    def program(rank, exchange):
        last, lent = [], 0
        for _ in range(2):
            for batch in steps(exchange, 60):
                assert batch.is_right()
                lent += batch.lent
                last = [*last, batch][-kept:] if kept else []
                batch.body[:] = 255 - batch.body
                assert all(np.array_equal(255 - old.body, pattern(old.step, old.share, old.size)) for old in last)
        return lent

    lent = job.run(program)
    assert lent[0] == 0
    assert lent[1] == 120 if kept <= 4 else 16 <= lent[1] < 120


def test_memory_comes_back_in_whatever_order_and_late(job):
    def program(rank, exchange):
        rng, kept = random.Random(rank), []
        for epoch in range(4):
            for batch in steps(exchange, 50):
                kept.append(batch)
                rng.shuffle(kept)
                del kept[rng.randrange(8) :]
                assert all(old.is_right() for old in kept), epoch
        return True

    assert job.run(program) == [True, True]


def test_what_is_kept_over_a_break_is_not_touched_by_the_next_iteration(job):
    def program(rank, exchange):
        kept = []
        for _ in range(8):
            iteration = exchange.begin(
                {}, steps_offered(50, size=LARGE, kind="batch"), receiving(make=laid, borrow=True)
            )
            kept += [iteration.take().batch for _ in range(2)]
            iteration.end()
            assert all(old.is_right() for old in kept)
        return sum(old.lent for old in kept)

    lent = job.run(program)
    assert lent[0] == 0
    assert lent[1] >= 10


def test_a_batch_outlives_its_links(job):
    def program(rank, exchange):
        batches = list(steps(exchange, 3))
        exchange.close()
        batches += list(steps(exchange, 3))
        exchange.close()
        gc.collect()
        return all(batch.is_right() for batch in batches)

    assert job.run(program) == [True, True]
    assert until(lambda: shared_memory() == [])


def test_the_memory_of_a_loop_that_drops_each_batch_is_used_again(job, monkeypatch):
    opened = []
    made = MemoryFile.__init__

    def counted(self, number, size):
        opened.append(size)
        made(self, number, size)

    monkeypatch.setattr(MemoryFile, "__init__", counted)

    def program(rank, exchange):
        return sum(1 for _ in range(3) for _ in steps(exchange, 100))

    assert job.run(program) == [300, 300]
    assert len(opened) < 12


def test_what_is_lent_stays_within_as_much_as_the_budget(job):
    def program(rank, exchange):
        kept = list(steps(exchange, 60))
        if rank == 0:
            slab = exchange._peers[1].memory
            return slab.lent_bytes, slab.file_bytes
        return [batch.is_right() for batch in kept]

    (lent, rings), right = job.run(program)
    assert 0 < lent <= 16 * LARGE
    assert 0 < rings <= 16 * LARGE
    assert right == [True] * 60


def test_a_rank_that_copies_by_itself_is_lent_nothing(job):
    def program(rank, exchange):
        iteration = exchange.begin({}, steps_offered(5, size=LARGE, kind="batch"), receiving(make=laid))
        lent = []
        while (delivered := iteration.take()) is not None:
            assert delivered.batch.is_right()
            lent.append(delivered.batch.lent)
        iteration.end()
        return lent

    assert job.run(program) == [[False] * 5] * 2


def test_a_child_sees_the_batch_as_it_was_when_it_was_forked(job, tmp_path):
    """The reader does not write there again, though this process has let go of it."""

    def program(rank, exchange):
        if rank == 0:
            return sum(1 for _ in steps(exchange, 200))
        each = steps(exchange, 200)
        batch = next(each)
        assert batch.lent
        going, went = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(went)
            os.read(going, 1)  # until the other end is closed
            os._exit(0 if batch.is_right() else 1)
        os.close(going)
        del batch
        count = sum(batch.is_right() for batch in each)
        os.close(went)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        return count

    assert job.run(program) == [200, 199]


def test_an_error_while_a_batch_is_laid_over_lent_memory_gives_it_back(job):
    def fail_at_three(arrived):
        batch = laid(arrived)
        if arrived.portion.step == 3 and arrived.lent:
            raise MemoryError("no")
        return batch

    def program(rank, exchange):
        for _ in range(20):
            iteration = exchange.begin(
                {}, steps_offered(10, size=LARGE, kind="batch"), receiving(make=fail_at_three, borrow=True)
            )
            for _ in range(3):
                assert iteration.take().batch.is_right()
            with pytest.raises(MemoryError):
                iteration.take()
            iteration.end()
        gc.collect()
        batches = list(steps(exchange, 20))
        return all(batch.is_right() for batch in batches)

    assert job.run(program) == [True, True]


def test_what_is_worn_is_not_used_again_in_the_next_iteration_either(job):
    def program(rank, exchange):
        if rank == 0:
            return [sum(1 for _ in steps(exchange, 30)) for _ in range(3)]
        kept = []
        for batch in steps(exchange, 30):
            kept = [batch]
        del batch
        assert kept[0].lent
        going, went = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(went)
            os.read(going, 1)
            os._exit(0 if kept[0].is_right() else 1)
        os.close(going)
        kept.clear()
        counts = [sum(batch.is_right() for batch in steps(exchange, 30)) for _ in range(2)]
        os.close(went)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        return [30, *counts]

    assert job.run(program) == [[30] * 3] * 2


def test_where_no_file_can_be_had_batches_are_copied(job, monkeypatch):
    refuse = []
    made = MemoryFile.__init__

    def counted(self, number, size):
        if refuse and size < 8 * LARGE:
            raise SlabError("memory file", "no descriptor is left")
        made(self, number, size)

    monkeypatch.setattr(MemoryFile, "__init__", counted)

    def program(rank, exchange):
        refuse.append(rank)
        batches = list(steps(exchange, 20))
        assert all(batch.is_right() for batch in batches)
        return sum(batch.lent for batch in batches)

    assert job.run(program) == [0, 0]


def test_a_child_that_ends_as_a_script_does_leaves_the_iteration_alone(job):
    def program(rank, exchange):
        each = steps(exchange, 100)
        assert next(each).is_right()
        child = os.fork()
        if child == 0:
            exchange.end()
            exchange.close()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        return sum(batch.is_right() for batch in each)

    assert job.run(program) == [99, 99]
