"""stream/receiver.py: a rank hands out committed steps in order, a bounded way ahead, and ends in one way with all."""

import threading
import time

import pytest

from descriptors import new_descriptors, open_descriptors
from offers_made import checked, step_offer
from ranks import left_behind
from ranks_in_threads import Ranks, until
from stream.carry import carried, raised
from stream.errors import LinkError, RankError, SlabError, SourceError, WaitError
from stream.owning import new_memory
from stream.protocol import Again, Begin, Bye, Commit, End, Failed, Fault, Leave, Ready, Waiting, Warn, decode
from stream.underway import Underway


class Reader:
    """The reader as played by a test, with one rank to feed: number 1, or 0 in its own process."""

    def __init__(self, rank=1, kind="memory"):
        self.rank, self.ranks = rank, Ranks(rank + 1, kind=kind)
        self.peer = self.ranks.peers[rank]
        self.receivers = []
        self._heard = []

    def receive(self, iteration=0, **options):
        receiver = self.ranks.receive(self.rank, iteration=iteration, **options)
        self.receivers.append(receiver)
        return receiver

    def send(self, step, *, iteration=0, **options):
        offer = step_offer(step, self.rank + 1, **options)
        peers = [None, self.peer] if self.rank else [self.peer]
        underway = Underway.begin(step, offer, [self.peer])
        for load in underway.loads(new_memory):
            load.fill()
        underway.send(iteration, peers)
        self.peer.flush()

    def say(self, message):
        self.peer.say(message)
        self.peer.flush()

    def send_committed(self, step, **options):
        self.send(step, **options)
        self.hears(Ready, step + 1)
        self.say(Commit(0, step))

    def heard(self):
        self._heard += [decode(frame.message) for frame in self.peer.link.drain()]
        return self._heard

    def hears(self, kind, count=1):
        assert until(lambda: sum(isinstance(message, kind) for message in self.heard()) >= count), self._heard
        return [message for message in self._heard if isinstance(message, kind)][-1]

    def close(self):
        for receiver in self.receivers:
            receiver.leave()
        self.ranks.close()


@pytest.fixture
def reader():
    reader = Reader()
    yield reader
    reader.close()
    assert left_behind() == []


def test_a_rank_begins_with_what_it_means(reader):
    reader.receive(iteration=3, facts={"epoch": "2"})
    assert reader.hears(Begin) == Begin(3, {"epoch": "2"})


def test_a_step_is_handed_out_only_after_its_commit(reader):
    receiver = reader.receive(timeout_s=0.2)
    reader.send(0)
    assert reader.hears(Ready).step == 0
    with pytest.raises(WaitError):
        receiver.take()
    reader.say(Commit(0, 0))
    assert receiver.take() == ((0, 1, 1000), 8, False, 8, None)


def test_after_the_last_step_comes_the_end_again_and_again(reader):
    receiver = reader.receive()
    reader.send_committed(0, last=True)
    assert receiver.take().last
    assert receiver.take() is None
    assert receiver.take() is None
    receiver.leave()
    assert not any(isinstance(message, Leave) for message in reader.heard())


def test_an_iteration_without_steps_ends_at_once(reader):
    receiver = reader.receive()
    reader.say(End(0))
    assert receiver.take() is None


@pytest.mark.parametrize("aside", [0, 2])
def test_at_most_prefetch_steps_are_made_ahead_of_the_training_loop(reader, aside):
    receiver = reader.receive(prefetch_steps=2, aside=aside)
    for step in range(4):
        reader.send(step)
    reader.hears(Ready, 2)
    reader.say(Commit(0, 0))
    assert not until(lambda: sum(isinstance(message, Ready) for message in reader.heard()) > 2, 0.1)
    assert receiver.take().batch == (0, 1, 1000)
    reader.hears(Ready, 3)


def test_no_further_batch_is_begun_while_those_that_are_there_hold_the_budget(reader):
    receiver = reader.receive(prefetch_steps=10, budget_bytes=2500)
    for step in range(5):
        reader.send(step)
    reader.hears(Ready, 3)
    reader.say(Commit(0, 0))
    assert not until(lambda: sum(isinstance(message, Ready) for message in reader.heard()) > 3, 0.1)
    receiver.take()
    reader.hears(Ready, 4)


def test_a_batch_above_the_budget_is_made_when_no_other_is_there(reader):
    receiver = reader.receive(budget_bytes=10)
    for step in range(3):
        reader.send_committed(step)
        assert receiver.take().batch[0] == step


def test_a_span_is_given_back_only_after_its_batch_is_made(reader):
    go = threading.Event()

    def make(arrived):
        go.wait(20)
        return checked(arrived)

    reader.receive(make=make)
    reader.send(0)
    assert not until(lambda: any(isinstance(message, Ready) for message in reader.heard()), 0.1)
    assert reader.peer.memory.held_bytes
    go.set()
    assert reader.hears(Ready).number == 1


