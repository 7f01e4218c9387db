"""stream/exchange.py: links that live as long as a loader, iterations over them, and meeting again."""

import gc
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import stream.exchange
from exchanges_made import ExchangeJob, Held, all_of, exchange_of, receiving
from offers_made import checked, step_offer, steps_offered
from ranks import TESTS
from stream.errors import OptionError, RankError, SlabError, SourceError

PROGRAM = TESTS / "rank_programs" / "taker.py"


@pytest.fixture(autouse=True)
def _on_this_host(monkeypatch):
    monkeypatch.setattr(stream.exchange, "own_address", lambda: "127.0.0.1")


@pytest.fixture(autouse=True)
def _nothing_is_left():
    before = Held()
    yield
    before.is_all()


@pytest.fixture
def job():
    jobs = []

    def make(ranks, **changes):
        jobs.append(ExchangeJob(ranks, **changes))
        return jobs[-1]

    yield make
    for made in jobs:
        made.close()


def epoch(exchange, offers, *, facts=None, **changes):
    return all_of(exchange.begin(facts or {}, offers, receiving(**changes)))


def expected(rank, steps, size=1000):
    return [(step, rank, size) for step in range(steps)]


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("same_host", [True, False], ids=["memory", "tcp"])
def test_every_rank_gets_its_portion_of_every_step_in_order(job, ranks, same_host):
    job = job(ranks, same_host=same_host)
    got = job.run(lambda rank, exchange: epoch(exchange, steps_offered(7, ranks)))
    assert got == [expected(rank, 7) for rank in range(ranks)]
    way = "shared memory" if same_host else "TCP"
    assert job.exchanges[0].reached == {0: "this process", **dict.fromkeys(range(1, ranks), way)}
    if ranks > 1:
        assert job.exchanges[1].reached == {1: way}
        assert 7000 < job.exchanges[1].received_bytes < 7 * 1200


def test_nothing_startsbefore_the_first_take(job):
    job = job(2)
    held = Held()
    for exchange in job.exchanges:
        exchange.begin({}, steps_offered(1), receiving()).end()
        assert (exchange.reached, exchange.received_bytes) == ({}, 0)
    held.is_all()
    assert job.meetings == 0


def test_one_rank_needs_no_meeting(job):
    job = job(1)
    assert job.run(lambda rank, exchange: epoch(exchange, steps_offered(3, 1))) == [expected(0, 3)]
    assert job.meetings == 0


def test_ranks_of_one_group_get_the_same_portion(job):
    job = job(4, shares=(0, 0, 1, 1))
    got = job.run(lambda rank, exchange: epoch(exchange, steps_offered(3, 2)))
    assert got == [expected(0, 3), expected(0, 3), expected(1, 3), expected(1, 3)]


def test_links_outlive_many_short_epochs(job):
    job = job(3)

    def program(rank, exchange):
        return [epoch(exchange, steps_offered(2, 3)) for _ in range(60)]

    assert job.run(program) == [[expected(rank, 2)] * 60 for rank in range(3)]
    assert job.meetings == 1


def test_a_rank_that_is_quick_waits_for_a_source_that_takes_its_time_to_end(job):
    def offers():
        yield from steps_offered(2)()
        time.sleep(0.2)  # worker processes that end

    job = job(2)
    got = job.run(lambda rank, exchange: [epoch(exchange, offers) for _ in range(3)])
    assert got == [[expected(rank, 2)] * 3 for rank in range(2)]


def test_a_rank_may_be_done_early_epoch_after_epoch(job):
    def offers():
        yield step_offer(0, 3, last=[False, False, True])
        yield step_offer(1, 3, size=[1000, 1000, None], last=True)

    job = job(3)
    got = job.run(lambda rank, exchange: [epoch(exchange, offers) for _ in range(20)])
    assert got == [[expected(0, 2)] * 20, [expected(1, 2)] * 20, [expected(2, 1)] * 20]


def test_an_epoch_may_be_empty(job):
    job = job(2)
    got = job.run(lambda rank, exchange: [epoch(exchange, steps_offered(n)) for n in (0, 2, 0)])
    assert got == [[[], expected(rank, 2), []] for rank in range(2)]


