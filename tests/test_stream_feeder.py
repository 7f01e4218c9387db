"""stream/feeder.py: whole steps, commits in order, one fault for all, and ranks that leave, die or come early."""

import logging
import threading

import pytest

from offers_made import step_offer, steps_offered
from ranks_in_threads import Ranks, until
from stream.carry import carried, raised
from stream.errors import OptionError, RankError, SourceError
from stream.holdup import Warnings
from stream.protocol import Again, Begin, Bye, Commit, End, Failed, Fault, Leave, Portion, Ready, Waiting, Warn, encode


@pytest.fixture
def ranks():
    made = Ranks(2)
    yield made
    made.close()


def ready(ranks, rank, portion):
    ranks.say(rank, Ready(portion.iteration, portion.step, portion.number))


def is_quiet(ranks, rank, limit_s=0.1):
    return not until(lambda: ranks.heard(rank), limit_s)


def test_nothing_is_readbefore_all_ranks_have_begun(ranks):
    asked = []

    def offers():
        asked.append(True)
        yield step_offer(0)

    ranks.feed(offers)
    ranks.say(0, Begin(0, {}))
    assert is_quiet(ranks, 0)
    assert not asked
    ranks.say(1, Begin(0, {}))
    assert isinstance(ranks.hear(0)[0], Portion)


def test_each_rank_gets_its_portion_and_what_is_to_know_of_the_step(ranks):
    ranks.feed(steps_offered(1))
    ranks.begin_all()
    for rank in (0, 1):
        (portion,) = ranks.hear(rank)
        assert (portion.step, portion.real_rows, portion.last, portion.position) == (0, 8, True, 8)
        assert portion.size >= 1000


def test_rank_0_gets_a_finished_batch_as_it_is_and_the_others_get_its_bytes(ranks):
    ranks.feed(steps_offered(1, kind="batch"))
    ranks.begin_all()
    assert [(ranks.hear(rank)[0].kind) for rank in (0, 1)] == ["thing", "batch"]


def test_no_portion_of_a_step_leavesbefore_all_are_filled(ranks):
    go, filling = threading.Event(), threading.Event()

    def hold():
        filling.set()
        go.wait(20)

    def offers():
        step = step_offer(0, slow=True)
        step.portions[1].before = hold
        yield step

    ranks.feed(offers)
    ranks.begin_all()
    assert filling.wait(20)
    assert is_quiet(ranks, 0)
    go.set()
    for rank in (0, 1):
        assert isinstance(ranks.hear(rank)[0], Portion)


def test_a_later_step_that_is_filled_first_waits_for_the_onebefore(ranks):
    go, filled = threading.Event(), threading.Event()

    def offers():
        yield step_offer(0, slow=True, before=lambda: go.wait(20))
        yield step_offer(1, slow=True, before=filled.set)

    ranks.feed(offers)
    ranks.begin_all()
    assert filled.wait(20)
    assert is_quiet(ranks, 0)
    go.set()
    assert [message.step for message in ranks.hear(0, 2)] == [0, 1]


def test_a_step_is_committed_when_the_last_rank_is_ready_and_neverbefore_the_stepbefore(ranks):
    ranks.feed(steps_offered(2))
    ranks.begin_all()
    first, second = ranks.hear(0, 2)
    theirs, next_of_theirs = ranks.hear(1, 2)
    for rank, portion in ((0, second), (1, next_of_theirs), (0, first)):
        ready(ranks, rank, portion)
    assert is_quiet(ranks, 0)
    ready(ranks, 1, theirs)
    for rank in (0, 1):
        assert ranks.hear(rank, 2) == [Commit(0, 0), Commit(0, 1)]