def test_rows_are_made_aside_so_that_messages_are_still_heard(reader):
    go = threading.Event()

    def make(arrived):
        go.wait(20)
        return checked(arrived)

    receiver = reader.receive(make=make, aside=1)
    reader.send(0)
    reader.say(Fault(0, 0, carried(ValueError("elsewhere"), rank=0, step=0)))
    with pytest.raises(ValueError, match="elsewhere"):
        receiver.take()
    go.set()


def test_what_fails_is_told_and_raised_only_when_the_reader_says_so_with_its_cause(reader):
    def make(arrived):
        raise SourceError("row 3", "broken")

    receiver = reader.receive(make=make, timeout_s=0.2)
    reader.send(0)
    told = reader.hears(Failed)
    assert (told.step, told.told.rank, str(raised(told.told))) == (0, 1, "row 3: broken")
    with pytest.raises(WaitError):
        receiver.take()
    reader.say(Fault(0, 0, told.told))
    for _ in range(2):
        with pytest.raises(SourceError, match="row 3: broken") as caught:
            receiver.take()
        assert type(caught.value.__cause__) is SourceError


def test_memory_that_changed_while_its_batch_was_made_is_a_failure(reader):
    sent = threading.Event()

    def make(arrived):
        made = checked(arrived)
        assert sent.wait(20)
        reader.peer.release(arrived.portion.number)
        return made

    reader.receive(make=make)
    reader.send(0)
    sent.set()
    assert isinstance(raised(reader.hears(Failed).told), SlabError)


def test_steps_that_were_committed_come_before_the_fault(reader):
    receiver = reader.receive()
    reader.send_committed(0)
    reader.say(Fault(0, 1, carried(RankError(3, 1, "died"), rank=0, step=1)))
    assert receiver.take().batch[0] == 0
    with pytest.raises(RankError, match="rank 3, step 1: died"):
        receiver.take()


def test_steps_that_were_committed_come_before_the_end_of_the_reader(reader):
    receiver = reader.receive()
    reader.send_committed(0)
    reader.peer.link.close()
    assert receiver.take().batch[0] == 0
    with pytest.raises(RankError, match="the reader, rank 0, is gone: the other side has closed it") as caught:
        receiver.take()
    assert isinstance(caught.value.__cause__, LinkError)


def test_who_waits_too_long_gets_the_stacks_of_all_threads(reader):
    receiver = reader.receive(timeout_s=0.1)
    with pytest.raises(WaitError) as caught:
        receiver.take()
    assert (caught.value.rank, caught.value.step) == (1, 0)
    assert caught.value.seconds >= 0.1
    assert "stream-receive" in str(caught.value)
    assert "test_who_waits_too_long" in caught.value.stacks


def test_who_waits_says_so_once(reader):
    receiver = reader.receive(warn_after_s=0.05, timeout_s=0.3)
    with pytest.raises(WaitError):
        receiver.take()
    waiting = [message for message in reader.heard() if isinstance(message, Waiting)]
    assert len(waiting) == 1
    assert (waiting[0].step, waiting[0].seconds >= 0.05) == (0, True)


def test_who_does_not_wait_long_says_nothing(reader):
    receiver = reader.receive(warn_after_s=20)
    reader.send_committed(0)
    receiver.take()
    receiver.warn("slow disk")
    assert reader.hears(Warn) == Warn("slow disk")
    assert not any(isinstance(message, Waiting) for message in reader.heard())


def test_who_leaves_says_after_how_many_steps_and_because_of_what(reader):
    receiver = reader.receive()
    reader.send_committed(0)
    receiver.take()
    receiver.leave(ValueError("stop"))
    receiver.leave()
    left = reader.hears(Leave)
    assert (left.taken, str(raised(left.told))) == (1, "stop")
    assert sum(isinstance(message, Leave) for message in reader.heard()) == 1
    assert left_behind() == []


def test_who_leaves_without_an_error_just_leaves(reader):
    reader.receive().leave()
    assert reader.hears(Leave) == Leave(0, 0, None)


def test_who_leaves_after_the_fault_has_nothing_to_say(reader):
    receiver = reader.receive()
    reader.say(Fault(0, 0, carried(ValueError("x"), rank=0, step=0)))
    with pytest.raises(ValueError, match="x"):
        receiver.take()
    receiver.leave()
    assert not any(isinstance(message, Leave) for message in reader.heard())


