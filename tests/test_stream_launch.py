"""Whether a loader knows all the processes that the launcher started."""

import pytest
import torch

from stream.errors import NotPreparedError
from stream.launch import launched_ranks, refuse_unprepared


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def test_without_a_launcher_there_is_one_process():
    assert launched_ranks() == 1


@pytest.mark.parametrize(("said", "ranks"), [("1", 1), ("4", 4), ("", 1), ("many", 1), ("-2", 1)])
def test_the_launcher_says_how_many_it_started(monkeypatch, said, ranks):
    monkeypatch.setenv("WORLD_SIZE", said)
    assert launched_ranks() == ranks


def test_a_process_group_knows_better_than_the_launcher(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    assert launched_ranks() == 3


@pytest.mark.parametrize(("alone", "registered"), [(True, False), (False, False), (False, True)])
def test_one_process_is_never_refused(alone, registered):
    refuse_unprepared("train", 1, alone=alone, registered=registered)


def test_a_prepared_loader_that_knows_all_ranks_is_not_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    refuse_unprepared("train", 2, alone=False, registered=True)


@pytest.mark.parametrize(
    ("ranks", "alone", "registered", "words"),
    [
        (1, True, False, "without the job's Accelerator"),
        (1, False, True, "its Accelerator is alone"),
        (2, False, False, "has not gone through accelerator.prepare"),
    ],
)
def test_who_does_not_know_the_others_is_refused_with_what_is_missing(monkeypatch, ranks, alone, registered, words):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(NotPreparedError, match=words) as caught:
        refuse_unprepared("eval", ranks, alone=alone, registered=registered)
    assert (caught.value.loader, caught.value.ranks) == ("eval", 2)


def test_an_accelerator_that_knows_more_ranks_than_the_launcher_is_believed():
    with pytest.raises(NotPreparedError) as caught:
        refuse_unprepared("train", 4, alone=False, registered=False)
    assert caught.value.ranks == 4
