"""stream/local_link.py: a link within a process hands frames over by reference, and ends as the others do."""

import os
import select
import threading

import numpy as np
import pytest

from descriptors import new_descriptors, open_descriptors
from stream.errors import LinkError
from stream.local_link import local_pair

LIMIT_S = 20


@pytest.fixture
def ends():
    ends = local_pair()
    yield ends
    for end in ends:
        end.close()


def is_readable(link):
    return bool(select.select([link.fileno()], [], [], 0)[0])


def test_frames_come_in_order_with_what_they_carry_itself(ends):
    here, there = ends
    thing, payload = object(), np.zeros(3, np.uint8)
    here.post(b"first", thing=thing)
    here.post(b"second", payload=payload)
    first, second = there.take(), there.take()
    assert (first.message, second.message) == (b"first", b"second")
    assert first.thing is thing
    assert second.payload is payload


def test_both_ends_name_the_rank_and_are_of_this_process(ends):
    for end in ends:
        assert (end.peer, end.kind, end.words) == (0, "local", "the same process")
        assert (end.sent_bytes, end.received_bytes, end.watch_fileno()) == (0, 0, None)
        assert end.flush(0.0)


def test_drain_never_waits_and_the_descriptor_tells_when_it_has_something(ends):
    here, there = ends
    assert (there.drain(), is_readable(there)) == ([], False)
    for number in range(3):
        here.post(bytes([number]))
    assert is_readable(there)
    assert [frame.message for frame in there.drain()] == [b"\0", b"\1", b"\2"]
    assert not is_readable(there)


def test_take_waits_for_a_frame(ends):
    here, there = ends
    timer = threading.Timer(0.05, here.post, [b"late"])
    timer.start()
    assert there.take().message == b"late"
    timer.join()


def test_the_other_end_takes_what_came_before_it_hears_of_the_closing(ends):
    here, there = ends
    here.post(b"last")
    here.close()
    assert is_readable(there)
    assert there.take().message == b"last"
    for call in (there.take, there.drain):
        with pytest.raises(LinkError, match="link to rank 0: the other side has closed it"):
            call()
    assert is_readable(there)


def test_who_closes_its_own_end_takes_nothing_more(ends):
    here, there = ends
    there.post(b"lost")
    here.close()
    here.close()
    with pytest.raises(LinkError, match="it was closed on this side"):
        here.take()
    assert here.fileno() == -1
    there.post(b"dropped")


@pytest.mark.parametrize("closer", [0, 1], ids=["the other end", "this end"])
def test_closing_wakes_who_takes(ends, closer):
    taker, raised = ends[1], []

    def take():
        try:
            taker.take()
        except LinkError as exc:
            raised.append(exc)

    thread = threading.Thread(target=take)
    thread.start()
    ends[closer].close()
    thread.join(LIMIT_S)
    assert len(raised) == 1


def test_descriptors_are_copies_for_the_taker(ends):
    here, there = ends
    fd = os.open("/dev/null", os.O_RDONLY)
    here.post(b"", fds=[fd])
    (copy,) = there.take().fds
    assert copy != fd
    os.close(copy)
    os.close(fd)


def test_nothing_stays_open_after_both_ends_are_closed():
    before = open_descriptors()
    here, there = local_pair()
    fd = os.open("/dev/null", os.O_RDONLY)
    here.post(b"", fds=[fd])
    os.close(fd)
    here.close()
    there.close()
    assert new_descriptors(before) == {}


def test_many_threads_post_and_nothing_is_lost(ends):
    here, there = ends
    threads = [threading.Thread(target=lambda: [here.post(b"x") for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert all(there.take().message == b"x" for _ in range(2000))
    for thread in threads:
        thread.join(LIMIT_S)
    assert there.drain() == []


def test_who_listens_is_called_by_who_posts_and_the_descriptor_is_silent(ends):
    here, there = ends
    called = []
    there.listen(lambda: called.append(threading.current_thread()))
    here.post(b"one")
    here.post_all([b"two", b"three"])
    assert called == [threading.current_thread()] * 2
    assert not is_readable(there)
    assert [frame.message for frame in there.drain()] == [b"one", b"two", b"three"]
    here.close()
    assert len(called) == 3
    with pytest.raises(LinkError):
        there.drain()


def test_what_came_while_nobody_listened_or_when_it_ends_is_told_by_the_descriptor(ends):
    here, there = ends
    here.post(b"early")
    there.listen(lambda: None)
    assert is_readable(there)
    here.post(b"heard")
    there.listen(None)
    assert is_readable(there)
    assert len(there.drain()) == 2
    there.listen(None)
    assert not is_readable(there)
    here.post(b"late")
    assert is_readable(there)


def test_a_listener_may_post_and_take_and_close(ends):
    here, there = ends

    def answer():
        for frame in there.drain():
            there.post(frame.message + b"!")
        there.close()

    there.listen(answer)
    here.post(b"hello")
    assert here.take().message == b"hello!"
    there.listen(None)