def test_a_source_that_fails_is_told_to_all_at_its_step_after_the_good_steps(ranks):
    def offers():
        yield step_offer(0)
        raise SourceError("shard 3", "broken")

    ranks.feed(offers)
    ranks.begin_all()
    portions = [ranks.hear(rank)[0] for rank in (0, 1)]
    assert is_quiet(ranks, 0)
    for rank, portion in enumerate(portions):
        ready(ranks, rank, portion)
    for rank in (0, 1):
        commit, told = ranks.hear(rank, 2)
        assert commit == Commit(0, 0)
        assert (told.step, type(raised(told.told)), str(raised(told.told))) == (1, SourceError, "shard 3: broken")


def test_good_steps_that_wait_behind_others_are_still_sent_once_the_source_has_failed(ranks):
    failed = threading.Event()

    def offers():
        for step in range(3):
            yield step_offer(step)
        failed.set()
        raise SourceError("shard 3", "broken")

    ranks.feed(offers)
    ranks.begin_all()
    mine, theirs = ranks.hear(0, 2), ranks.hear(1, 2)
    assert failed.wait(20)
    for portion in mine:
        ready(ranks, 0, portion)
    is_quiet(ranks, 0)
    both = [encode(Ready(0, portion.step, portion.number)) for portion in theirs]
    ranks.inboxes[1].link.post_all(both)  # in one breath, so that no step is sent between the two commits
    for rank in (0, 1):
        ready(ranks, rank, ranks.next_of(rank, Portion))
    for rank in (0, 1):
        assert ranks.next_of(rank, Fault).step == 3


@pytest.mark.parametrize("slow", [True, False], ids=["aside", "at once"])
def test_a_portion_that_cannot_be_read_is_a_fault_at_its_step(ranks, slow):
    def fail():
        raise FileNotFoundError(2, "gone", "coco-000003.tar")

    def offers():
        yield step_offer(0)
        yield step_offer(1, slow=slow, before=fail)
        yield step_offer(2)

    ranks.feed(offers)
    ranks.begin_all()
    for rank in (0, 1):
        ready(ranks, rank, ranks.hear(rank)[0])
    for rank in (0, 1):
        commit, told = ranks.hear(rank, 2)
        assert (commit, told.step) == (Commit(0, 0), 1)
        assert isinstance(raised(told.told), FileNotFoundError)


def test_offers_that_cannot_even_be_made_are_a_fault_at_step_0(ranks):
    def offers():
        raise ZeroDivisionError("plan")

    ranks.feed(offers)
    ranks.begin_all()
    for rank in (0, 1):
        told = ranks.hear(rank)[0]
        assert (told.step, type(raised(told.told))) == (0, ZeroDivisionError)


def test_a_failure_on_one_rank_is_told_to_all_once(ranks):
    feeding = ranks.feed(steps_offered(5))
    ranks.begin_all()
    first, second = ranks.hear(0, 2)
    theirs = ranks.hear(1, 2)
    ready(ranks, 0, first)
    ready(ranks, 0, second)
    told = carried(ValueError("no image"), rank=1, step=1)
    ranks.say(1, Failed(0, 1, theirs[1].number, told))
    assert is_quiet(ranks, 0)
    ready(ranks, 1, theirs[0])
    for rank in (0, 1):
        assert ranks.hear(rank, 2) == [Commit(0, 0), Fault(0, 1, told)]
    assert feeding.ended()
    assert ranks.heard(0) == []


def test_of_two_failures_the_one_of_the_earlier_step_is_told(ranks):
    ranks.feed(steps_offered(5))
    ranks.begin_all()
    mine, theirs = ranks.hear(0, 2), ranks.hear(1, 2)
    later = carried(ValueError("later"), rank=0, step=1)
    earlier = carried(ValueError("earlier"), rank=1, step=0)
    ranks.say(0, Failed(0, 1, mine[1].number, later))
    assert is_quiet(ranks, 1)
    ranks.say(1, Failed(0, 0, theirs[0].number, earlier))
    assert ranks.hear(0) == ranks.hear(1) == [Fault(0, 0, earlier)]


