"""The map-style dataset over the index, and which rows its batch sampler asks for."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from packed import SIZE, key_of, make_packed, number_of
from shards.dataset import DatasetReader
from stream.collate import CollateOptions, Collator
from stream.options import BatchSpec
from stream.order import Order
from stream.packed import PackedSource
from stream.resize import ResizeSpec
from stream.schedule import Schedule, Slot
from stream.sharded import Failed, Loaded, ShardDataset, ShownSampler, Step, StepSampler
from stream.sources import MapSource

SAMPLES = 20


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_packed(tmp_path_factory.mktemp("packed"), SAMPLES)


@pytest.fixture
def dataset(made):
    return ShardDataset(PackedSource(DatasetReader(made.url), spec=BatchSpec(batch_size=4)))


def sampler(rows, *, ranks=1, rank=None, epoch=0, shuffle="full", **options):
    order = Order([rows], shuffle=shuffle, seed=3, epoch=epoch, window_shards=4)
    options = {"global_batch": 4 * ranks, "drop_last": False, **options}
    return StepSampler(order, Schedule(rows, ranks=ranks, **options), epoch=epoch, rank=rank)


@settings(deadline=None)
@given(rows=st.integers(1, 60), ranks=st.integers(1, 4), drop_last=st.booleans(), even_batches=st.booleans())
def test_the_ranks_steps_side_by_side_are_the_whole_steps(rows, ranks, drop_last, even_batches):
    options = {"ranks": ranks, "drop_last": drop_last, "even_batches": even_batches}
    whole = list(sampler(rows, **options))
    shares = [list(sampler(rows, rank=rank, **options)) for rank in range(ranks)]
    for number, step in enumerate(whole):
        parts = [share[number] for share in shares if number < len(share)]
        assert [slot for part in parts for slot in part.slots] == step.slots
        assert {part.real_rows for part in parts} == {step.real_rows}
    assert max(map(len, shares)) == len(whole)


@settings(deadline=None)
@given(rows=st.integers(1, 60), epoch=st.integers(0, 5))
def test_the_steps_follow_the_order_of_their_epoch(rows, epoch):
    order = Order([rows], shuffle="full", seed=3, epoch=epoch, window_shards=4)
    slots = [slot for step in sampler(rows, epoch=epoch) for slot in step.slots]
    assert slots == [Slot(position, order.row(position)) for position in range(rows)]


def test_its_length_is_the_number_of_steps_of_its_rank():
    uneven = {"ranks": 2, "even_batches": False}
    assert len(sampler(9, **uneven)) == 2
    assert [len(sampler(9, rank=rank, **uneven)) for rank in range(2)] == [2, 1]


def test_a_sampler_can_be_asked_again():
    steps = sampler(9)
    assert list(steps) == list(steps)


def test_a_dataset_is_indexed_by_row(dataset):
    assert len(dataset) == SAMPLES
    assert dataset[7].key == key_of(7)


def test_many_rows_come_at_once(dataset):
    assert [row.key for row in dataset.__getitems__([7, 0])] == [key_of(7), key_of(0)]


def test_a_step_comes_with_its_number_of_real_rows(dataset):
    loaded = dataset.__getitems__(Step(epoch=0, real_rows=3, slots=[Slot(0, 5), Slot(1, 2)]))
    assert isinstance(loaded, Loaded)
    assert [row.key for row in loaded.rows] == [key_of(5), key_of(2)]
    assert loaded.real_rows == 3


def test_a_step_that_cannot_be_read_is_a_value_with_its_error(dataset):
    failed = dataset.__getitems__(Step(epoch=0, real_rows=1, slots=[Slot(0, SAMPLES)]))
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, IndexError)


def test_a_row_that_does_not_exist_is_an_index_error(dataset):
    with pytest.raises(IndexError):
        dataset[SAMPLES]


def test_foreign_rows_are_what_their_dataset_gives():
    dataset = ShardDataset(MapSource(["a", "b", "c"]))
    assert (len(dataset), dataset[1], dataset.__getitems__([2, 0])) == (3, "b", ["c", "a"])


@pytest.mark.parametrize(("workers", "method"), [(0, None), (2, "fork"), (1, "spawn")])
def test_it_works_in_torchs_own_loader(dataset, workers, method):
    collate = Collator(CollateOptions(ResizeSpec(*SIZE)))
    loader = DataLoader(dataset, batch_size=6, num_workers=workers, collate_fn=collate, multiprocessing_context=method)
    assert [number_of(image) for batch in loader for image in batch["image"]] == list(range(SAMPLES))


def test_what_a_loader_shows_as_its_sampler_refuses_to_be_iterated():
    shown = ShownSampler(batch_size=4, drop_last=False, even_batches=True)
    with pytest.raises(TypeError, match=r"after load_state\(\) .* loader\.skip\(steps\), not skip_first_batches"):
        iter(shown)
