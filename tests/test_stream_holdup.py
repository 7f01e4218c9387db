"""stream/holdup.py: who waits for whom in words, and every warning once."""

import logging
from types import SimpleNamespace

from offers_made import step_offer
from stream.holdup import Warnings, holdup
from stream.protocol import Begin


def peer(rank, *, begun=True):
    return SimpleNamespace(rank=rank, begun=Begin(0, {}) if begun else None)


def step(number, *, sent, unready=()):
    return SimpleNamespace(number=number, sent=sent, unready=set(unready), offer=step_offer(number))


ALL = [peer(0), peer(1), peer(2)]


def test_a_rank_that_has_not_begun_holds_up_all():
    assert holdup([peer(0), peer(1, begun=False), peer(2, begun=False)], [], None) == (
        "rank 1, 2 has not begun the iteration"
    )


def test_a_rank_that_has_not_answered_holds_up_its_step():
    assert holdup(ALL, [step(3, sent=True, unready=[2, 1])], "row 9") == "rank 1, 2 has not answered step 3 yet"


def test_a_step_that_is_being_read_is_named_by_what_is_read():
    assert holdup(ALL, [step(3, sent=False)], "row 9") == "the reader, on rank 0, reads row 3"


def test_a_source_that_gives_nothing_is_named_with_what_it_gave_last():
    assert holdup(ALL, [], None) == "the reader, on rank 0, waits for its source; it has given nothing yet"
    assert holdup(ALL, [], "row 9").endswith("it has given all up to row 9")


def test_a_warning_is_said_once_and_one_of_each_kind(caplog, monkeypatch):
    monkeypatch.setattr(Warnings, "_said", set())
    with caplog.at_level(logging.WARNING, "stream"):
        for text, kind in [("a", None), ("a", None), ("b", "k"), ("c", "k"), ("100 % d", None)]:
            Warnings.say(text, kind=kind)
    assert [record.getMessage() for record in caplog.records] == ["a", "b", "100 % d"]