def test_payloads_of_very_unequal_size_come_through_also_above_the_budget(job):
    sizes = [10, 5_000_000, 100, 3_000_000, 0, 700_000, 10]

    def offers():
        for step, size in enumerate(sizes):
            yield step_offer(step, size=[size, sizes[-1 - step]], slow=True, last=step == 6)

    job = job(2)
    got = job.run(lambda rank, exchange: [size for _, _, size in epoch(exchange, offers)])
    assert got == [sizes, sizes[::-1]]


def test_all_ranks_may_break_and_begin_again(job):
    def program(rank, exchange):
        for _ in range(30):
            iteration = exchange.begin({}, steps_offered(50), receiving())
            assert iteration.take().batch == (0, rank, 1000)
            iteration.end()
            iteration.end()
        return epoch(exchange, steps_offered(3))

    job = job(2)
    assert job.run(program) == [expected(rank, 3) for rank in range(2)]
    assert job.meetings == 1


def test_an_iteration_that_another_replaced_says_so(job):
    job = job(1)

    def program(rank, exchange):
        first = exchange.begin({}, steps_offered(5, 1), receiving())
        first.take()
        second = exchange.begin({}, steps_offered(5, 1), receiving())
        second.take()
        with pytest.raises(RankError, match="this iteration was ended"):
            first.take()
        first.end()
        return all_of(second)

    assert job.run(program) == [expected(0, 5)[1:]]


def test_a_rank_that_leaves_ends_the_iteration_for_all_and_the_next_is_sound(job):
    def program(rank, exchange):
        iteration = exchange.begin({}, steps_offered(100, 3), receiving())
        iteration.take()
        if rank == 2:
            iteration.end()
        else:
            with pytest.raises(RankError, match="rank 2, step 1: left the iteration"):
                all_of(iteration)
            iteration.end()
        return epoch(exchange, steps_offered(2, 3))

    assert job(3).run(program) == [expected(rank, 2) for rank in range(3)]


@pytest.mark.parametrize("where", ["source", "read", "make"])
def test_an_error_is_raised_on_every_rank_after_the_good_steps_and_the_next_iteration_is_sound(job, where):
    def fail():
        raise SourceError("row 12", "broken")

    def offers():
        for step in range(6):
            if step == 3 and where == "source":
                fail()
            yield step_offer(step, slow=True, before=fail if (step, where) == (3, "read") else None)

    def make(arrived):
        if arrived.portion.step == 3 and where == "make":
            fail()
        return checked(arrived)

    def program(rank, exchange):
        iteration = exchange.begin({}, offers, receiving(make=make if rank == 1 else checked))
        good = [iteration.take().batch[0] for _ in range(3)]
        with pytest.raises(SourceError, match="row 12: broken") as caught:
            iteration.take()
        iteration.end(caught.value)
        return good, epoch(exchange, steps_offered(2))

    assert job(2).run(program) == [([0, 1, 2], expected(rank, 2)) for rank in range(2)]


def test_an_error_of_one_training_loop_reaches_the_others(job):
    def program(rank, exchange):
        iteration = exchange.begin({}, steps_offered(100), receiving())
        if rank == 1:
            iteration.take()
            iteration.end(KeyboardInterrupt())
            return None
        with pytest.raises(KeyboardInterrupt):
            all_of(iteration)
        return iteration.end()

    assert job(2).run(program) == [None, None]


def test_ranks_that_do_not_mean_the_same_all_raise_and_may_try_again(job):
    def program(rank, exchange):
        with pytest.raises(OptionError, match=r"epoch='0': the ranks do not agree: 0 on rank 0; 1 on ranks 1, 2"):
            epoch(exchange, steps_offered(2, 3), facts={"epoch": str(min(rank, 1))})
        return epoch(exchange, steps_offered(2, 3), facts={"epoch": "1"})

    assert job(3).run(program) == [expected(rank, 2) for rank in range(3)]


