"""A plan: source, options and job put together, and what is refused before anything starts."""

import pytest
import torch
from torch.utils.data import IterableDataset

from packed import SIZE, make_packed
from ranks import left_behind
from shards.dataset import DatasetReader
from stream.errors import OptionError
from stream.job import Job
from stream.options import BatchSpec, StreamOptions
from stream.plan import Plan
from stream.sources import MapSource, PackedSource, SequenceSource

SAMPLES = 20


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_packed(tmp_path_factory.mktemp("packed"), SAMPLES)


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(range(SAMPLES))


def plan_of(kind, *, job=None, options=None, **spec):
    """A plan over a source of some kind: the URL of a packed dataset, "map" or "sequence"."""
    made = BatchSpec(**{"batch_size": 4, "image_size": SIZE, **spec})
    source = {"map": lambda: MapSource(range(SAMPLES)), "sequence": lambda: SequenceSource(Numbers(), spec=made)}
    opened = source.get(kind, lambda: PackedSource(DatasetReader(kind), spec=made))()
    return Plan(opened, made, StreamOptions(**(options or {})), list, Job(**(job or {})), with_accelerator=False)


def rows_of(plan, epoch=0):
    passing = plan.begin(epoch)
    rows = [row for batch, _ in passing for row in batch]
    passing.close()
    return rows


@pytest.mark.parametrize(("said", "mode"), [(True, "dispatch"), (False, "shard"), (None, "dispatch")])
def test_the_accelerators_configuration_decides_the_mode(said, mode):
    assert plan_of("map", job={"dispatch_batches": said}).mode == mode


@pytest.mark.parametrize(("split", "batch_size"), [(True, 12), (False, 4)])
def test_the_batch_size_counts_a_whole_step_or_one_portion(split, batch_size):
    assert plan_of("map", job={"ranks": 3, "split_batches": split}, batch_size=batch_size).global_batch == 12


def test_rows_and_steps_are_known_from_the_manifest_alone(made):
    plan = plan_of(made.url, captions="each")
    assert plan.rows == len(made.pairs)
    assert plan.schedule.steps == -(-len(made.pairs) // 4)
    assert plan.source.reader._readers == {}


def test_a_sequence_does_not_tell_its_length():
    plan = plan_of("sequence")
    assert (plan.rows, plan.schedule, plan.real_rows(0)) == (None, None, 0)


def test_nothing_is_opened_to_check_a_plan():
    plan_of("/no/such/folder").check()


def test_a_batch_that_cannot_be_split_is_refused_with_both_numbers():
    with pytest.raises(OptionError, match=r"batch_size=8: .* 8 rows .* 3 ranks .*multiple of 3"):
        plan_of("map", job={"ranks": 3}, batch_size=8).check()


def test_a_batch_per_rank_can_always_be_split():
    plan_of("map", job={"ranks": 3, "split_batches": False}, batch_size=8).check()


def test_uneven_portions_are_refused_where_they_cannot_be_sent():
    with pytest.raises(OptionError, match=r'even_batches=False: transport "stock".*dispatch_batches=False'):
        plan_of("map", job={"ranks": 2, "even_batches": False}).check()


UNEVEN = {"ranks": 2, "even_batches": False}


@pytest.mark.parametrize(
    ("job", "spec"),
    [
        ({**UNEVEN, "dispatch_batches": False}, {}),  # each rank reads for itself
        (UNEVEN, {"drop_last": True}),  # no portion is uneven
        ({**UNEVEN, "ranks": 1}, {}),
        ({**UNEVEN, "dispatch_batches": False, "accumulates": True}, {"drop_last": True}),
        ({"ranks": 2, "dispatch_batches": False, "accumulates": True}, {}),
    ],
)
def test_uneven_portions_are_allowed_where_they_do_no_harm(job, spec):
    plan_of("map", job=job, **spec).check()


def test_uneven_portions_are_refused_together_with_gradient_accumulation():
    with pytest.raises(OptionError, match="gradients that are accumulated"):
        plan_of("map", job={**UNEVEN, "dispatch_batches": False, "accumulates": True}).check()


def test_a_sequence_cannot_be_read_by_workers():
    with pytest.raises(OptionError, match=r"workers=2: .*use workers=0"):
        plan_of("sequence", options={"workers": 2}).check()


@pytest.mark.parametrize(
    ("kind", "job", "spec", "option"),
    [
        ("sequence", {"dispatch_batches": False}, {}, "mode"),
        ("sequence", {}, {"shuffle": "full"}, "shuffle"),
        ("sequence", {}, {"captions": "each"}, "captions"),
        ("map", {}, {"captions": "each"}, "captions"),
    ],
)
def test_what_needs_an_index_or_rows_is_refused_without(kind, job, spec, option):
    with pytest.raises(OptionError) as caught:
        plan_of(kind, job=job, **spec).check()
    assert caught.value.option == option


@pytest.mark.parametrize(
    ("mode", "threads", "expected"), [("dispatch", None, 8), ("shard", None, 2), ("shard", 3, 3), ("dispatch", 1, 1)]
)
def test_ranks_share_the_cores_only_where_each_of_them_decodes(monkeypatch, mode, threads, expected):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    job = {"ranks": 8, "host_ranks": 4, "dispatch_batches": mode == "dispatch", "split_batches": False}
    assert plan_of("map", job=job, options={"decode_threads": threads}).decode_threads == expected


def test_more_ranks_than_cores_decode_in_one_thread_each(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    job = {"ranks": 8, "host_ranks": 8, "dispatch_batches": False, "split_batches": False}
    assert plan_of("map", job=job).decode_threads == 1


@pytest.mark.parametrize(("wanted", "has", "pinned"), [(True, True, True), (True, False, False), (False, True, False)])
def test_memory_is_pinned_only_where_there_is_an_accelerator_to_pin_for(monkeypatch, wanted, has, pinned):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has)
    assert plan_of("map", options={"pin_memory": wanted}).pinned == pinned


def test_an_epoch_is_every_row_once_in_another_order_each_time():
    epochs = [rows_of(plan_of("map", shuffle="full"), epoch) for epoch in (0, 1, 0)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(SAMPLES))
    assert epochs[0] == epochs[2] != epochs[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_beginning_an_epoch_starts_nothing(made, workers):
    passing = plan_of(made.url, options={"workers": workers}).begin(0)
    assert left_behind() == []
    passing.close()
    assert list(passing) == []


def test_an_epoch_without_steps_is_empty():
    assert rows_of(plan_of("map", batch_size=64, drop_last=True)) == []


def test_real_rows_are_those_of_the_schedule():
    plan = plan_of("map", job={"ranks": 3, "split_batches": False}, batch_size=2)
    assert [plan.real_rows(step) for step in range(plan.schedule.steps)] == [6, 6, 6, 2]
