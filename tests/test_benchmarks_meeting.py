import pytest

from meeting import WrongRanksError, joined, largest, meet


@pytest.fixture
def alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def test_alone_everybody_is_here_and_the_largest_value_is_the_own(alone):
    meet()
    assert largest(2.5) == 2.5


def test_alone_batches_are_dispatched_and_split(alone):
    accelerator = joined(1)
    assert (accelerator.num_processes, accelerator.dispatch_batches, accelerator.split_batches) == (1, True, True)
    assert accelerator.device.type == "cpu"


def test_another_number_of_ranks_than_planned_is_refused(alone):
    with pytest.raises(WrongRanksError, match="sees 1 ranks, 2 were planned"):
        joined(2)