def test_a_rank_that_leaves_is_named_to_all(ranks):
    feeding = ranks.feed(steps_offered(5))
    ranks.begin_all()
    ranks.say(1, Leave(0, 0))
    for rank in (0, 1):
        error = raised(ranks.next_of(rank, Fault).told)
        assert isinstance(error, RankError)
        assert "rank 1, step 0: left the iteration" in str(error)
    assert feeding.ended()


def test_a_rank_that_leaves_because_of_an_error_tells_it_to_all(ranks):
    ranks.feed(steps_offered(5))
    ranks.begin_all()
    ranks.say(1, Leave(0, 0, carried(KeyboardInterrupt(), rank=1, step=0)))
    for rank in (0, 1):
        assert isinstance(raised(ranks.next_of(rank, Fault).told), KeyboardInterrupt)


def test_a_link_that_ends_is_a_fault_that_names_the_rank(ranks):
    ranks.feed(steps_offered(5))
    ranks.begin_all()
    ranks.hear(0, 2)
    ranks.inboxes[1].close()
    error = raised(ranks.hear(0)[0].told)
    assert (error.rank, error.step) == (1, 0)
    assert "is gone" in str(error)


def test_a_rank_that_got_its_last_portion_early_may_leave_die_or_stay_as_it_likes(ranks):
    def offers():
        yield step_offer(0, last=[False, True])
        yield step_offer(1, size=[1000, None], last=[True, True])

    ranks.feed(offers)
    ranks.begin_all()
    first, second = ranks.hear(0, 2)
    (theirs,) = ranks.hear(1)
    ready(ranks, 0, first)
    ready(ranks, 1, theirs)
    assert ranks.hear(1) == [Commit(0, 0)]
    ranks.say(1, Leave(0, 1))
    ranks.inboxes[1].close()
    ready(ranks, 0, second)
    assert ranks.hear(0, 2) == [Commit(0, 0), Commit(0, 1)]


def test_a_rank_without_any_portion_hears_of_the_end(ranks):
    def offers():
        yield step_offer(0, size=[1000, None], last=True)

    ranks.feed(offers)
    ranks.begin_all()
    ready(ranks, 0, ranks.hear(0)[0])
    assert ranks.hear(0) == [Commit(0, 0)]
    assert ranks.hear(1) == [End(0)]


def test_an_epoch_without_steps_ends_for_all(ranks):
    feeding = ranks.feed(steps_offered(0))
    ranks.begin_all()
    assert ranks.hear(0) == ranks.hear(1) == [End(0)]
    assert feeding.ended()


@pytest.mark.parametrize("prefetch_steps", [1, 2, 4])
def test_so_many_steps_are_sent_ahead_and_no_more_than_three_times_as_many_are_taken_from_the_source(
    ranks, prefetch_steps
):
    taken = []

    def offers():
        for step in range(100):
            taken.append(step)
            yield step_offer(step)

    ranks.feed(offers, prefetch_steps=prefetch_steps)
    ranks.begin_all()
    portions = ranks.hear(0, prefetch_steps)
    assert is_quiet(ranks, 0)
    assert len(taken) <= 3 * prefetch_steps + 1
    ready(ranks, 1, ranks.hear(1, prefetch_steps)[0])
    ready(ranks, 0, portions[0])
    assert [type(message) for message in ranks.hear(0, 2)] == [Commit, Portion]


def test_memory_stays_within_the_budget_and_a_span_is_only_used_again_after_its_ready():
    ranks = Ranks(2, budget=1 << 20)
    try:
        ranks.feed(steps_offered(6, size=400_000), prefetch_steps=6)
        ranks.begin_all()
        mine, theirs = ranks.hear(0, 2), ranks.hear(1, 2)
        assert is_quiet(ranks, 0)
        assert all(peer.memory.file_bytes <= 1 << 20 for peer in ranks.peers)
        ready(ranks, 0, mine[0])
        assert is_quiet(ranks, 0)  # rank 1 has no room for the next step yet
        ready(ranks, 1, theirs[0])
        third, commit = sorted(ranks.hear(0, 2), key=lambda message: isinstance(message, Commit))
        assert (third.step, commit) == (2, Commit(0, 0))
        assert (third.file, third.offset) != (mine[1].file, mine[1].offset)
    finally:
        ranks.close()