def test_leaving_waits_for_a_batch_that_is_being_made_and_drops_the_rest(reader):
    making = threading.Event()
    made = []

    def make(arrived):
        making.set()
        time.sleep(0.1)
        made.append(arrived.portion.step)
        return checked(arrived)

    receiver = reader.receive(make=make, prefetch_steps=4)
    for step in range(4):
        reader.send(step)
    assert making.wait(20)
    receiver.leave()
    count = len(made)
    assert left_behind() == []
    time.sleep(0.15)
    assert len(made) == count


@pytest.mark.parametrize("steps", [0, 1])
def test_an_iteration_that_was_left_says_so_to_who_still_takes_of_it(reader, steps):
    receiver = reader.receive(timeout_s=5)
    for step in range(steps):
        reader.send_committed(step)
    receiver.leave()
    with pytest.raises(RankError, match="this iteration was ended"):
        receiver.take()


def test_a_receiver_that_fails_by_itself_ends_the_wait_of_its_rank_and_the_others_hear_of_it(reader, monkeypatch):
    def refuse(file, fd, *, lent):
        raise SlabError("memory file", "it cannot be mapped")

    monkeypatch.setattr(reader.ranks.inboxes[1]._view, "add", refuse)
    receiver = reader.receive()
    reader.send(0)
    with pytest.raises(SlabError, match="it cannot be mapped") as caught:
        receiver.take()
    assert receiver.is_broken
    assert "it cannot be mapped" in str(raised(reader.hears(Leave).told))
    receiver.leave(caught.value)
    assert sum(isinstance(message, Leave) for message in reader.heard()) == 1


def test_messages_of_another_iteration_mean_nothing(reader):
    receiver = reader.receive(iteration=1, timeout_s=0.2)
    reader.send(0)
    for message in (Commit(0, 0), End(0), Fault(0, 0, carried(ValueError(), rank=0, step=0))):
        reader.say(message)
    with pytest.raises(WaitError):
        receiver.take()
    assert [type(message) for message in reader.heard()] == [Begin]


def test_a_fault_that_came_while_the_former_iteration_still_lived_is_raised_in_its_own(reader):
    first = reader.receive()
    reader.send(0)
    told = carried(SourceError("row 0", "broken"), rank=0, step=0)
    reader.say(Fault(1, 0, told))  # another rank was quick to begin, and to fail
    assert until(lambda: first._inbox._early)
    first.leave()
    second = reader.receive(iteration=1, timeout_s=20)
    with pytest.raises(SourceError, match="row 0"):
        second.take()


def test_a_link_that_was_closed_on_purpose_before_anything_came_is_stale(reader):
    receiver = reader.receive()
    assert not receiver.is_stale
    reader.say(Bye())
    reader.peer.link.close()
    with pytest.raises(RankError):
        receiver.take()
    assert receiver.is_stale


def test_a_fault_is_no_stale_link_even_if_the_reader_closes_right_behind_it(reader):
    receiver = reader.receive()
    reader.say(Fault(0, 0, carried(RankError(2, 0, "died"), rank=0, step=0)))
    reader.say(Bye())
    reader.peer.link.close()
    with pytest.raises(RankError, match="died"):
        receiver.take()
    receiver._inbox.closed_on_purpose = True  # heard in the same breath or not: it does not matter
    assert not receiver.is_stale


def test_a_link_that_was_closed_on_purpose_in_the_middle_is_not_stale(reader):
    receiver = reader.receive()
    reader.send(0)
    reader.hears(Ready)
    reader.say(Bye())
    reader.peer.link.close()
    with pytest.raises(RankError):
        receiver.take()
    assert not receiver.is_stale


def test_rank_0_hears_that_all_have_to_meet_again():
    reader = Reader(rank=0)
    receiver = reader.receive()
    reader.say(Again(0))
    with pytest.raises(RankError, match="a rank closed its link before the iteration began"):
        receiver.take()
    assert receiver.is_stale
    reader.close()


def test_rank_0_makes_its_batch_of_what_never_left_the_process():
    reader = Reader(rank=0)
    receiver = reader.receive()
    reader.send_committed(0, kind="batch")
    assert receiver.take().batch == (0, 0, 1000)
    reader.close()


def test_over_tcp_it_is_the_same():
    reader = Reader(kind="tcp")
    receiver = reader.receive()
    for step in range(2):
        reader.send_committed(step, last=step == 1)
    assert [receiver.take().batch[0] for _ in range(2)] == [0, 1]
    assert receiver.take() is None
    reader.close()


def test_an_iteration_leaves_no_descriptor_and_no_thread(reader):
    before = open_descriptors()
    for iteration in range(3):
        receiver = reader.receive(iteration=iteration, aside=2)
        reader.say(End(iteration))
        assert receiver.take() is None
        receiver.leave()
    assert new_descriptors(before) == {}
    assert left_behind() == []
