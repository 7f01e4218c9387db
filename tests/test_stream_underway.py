"""stream/underway.py: one step: memory for every portion or for none, filled and then sent."""

import numpy as np
import pytest

from offers_made import pattern, step_offer
from ranks_in_threads import Ranks
from stream.owning import new_memory
from stream.protocol import LENT, body_start
from stream.underway import Underway


@pytest.fixture
def ranks():
    made = Ranks(3, budget=1 << 20)
    yield made
    made.close()


def sent(ranks, underway):
    for load in underway.loads(new_memory):
        load.fill()
        underway.loaded(None)
    underway.send(7, ranks.peers)
    for peer in ranks.peers:
        peer.flush()


def test_every_rank_gets_its_own_portion(ranks):
    underway = Underway.begin(4, step_offer(4, 3, size=[10, 2000, 0], last=[False, True, False]), ranks.peers)
    assert (underway.number, underway.ranks, underway.unready) == (4, (0, 1, 2), {0, 1, 2})
    assert (underway.loading, underway.sent) == (3, False)
    sent(ranks, underway)
    assert (underway.loading, underway.sent, underway.error) == (0, True, None)
    for rank, size in enumerate((10, 2000, 0)):
        ((portion, arrived),) = ranks.inboxes[rank].take(7)
        assert (portion.step, portion.real_rows, portion.position, portion.last) == (4, 12, 60, rank == 1)
        assert (portion.header, portion.size) == (24, body_start(24) + size)
        assert np.array_equal(arrived.body, pattern(4, rank, size))
        assert (portion.file == LENT) == (rank == 0)


def test_a_rank_without_a_portion_gets_nothing(ranks):
    underway = Underway.begin(0, step_offer(0, 3, size=[10, None, 10]), ranks.peers)
    assert (underway.ranks, underway.loading) == ((0, 2), 2)
    sent(ranks, underway)
    assert list(ranks.inboxes[1].take(7)) == []
    assert ranks.peers[1].memory.held_bytes == 0


def test_ranks_with_one_share_get_the_same_bytes():
    ranks = Ranks(3, shares=(0, 1, 1))
    sent(ranks, Underway.begin(0, step_offer(0, 2, size=[10, 100]), ranks.peers))
    bodies = [next(ranks.inboxes[rank].take(7))[1].body.tobytes() for rank in (1, 2)]
    assert bodies == [pattern(0, 1, 100).tobytes()] * 2
    ranks.close()


def test_where_one_rank_has_no_room_nothing_is_taken(ranks):
    first = Underway.begin(0, step_offer(0, 3, size=[10, 10, 900_000]), ranks.peers)
    held = [peer.memory.held_bytes for peer in ranks.peers]
    offer = step_offer(1, 3, size=[10, 10, 900_000])
    assert Underway.begin(1, offer, ranks.peers) is None
    assert [peer.memory.held_bytes for peer in ranks.peers] == held
    ranks.peers[2].release(first._lots[2].span.number)
    assert Underway.begin(1, offer, ranks.peers) is not None


def test_a_finished_batch_takes_no_memory_of_rank_0(ranks):
    underway = Underway.begin(0, step_offer(0, 3, kind="batch"), ranks.peers)
    assert underway.loading == 3  # its own copy is one of them
    assert ranks.peers[0].memory.held_bytes == 0
    sent(ranks, underway)
    assert next(ranks.inboxes[0].take(7))[1].thing[0] == underway.offer.portions[0].header


def test_loads_say_whether_they_may_wait_and_what_to_try_first(ranks):
    for slow in (True, False):
        underway = Underway.begin(0, step_offer(0, 3, slow=slow), ranks.peers)
        loads = underway.loads(new_memory)
        assert [load.waits for load in loads] == [slow] * 3
        assert [load.at_once is not None for load in loads] == [slow] * 3


def test_a_helper_reads_local_files_where_they_belong_and_is_told_of_each_memory_file_once(ranks):
    shared, dropped, read = [], [], []

    class Helper:
        def add_file(self, fd, *, writable):
            assert writable
            shared.append(fd)
            return 7

        def drop_file(self, number):
            dropped.append(number)

        def read(self, jobs):
            read.extend(jobs)

    for number in range(2):
        step = step_offer(number, 3, slow=True)
        for offer in step.portions:
            offer.reads = [("a.tar", [(0, 900)]), ("b.tar", [(5, 55), (70, 120)])]
        underway = Underway.begin(number, step, ranks.peers)
        loads = underway.loads(new_memory, Helper())
        assert [(load.waits, load.at_once) for load in loads] == [(True, None)] * 3
        for load in loads:
            load.fill()
    assert len(shared) == 3
    assert [(path, ranges, file) for path, ranges, file, _ in read[:2]] == [
        ("a.tar", [(0, 900)], 7),
        ("b.tar", [(5, 55), (70, 120)], 7),
    ]
    assert read[1][3] - read[0][3] == 900
    assert dropped == []
    ranks.close()
    assert dropped == [7] * 3


def test_the_first_error_is_kept(ranks):
    underway = Underway.begin(0, step_offer(0, 3), ranks.peers)
    for error in (None, OSError("first"), OSError("second")):
        underway.loaded(error)
    assert (underway.loading, str(underway.error)) == (0, "first")