def test_a_portion_larger_than_the_budget_is_let_through_alone():
    ranks = Ranks(2, budget=1 << 20)
    try:
        sizes = [1000, 3_000_000, 1000]
        ranks.feed(lambda: (step_offer(step, size=[100, size]) for step, size in enumerate(sizes)), prefetch_steps=3)
        ranks.begin_all()
        for step, size in enumerate(sizes):
            theirs = ranks.next_of(1, Portion)
            assert (theirs.step, theirs.size >= size) == (step, True)
            assert not until(lambda: Portion in map(type, ranks.heard(1)), 0.1)  # nothing has room beside it
            ready(ranks, 1, theirs)
            ready(ranks, 0, ranks.next_of(0, Portion))
    finally:
        ranks.close()


def test_who_waits_is_logged_once_with_whom_for_how_long_and_what_the_reader_does(ranks, caplog, monkeypatch):
    monkeypatch.setattr(Warnings, "_said", set())
    filling = threading.Event()

    def hold():
        filling.set()
        until(lambda: caplog.records)

    ranks.feed(steps_offered(1, slow=True, before=hold))
    with caplog.at_level(logging.WARNING, "stream"):
        ranks.begin_all()
        assert filling.wait(20)
        for _ in range(2):
            ranks.say(1, Waiting(0, 0, 31.4))
        assert isinstance(ranks.hear(0)[0], Portion)
        ranks.say(0, Waiting(0, 1, 35.0))
        ranks.say(1, Warn("low on memory"))
        assert until(lambda: len(caplog.records) == 2)
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "rank 1 has been waiting 31 s for step 0: the reader, on rank 0, reads row 0",
        "rank 1: low on memory",
    ]


def test_ranks_that_mean_different_epochs_all_hear_which_values_and_which_ranks(ranks):
    ranks.feed(steps_offered(1))
    ranks.say(0, Begin(0, {"epoch": "3", "seed": "1"}))
    ranks.say(1, Begin(0, {"epoch": "4", "seed": "1"}))
    for rank in (0, 1):
        error = raised(ranks.hear(rank)[0].told)
        assert isinstance(error, OptionError)
        assert "epoch='3': the ranks do not agree: 3 on rank 0; 4 on rank 1" in str(error)


def test_a_rank_that_closed_on_purposebefore_the_iteration_lets_rank_0_meet_again(ranks):
    ranks.say(1, Bye())
    ranks.inboxes[1].close()
    feeding = ranks.feed(steps_offered(1))
    ranks.say(0, Begin(0, {}))
    assert ranks.hear(0) == [Again(0)]
    assert feeding.ended()


def test_a_rank_that_diedbefore_the_iteration_is_a_fault(ranks):
    ranks.inboxes[1].close()
    ranks.feed(steps_offered(1))
    ranks.say(0, Begin(0, {}))
    assert "is gone" in str(raised(ranks.hear(0)[0].told))


def test_messages_of_an_earlier_iteration_mean_nothing(ranks):
    first = ranks.feed(steps_offered(3))
    ranks.begin_all()
    old = ranks.hear(1, 2)
    ranks.hear(0, 2)
    ranks.say(1, Leave(0, 0))
    ranks.next_of(0, Fault)
    ranks.next_of(1, Fault)
    assert first.ended()
    ranks.feed(steps_offered(1))
    ready(ranks, 1, old[0])
    ranks.say(1, Failed(0, 1, old[1].number, carried(ValueError(), rank=1, step=1)))
    ranks.say(1, Leave(0, 0))
    ranks.begin_all(iteration=1)
    for rank in (0, 1):
        ready(ranks, rank, ranks.hear(rank)[0])
    assert ranks.hear(0) == ranks.hear(1) == [Commit(1, 0)]