@pytest.mark.parametrize("closer", [0, 1, 2])
@pytest.mark.parametrize("same_host", [True, False], ids=["memory", "tcp"])
def test_a_rank_may_close_between_iterations_and_all_meet_again(job, closer, same_host):
    def program(rank, exchange):
        before = epoch(exchange, steps_offered(2, 3))
        if rank == closer:
            exchange.close()
            exchange.close()
        return before == epoch(exchange, steps_offered(2, 3)) == epoch(exchange, steps_offered(2, 3))

    job = job(3, same_host=same_host)
    assert job.run(program) == [True, True, True]
    assert job.meetings == 2


@pytest.mark.parametrize("closer", [0, 1])
@pytest.mark.parametrize("same_host", [True, False], ids=["memory", "tcp"])
def test_a_rank_may_close_in_the_middle_and_all_meet_again(job, closer, same_host):
    def program(rank, exchange):
        iteration = exchange.begin({}, steps_offered(100, size=200_000), receiving())
        iteration.take()
        if rank == closer:
            exchange.close()
        else:
            with pytest.raises(RankError):
                all_of(iteration)
            iteration.end()
        return epoch(exchange, steps_offered(2))

    job = job(2, same_host=same_host)
    assert job.run(program) == [expected(rank, 2) for rank in range(2)]
    assert job.meetings == 2


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("same_host", [True, False], ids=["memory", "tcp"])
def test_a_rank_that_cannot_start_an_iteration_may_try_again(job, monkeypatch, failing, same_host):
    job = job(2, same_host=same_host)
    made, left = stream.exchange.Receiver, [0, 1]

    class Failing(made):
        def __init__(self, *arguments, rank, **options):
            if rank == failing and left and left.pop() == 0:
                raise OSError("no descriptor is left")
            super().__init__(*arguments, rank=rank, **options)

    monkeypatch.setattr(stream.exchange, "Receiver", Failing)

    def work(rank, exchange):
        got = [epoch(exchange, steps_offered(3, 2))]
        if rank == failing:
            with pytest.raises(OSError, match="no descriptor is left"):
                epoch(exchange, steps_offered(3, 2))
        return [*got, epoch(exchange, steps_offered(3, 2))]

    assert job.run(work) == [[expected(rank, 3)] * 2 for rank in range(2)]


def test_a_rank_that_cannot_map_its_memory_tells_everybody_and_may_try_again(job, monkeypatch):
    job, left = job(2), [0]
    add = stream.exchange.SlabView.add

    def refuse(self, file, fd, *, lent=False):
        if left:
            left.pop()
            os.close(fd)  # as the real one does
            raise SlabError("memory file 0", "no descriptor is left")
        add(self, file, fd, lent=lent)

    monkeypatch.setattr(stream.exchange.SlabView, "add", refuse)

    def work(rank, exchange):
        with pytest.raises(SlabError, match="no descriptor is left"):
            epoch(exchange, steps_offered(3, 2))
        return epoch(exchange, steps_offered(3, 2))

    assert job.run(work) == [expected(rank, 3) for rank in range(2)]


def test_iterations_that_were_abandoned_leave_no_thread_no_descriptor_and_no_memory(job):
    job = job(2)

    def program(rank, exchange):
        for steps in range(5):
            iteration = exchange.begin({}, steps_offered(50, size=300_000, slow=True), receiving(aside=2))
            for _ in range(steps):
                iteration.take()
            if steps:
                iteration.end()
        exchange.close()

    held = Held()
    assert job.run(program) == [None, None]
    held.is_all()


def test_train_and_evaluation_live_at_once(job):
    train, test = job(2), job(2, name="test")

    def program(rank, exchange):
        iteration = exchange.begin({}, steps_offered(6), receiving())
        got = [iteration.take().batch]
        evaluation = test.exchanges[rank].begin({}, steps_offered(9), receiving())
        assert evaluation.take().batch == (0, rank, 1000)
        evaluation.end()
        got += all_of(iteration)
        return got

    assert train.run(program) == [expected(rank, 6) for rank in range(2)]


