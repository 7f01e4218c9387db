"""The seam to accelerate, seen from one process: what an Accelerator tells, and what it is told."""

import gc

import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.state import GradientState

from ranks import left_behind
from stream.collate import CollateOptions, Collator
from stream.dispatch import is_prepared, job_of, stock_dispatch, stock_shard
from stream.errors import SourceError
from stream.options import BatchSpec
from stream.passing import LoaderParts
from stream.sources import SequenceSource
from stream.steps import Ahead, Cut, Finish, LoadedSteps, sequence_steps

ROWS = 10


def accelerator_of(**config):
    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**config))


def loaded(rows, *, packed):
    finish = Finish(Collator(CollateOptions(None, collate=collate)), 1 if packed else None)
    source = SequenceSource(rows, spec=BatchSpec(batch_size=4))
    return LoadedSteps(sequence_steps(source, Cut(4, 1, drop_last=False), finish, Ahead(2, 1), epoch=0), finish)


def collate(rows):
    return {"number": torch.tensor(rows), "text": [str(row) for row in rows]}


def dispatched(rows=range(ROWS)):
    return stock_dispatch(LoaderParts(dataset=loaded(rows, packed=True)), job_of(accelerator_of()))


def sharded(rows=range(ROWS)):
    return stock_shard(LoaderParts(dataset=loaded(rows, packed=False)), job_of(accelerator_of()))


both = pytest.mark.parametrize("make", [dispatched, sharded])


@pytest.fixture(autouse=True)
def _nothing_registered():
    """No loader of a test stays in accelerate's state, and no thread of it lives on."""
    GradientState()  # the first Accelerator of a process makes it
    yield
    gc.collect()
    assert GradientState().dataloader_references == [None]
    assert left_behind() == []


@pytest.mark.parametrize("said", [True, False, None])
def test_the_job_is_what_the_accelerator_says(said):
    config = {"dispatch_batches": said, "split_batches": said is not False, "even_batches": False}
    job = job_of(accelerator_of(**config, non_blocking=True))
    assert (job.ranks, job.rank, job.host_ranks) == (1, 0, 1)
    assert (job.dispatch_batches, job.split_batches, job.even_batches) == (said, said is not False, False)
    assert (job.device, job.on_device, job.non_blocking) == (torch.device("cpu"), True, True)


def test_the_job_knows_whether_batches_are_moved_and_gradients_accumulated():
    job = job_of(Accelerator(cpu=True, device_placement=False, gradient_accumulation_steps=2))
    assert (job.on_device, job.accumulation) == (False, 2)
    assert job_of(Accelerator(cpu=True, gradient_accumulation_steps=1)).accumulation == 1


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({}, ()),
        ({"use_seedable_sampler": True}, ("use_seedable_sampler",)),
        ({"use_seedable_sampler": True, "data_seed": 0}, ("use_seedable_sampler", "data_seed")),
        ({"use_stateful_dataloader": True}, ("use_stateful_dataloader",)),
    ],
)
def test_the_job_names_what_was_set_though_it_means_nothing_to_a_loader(config, named):
    assert job_of(accelerator_of(**config)).without_effect == named


def test_prepared_is_the_very_object_that_was_prepared():
    accelerator, loader = accelerator_of(), torch.utils.data.DataLoader([1])
    loader._is_accelerate_prepared = True
    assert not is_prepared(accelerator, loader)
    assert accelerator.prepare(loader) is loader
    assert is_prepared(accelerator, loader)
    assert not is_prepared(accelerator, torch.utils.data.DataLoader([1]))


@both
def test_batches_come_through_with_what_is_no_tensor(make):
    batches = [batch for batch, _ in make()]
    assert [batch["number"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [batch["text"] for batch in batches] == [["0", "1", "2", "3"], ["4", "5", "6", "7"], ["8", "9"]]


def test_a_dispatched_step_brings_its_real_rows():
    assert [real for _, real in dispatched()] == [4, 4, 2]


@both
def test_the_last_batch_is_known_before_it_is_handed_out(make):
    passing = make()
    seen = []
    for _ in passing:
        seen.append(passing.is_last())
        assert GradientState().end_of_dataloader == seen[-1]
    assert seen == [False, False, True]


@both
def test_accelerate_hears_the_remainder(make):
    passing = make()
    next(passing)
    assert GradientState().remainder == -1
    passing.set_remainder(7)
    assert GradientState().remainder == 7
    passing.close()


@both
def test_accelerate_knows_the_loader_from_the_first_next_until_close(make):
    passing = make()
    assert not GradientState().in_dataloader
    next(passing)
    assert GradientState().in_dataloader
    passing.close()
    assert not GradientState().in_dataloader
    passing.close()
    assert list(passing) == []


@both
def test_an_epoch_without_rows_is_empty(make):
    assert list(make(())) == []


@pytest.mark.parametrize(("make", "kind"), [(dispatched, SourceError), (sharded, OSError)])
def test_an_error_comes_behind_the_good_steps(make, kind):
    def rows():
        yield from range(5)
        raise OSError("the connection was reset")

    passing = make(rows())
    assert next(passing)[0]["text"] == ["0", "1", "2", "3"]
    with pytest.raises(kind, match="the connection was reset"):
        next(passing)
    passing.close()


@both
def test_torchs_global_generator_is_not_drawn_from(make):
    before = torch.get_rng_state()
    list(make())
    assert torch.equal(torch.get_rng_state(), before)


def test_a_rank_that_only_receives_loads_nothing(monkeypatch):
    def fail():
        raise AssertionError("a rank that only receives has asked for rows")
        yield

    job = job_of(accelerator_of())
    receiving = type(job)(ranks=2, rank=1)
    passing = stock_dispatch(LoaderParts(dataset=fail(), sampler=fail(), workers=3, prefetch=2), receiving)
    assert list(passing._inner.base_dataloader) == []
    passing.close()