def test_spans_of_an_iteration_that_was_left_are_given_back_when_the_next_begins(ranks):
    first = ranks.feed(steps_offered(3))
    ranks.begin_all()
    ranks.hear(1, 2)
    ranks.say(1, Leave(0, 0))
    assert first.ended()
    assert ranks.peers[1].memory.held_bytes > 0
    ranks.feed(steps_offered(0))
    ranks.begin_all(iteration=1)
    ranks.next_of(1, Fault)
    assert ranks.hear(1) == [End(1)]
    assert ranks.peers[1].memory.held_bytes == 0


def test_a_rank_that_begins_the_next_iterationbefore_the_reader_has_ended_this_one_is_not_forgotten(ranks):
    ending = threading.Event()

    def offers():
        yield step_offer(0, last=True)
        ending.wait(20)  # worker processes that take their time to end

    first = ranks.feed(offers)
    ranks.begin_all()
    for rank in (0, 1):
        ready(ranks, rank, ranks.hear(rank)[0])
    assert ranks.hear(0) == ranks.hear(1) == [Commit(0, 0)]
    ranks.say(1, Begin(1, {}))
    assert until(lambda: ranks.peers[1].link.received_bytes == ranks.inboxes[1].link.sent_bytes)
    ending.set()
    assert first.ended()
    ranks.feed(steps_offered(1))
    ranks.say(0, Begin(1, {}))
    assert isinstance(ranks.hear(1)[0], Portion)


def test_a_rank_that_leaves_and_begins_again_in_one_breath_is_not_forgotten(ranks):
    filling, go = threading.Event(), threading.Event()

    def hold():
        filling.set()
        go.wait(20)

    first = ranks.feed(steps_offered(1, before=hold))
    ranks.begin_all()
    assert filling.wait(20)
    ranks.say(1, Leave(0, 0))
    ranks.say(1, Begin(1, {}))
    go.set()
    assert first.ended()
    ranks.heard(0)
    ranks.heard(1)
    ranks.feed(steps_offered(1))
    ranks.say(0, Begin(1, {}))
    assert ranks.next_of(1, Portion).iteration == 1


def test_a_rank_that_begins_the_next_iteration_and_leaves_it_early_is_heard_in_it(ranks):
    first = ranks.feed(steps_offered(5))
    ranks.begin_all()
    ranks.hear(0, 2)
    for message in (Leave(0, 0), Begin(1, {}), Leave(1, 0, carried(MemoryError("full"), rank=1, step=0))):
        ranks.say(1, message)
    assert first.ended()
    ranks.feed(steps_offered(1))
    ranks.say(0, Begin(1, {}))
    assert isinstance(raised(ranks.hear(0, 2)[1].told), MemoryError)


def test_a_source_that_does_not_return_holds_up_nobody_else(ranks):
    go = threading.Event()

    def offers():
        yield step_offer(0)
        go.wait(20)

    feeding = ranks.feed(offers)
    ranks.begin_all()
    ranks.hear(0)
    ranks.say(1, Leave(0, 0))
    assert isinstance(ranks.hear(0)[0], Fault)
    feeding.thread.join(20)
    assert not feeding.thread.is_alive()
    assert not feeding.feeder.join(0.05)
    go.set()
    assert feeding.feeder.join(20)


def test_the_source_is_closed_when_the_iteration_is_left(ranks):
    closed = threading.Event()

    def offers():
        try:
            for step in range(100):
                yield step_offer(step)
        finally:
            closed.set()

    feeding = ranks.feed(offers)
    ranks.begin_all()
    ranks.hear(0, 2)
    ranks.say(0, Leave(0, 0))
    assert closed.wait(20)
    assert feeding.ended()
