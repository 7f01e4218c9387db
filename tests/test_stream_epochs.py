"""How an epoch of a plan is begun, by each of its paths; nothing starts before its first batch."""

import gc

import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.state import GradientState
from torch.utils.data import IterableDataset

from packed import SIZE, make_packed
from ranks import left_behind
from shards.dataset import DatasetReader
from stream.collate import Hooks
from stream.epochs import begin_epoch, is_registered, make_place, make_plan
from stream.errors import OptionError
from stream.options import BatchSpec, StreamOptions
from stream.packed import PackedSource
from stream.point import Point
from stream.sources import BatchSource, MapSource, SequenceSource

SAMPLES = 20


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_packed(tmp_path_factory.mktemp("packed"), SAMPLES)


@pytest.fixture(autouse=True)
def _nothing_left():
    GradientState()
    yield
    gc.collect()
    assert left_behind() == []
    assert not GradientState().in_dataloader


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(range(SAMPLES))


class Batches(IterableDataset):
    def __iter__(self):
        return (torch.arange(first, first + 4) for first in range(0, SAMPLES, 4))


class Owner:
    """Stands for a loader in accelerate's gradient state."""

    end_of_dataloader, remainder = False, -1


def accelerator_of(mode):
    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=mode != "shard"))


PATHS = pytest.mark.parametrize("path", ["alone", "ours", "stock", "shard"])
SEQUENCE_PATHS = pytest.mark.parametrize("path", ["alone", "ours", "stock"])


def collate(rows):
    """A batch that the stock transport can carry too."""
    return {"rows": [row["key"] if isinstance(row, dict) else row for row in rows]}


def plan_of(source, path="alone", *, workers=0, **spec):
    made = BatchSpec(**{"batch_size": 4, "image_size": SIZE, "shuffle": None, **spec})
    options = StreamOptions(workers=workers, transport="stock" if path == "stock" else "ours")
    own = None if made.batch_size is None else collate
    return make_plan(source(made), made, options, Hooks(collate=own), None if path == "alone" else accelerator_of(path))


def mapped(spec):
    return MapSource(range(SAMPLES))


def sequence(spec):
    return SequenceSource(Numbers(), spec=spec)


def batches(spec):
    return BatchSource(Batches())


def packed(made):
    return lambda spec: PackedSource(DatasetReader(made.url), spec=spec)


def epoch_of(plan, epoch=0, position=0):
    """What is in the batches of an epoch."""
    place = make_place(plan, "train")
    passing = begin_epoch(plan, Point(epoch, position), place=place, owner=Owner())
    try:
        return [batch if isinstance(batch, torch.Tensor) else batch["rows"] for batch, _ in passing]
    finally:
        passing.close()
        place.close()


def rows_of(plan, epoch=0, position=0):
    return [row for batch in epoch_of(plan, epoch, position) for row in batch]


def test_a_plan_that_cannot_work_is_refused_before_anything_starts():
    with pytest.raises(OptionError, match="mode='shard'"):
        plan_of(sequence, "shard")


def test_the_job_is_the_accelerators():
    plan = plan_of(mapped, "shard")
    assert (plan.mode, plan.with_accelerator) == ("shard", True)
    assert plan_of(mapped).with_accelerator is False


@PATHS
def test_an_epoch_is_every_row_once_in_another_order_each_time(path):
    epochs = [rows_of(plan_of(mapped, path, shuffle="full"), epoch) for epoch in (0, 1, 0)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(SAMPLES))
    assert epochs[0] == epochs[2] != epochs[1]


@PATHS
def test_an_epoch_goes_on_from_a_position(path):
    whole = epoch_of(plan_of(mapped, path, shuffle="full"))
    assert epoch_of(plan_of(mapped, path, shuffle="full"), position=8) == whole[2:]


@SEQUENCE_PATHS
def test_a_sequence_goes_on_from_a_position(path):
    assert epoch_of(plan_of(sequence, path), position=8) == [list(range(first, first + 4)) for first in (8, 12, 16)]


@PATHS
@pytest.mark.parametrize("workers", [0, 2])
def test_packed_shards_come_the_same_by_every_path(made, path, workers):
    assert rows_of(plan_of(packed(made), path, workers=workers)) == made.keys


@pytest.mark.parametrize("path", ["alone", "ours"])
def test_finished_batches_come_over_an_exchange_also_without_an_accelerator(path):
    plan = plan_of(batches, path, batch_size=None)
    assert make_place(plan, "train").exchange is not None
    assert [batch.tolist() for batch in epoch_of(plan)] == [list(range(first, first + 4)) for first in range(0, 20, 4)]


@PATHS
@pytest.mark.parametrize("workers", [0, 2])
def test_beginning_an_epoch_starts_nothing(made, path, workers):
    plan = plan_of(packed(made), path, workers=workers)
    place = make_place(plan, "train")
    passing = begin_epoch(plan, Point(0, 0), place=place, owner=Owner())
    assert left_behind() == []
    passing.close()
    assert list(passing) == []
    place.close()


@PATHS
def test_an_epoch_without_steps_is_empty(path):
    assert epoch_of(plan_of(mapped, path, batch_size=64, drop_last=True)) == []
    assert epoch_of(plan_of(mapped, path), position=SAMPLES) == []


def test_the_links_of_a_place_serve_one_epoch_after_the_other():
    plan = plan_of(mapped, "ours")
    place = make_place(plan, "train")
    for epoch in range(3):
        passing = begin_epoch(plan, Point(epoch, 0), place=place, owner=Owner())
        assert [row for batch, _ in passing for row in batch["rows"]] == list(range(SAMPLES))
        passing.close()
    place.close()


def test_a_step_of_ours_tells_its_rows_its_position_and_whether_it_is_the_last():
    plan = plan_of(mapped, "ours", batch_size=8)
    place = make_place(plan, "train")
    passing = begin_epoch(plan, Point(0, 0), place=place, owner=Owner())
    assert [(real, passing.position, passing.is_last()) for _, real in passing] == [
        (8, 8, False),
        (8, 16, False),
        (4, 20, True),
    ]
    passing.close()
    place.close()


def test_registered_is_what_this_very_accelerator_has_prepared():
    accelerator = accelerator_of("ours")
    loader = torch.utils.data.DataLoader([1])
    loader._is_accelerate_prepared = True
    assert not is_registered(None, loader)
    assert not is_registered(accelerator, loader)
    accelerator.prepare(loader)
    assert is_registered(accelerator, loader)
