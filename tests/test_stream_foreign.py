"""What others made to be iterated: told its epoch, ended when it is left; webdataset has a file of its own."""

import pytest
import webdataset
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from ranks import left_behind
from stream.foreign import end, one_pass, tell_epoch


class Hearing(IterableDataset):
    def __init__(self):
        self.epochs = []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def __iter__(self):
        yield from range(4)


class HearingSampler(SequentialSampler):
    def __init__(self, rows):
        super().__init__(rows)
        self.epochs = []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)


class Deaf:
    epoch = 5


def test_what_can_hear_is_told_once_before_it_is_read():
    dataset = Hearing()
    assert list(one_pass(dataset, epoch=3)) == [0, 1, 2, 3]
    assert dataset.epochs == [3]


def test_a_loader_tells_its_dataset_and_its_samplers():
    sampler = HearingSampler(range(4))
    tell_epoch(DataLoader(range(4), sampler=sampler, batch_size=2), 7)
    assert sampler.epochs == [7]
    tell_epoch(DataLoader(range(4), batch_sampler=BatchSampler(sampler, 2, drop_last=False)), 8)
    assert sampler.epochs == [7, 8]
    dataset = Hearing()
    tell_epoch(DataLoader(dataset), 9)
    assert dataset.epochs == [9]


def test_what_cannot_hear_stays_as_it_is():
    deaf = Deaf()
    tell_epoch(deaf, 9)
    assert deaf.epoch == 5
    assert vars(deaf) == {}


def test_stages_of_webdataset_count_from_the_epoch_they_are_told():
    stage = webdataset.filters.detshuffle(10)
    pipeline = webdataset.DataPipeline(webdataset.SimpleShardList([f"{number}.tar" for number in range(100)]), stage)
    orders = [[shard["url"] for shard in one_pass(pipeline, epoch=epoch)] for epoch in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]


def test_a_stage_with_a_hearing_of_its_own_is_told():
    stage = Hearing()
    tell_epoch(webdataset.DataPipeline(stage), 2)
    assert stage.epochs == [2]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("taken", [1, 4])
def test_the_workers_of_a_loader_end_with_the_pass(persistent, taken):
    found = one_pass(DataLoader(Hearing(), batch_size=None, num_workers=1, persistent_workers=persistent), epoch=0)
    for _ in range(taken):
        next(found)
    found.close()
    assert left_behind() == []


def test_ending_calls_what_an_iterator_has_and_nothing_else():
    def generator():
        yield 1

    running = generator()
    next(running)
    end(running)
    assert list(running) == []
    end(iter(()))