def test_a_source_that_does_not_return_is_left_and_its_memory_not_used_again(job, monkeypatch):
    monkeypatch.setattr(stream.exchange, "_PATIENCE_S", 0.1)
    blocked, go = threading.Event(), threading.Event()

    def offers():
        yield step_offer(0)
        blocked.set()
        go.wait(30)

    def program(rank, exchange):
        iteration = exchange.begin({}, offers, receiving())
        iteration.take()
        assert blocked.wait(30)
        iteration.end()
        return epoch(exchange, steps_offered(2))

    job = job(2)
    assert job.run(program) == [expected(rank, 2) for rank in range(2)]
    assert job.meetings == 2
    go.set()


def test_a_fill_that_does_not_return_is_left_and_its_memory_not_used_again(job, monkeypatch):
    monkeypatch.setattr(stream.exchange, "_PATIENCE_S", 0.1)
    blocked, go = threading.Event(), threading.Event()

    def hold():
        blocked.set()
        go.wait(30)

    def offers():
        yield step_offer(0)
        yield step_offer(1, slow=True, before=hold)

    def program(rank, exchange):
        iteration = exchange.begin({}, offers, receiving())
        iteration.take()
        assert blocked.wait(30)
        iteration.end()
        return epoch(exchange, steps_offered(2))

    assert job(2).run(program) == [expected(rank, 2) for rank in range(2)]
    go.set()


def test_an_iteration_that_is_collected_in_a_thread_of_its_own_ends_all_the_same(job):
    job = job(1)
    taken, collected = threading.Event(), threading.Event()
    holder = []

    class Loop:
        """A loop that was left by an error: it hangs in a cycle until a collection, which any thread may run."""

        def __init__(self, iteration):
            self.iteration, self.itself = iteration, self

        def __del__(self):
            self.iteration.end()
            collected.set()

    def offers():
        yield step_offer(0, 1)
        assert taken.wait(30)
        holder.clear()
        gc.collect()

    def program(rank, exchange):
        holder.append(Loop(exchange.begin({}, offers, receiving())))
        holder[0].iteration.take()
        taken.set()
        assert collected.wait(30)
        return epoch(exchange, steps_offered(2, 1))

    assert job.run(program) == [expected(0, 2)]


@pytest.mark.parametrize("same_host", [True, False], ids=["memory", "tcp"])
def test_a_rank_that_is_killed_is_named_to_who_is_left(same_host):
    with _taker(1) as taker:

        def share(data):
            taker.stdin.write(data.hex() + "\n")
            taker.stdin.flush()
            return data

        exchange = exchange_of(0, 2, share, same_host=same_host)
        iteration = exchange.begin({}, steps_offered(10_000), receiving(timeout_s=60))
        for step in range(3):
            assert iteration.take().batch[0] == step
        taker.kill()
        with pytest.raises(RankError, match="is gone") as caught:
            all_of(iteration)
        assert caught.value.rank == 1
        exchange.close()


def test_a_reader_that_is_killed_is_named_to_its_ranks():
    with _taker(0) as taker:

        def share(_):
            return bytes.fromhex(taker.stdout.readline())

        exchange = exchange_of(1, 2, share)
        iteration = exchange.begin({}, steps_offered(1), receiving(timeout_s=60))
        for step in range(3):
            assert iteration.take().batch[0] == step
        taker.kill()
        with pytest.raises(RankError, match="the reader, rank 0, is gone") as caught:
            all_of(iteration)
        assert caught.value.rank == 0
        exchange.close()


class Chaos:
    """An iteration drawn from a seed, and what may become of it; the same on every rank."""

    RANKS = 3

    def __init__(self, seed):
        rng = random.Random(seed)
        self.steps = rng.choice([0, 1, 2, 5, 12])
        self.sizes = [[rng.choice(_SIZES) for _ in range(self.RANKS)] for _ in range(self.steps)]
        self.slow = [rng.random() < 0.5 for _ in range(self.steps)]
        self.kind = rng.choice(["rows", "batch"])
        self.full = rng.randint(1, self.RANKS)  # so many portions have a row in the last step
        self.event = rng.choice(["nothing", "leave", "source", "read", "make", "all leave", "nothing"])
        self.who, self.at = rng.randrange(self.RANKS), rng.randrange(max(1, self.steps - 1))
        if self.event == "leave":
            self.at = max(1, self.at)  # who takes no step has not begun
        self.closer = rng.choice([0, 1, 2, None, None, None])
        if self.steps < 2:
            self.event, self.full = "nothing", self.RANKS
        self.delay = rng.choice([0, 0, 0.001, 0.004])
        self._seed = seed

    def steps_of(self, rank):
        return self.steps - (rank >= self.full)

    def _pause(self, rng):
        if rng.random() < 0.3:
            time.sleep(rng.random() * self.delay)

    def offers(self):
        rng = random.Random(self._seed + 0.1)
        for step, sizes in enumerate(self.sizes):
            self._pause(rng)
            if (self.event, self.at) == ("source", step):
                raise SourceError("chaos", "source")
            is_last = step == self.steps - 1
            cut = [size if not is_last or share < self.full else None for share, size in enumerate(sizes)]
            last = [step == self.steps_of(share) - 1 for share in range(self.RANKS)]
            offer = step_offer(step, size=cut, last=last, slow=self.slow[step], kind=self.kind)
            if (self.event, self.at) == ("read", step):
                offer.portions[self.who].before = self._fail
            yield offer

    def _fail(self):
        raise SourceError("chaos", "read")

    def make(self, rank):
        def make(arrived):
            if (self.event, self.at, self.who) == ("make", arrived.portion.step, rank):
                raise SourceError("chaos", "make")
            return checked(arrived)

        return make

    def run(self, rank, exchange):
        """Take steps as the plan says; return how many, and how it ended."""
        rng = random.Random(self._seed + rank)
        leaves = {"leave": self.at if rank == self.who else None, "all leave": rng.randint(1, self.steps or 1)}
        leave_after, taken = leaves.get(self.event), 0
        iteration = exchange.begin({}, self.offers, receiving(make=self.make(rank), aside=rng.randrange(3)))
        try:
            while taken != leave_after and (delivered := iteration.take()) is not None:
                assert delivered.batch == (taken, rank, self.sizes[taken][rank]), self.event
                taken += 1
                self._pause(rng)
            return taken, "left" if taken == leave_after and taken < self.steps_of(rank) else "end"
        except (RankError, SourceError) as exc:
            return taken, str(exc)
        finally:
            iteration.end()
            if rank == self.closer:
                exchange.close()

    def judge(self, ended):
        """Make sure that this is what the plan allows."""
        if self.event in ("source", "read", "make"):
            assert ended == [(self.at, f"chaos: {self.event}")] * self.RANKS
        elif self.event == "nothing" or all(how == "end" for _, how in ended):
            assert ended == [(self.steps_of(rank), "end") for rank in range(self.RANKS)]
        elif self.event == "leave":
            others = [end for rank, end in enumerate(ended) if rank != self.who]
            assert ended[self.who] == (self.at, "left")
            assert all(taken >= self.at for taken, _ in others)
            raising = {(taken, how) for taken, how in others if how != "end"}
            assert len(raising) <= 1
            assert all(f"rank {self.who}, step {self.at}: left" in how for _, how in raising)
        else:
            assert all(how in ("left", "end") or "left the iteration" in how for _, how in ended)


_SIZES = [0, 8, 1000, 1000, 1000, 20_000, 20_000, 300_000, 3_000_000]


@pytest.mark.parametrize("same_host", [True, False], ids=["memory", "tcp"])
@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_no_rank_hangs_or_sees_bytes_of_another_row(job, seed, same_host):
    job = job(Chaos.RANKS, same_host=same_host)
    plans = [Chaos(1000 * seed + number) for number in range(15)]
    ended = job.run(lambda rank, exchange: [plan.run(rank, exchange) for plan in plans])
    for plan, of_ranks in zip(plans, zip(*ended, strict=True), strict=True):
        plan.judge(list(of_ranks))


def _taker(rank):
    return subprocess.Popen(
        [sys.executable, PROGRAM, str(rank)],
        env={"PYTHONPATH": f"{TESTS}:{Path(TESTS).parent}", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
