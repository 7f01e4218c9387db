"""A plan: source, options and job put together, and what is refused before anything starts."""

import pytest
import torch
from torch.utils.data import IterableDataset

from packed import SIZE, make_packed
from shards.dataset import DatasetReader
from stream.errors import OptionError
from stream.facts import agreed
from stream.job import Job
from stream.options import BatchSpec, StreamOptions
from stream.packed import PackedSource
from stream.plan import Plan
from stream.point import Bookmark, Point
from stream.sources import BatchSource, MapSource, SequenceSource
from stream.state import UNKNOWN

SAMPLES = 20


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_packed(tmp_path_factory.mktemp("packed"), SAMPLES)


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(range(SAMPLES))


def plan_of(kind, *, job=None, options=None, **spec):
    """A plan over a source of some kind: the URL of a packed dataset, "map", "sequence" or "batches".

    With a job it is one with an Accelerator.
    """
    made = BatchSpec(**{"batch_size": None if kind == "batches" else 4, "image_size": SIZE, **spec})
    source = {
        "map": lambda: MapSource(range(SAMPLES)),
        "sequence": lambda: SequenceSource(Numbers(), spec=made),
        "batches": lambda: BatchSource(Numbers()),
    }
    opened = source.get(kind, lambda: PackedSource(DatasetReader(kind), spec=made))()
    accelerated = job is not None
    return Plan(opened, made, StreamOptions(**(options or {})), list, Job(**(job or {})), with_accelerator=accelerated)


STOCK = {"transport": "stock"}
SHARD = {"dispatch_batches": False}


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
    assert (plan.rows, plan.schedule, plan.schedule_from(4)) == (None, None, None)


def test_what_is_left_of_an_epoch_is_counted_from_a_position():
    plan = plan_of("map", batch_size=8)
    assert (plan.schedule.steps, plan.schedule_from(8).steps, plan.schedule_from(SAMPLES).steps) == (3, 2, 0)


@pytest.mark.parametrize(
    ("kind", "job", "spec", "size"),
    [
        ("map", {"ranks": 2, "split_batches": True}, {}, 4),
        ("map", {"ranks": 2, "split_batches": False}, {}, 8),
        ("batches", {"ranks": 2, "split_batches": True}, {}, 1),
        ("batches", {"ranks": 2, "split_batches": False}, {}, 2),
        ("batches", None, {}, 1),
    ],
)
def test_a_step_moves_the_position_by_its_rows_or_by_the_batches_that_it_takes(kind, job, spec, size):
    assert plan_of(kind, job=job, **spec).step_size == size


def test_nothing_is_opened_to_check_a_plan():
    plan_of("/no/such/folder").check()


def test_a_batch_that_cannot_be_split_is_refused_with_both_numbers():
    with pytest.raises(OptionError, match=r"batch_size=8: .* 8 rows .* 3 ranks .*multiple of 3"):
        plan_of("map", job={"ranks": 3}, batch_size=8).check()


def test_a_batch_per_rank_can_always_be_split():
    plan_of("map", job={"ranks": 3, "split_batches": False}, batch_size=8).check()


def test_uneven_portions_are_refused_where_they_cannot_be_sent():
    with pytest.raises(OptionError, match=r'even_batches=False: transport "stock".*transport="ours"'):
        plan_of("map", job={"ranks": 2, "even_batches": False}, options=STOCK).check()


UNEVEN = {"ranks": 2, "even_batches": False}


@pytest.mark.parametrize(
    ("job", "spec"),
    [
        ({**UNEVEN, "dispatch_batches": False}, {}),  # each rank reads for itself
        (UNEVEN, {}),  # each rank is sent its own portion
        ({**UNEVEN, "accumulation": 2}, {"drop_last": True}),  # no portion is uneven
        ({**UNEVEN, "ranks": 1}, {}),
        ({"ranks": 2, "accumulation": 2}, {}),
    ],
)
def test_uneven_portions_are_allowed_where_they_do_no_harm(job, spec):
    plan_of("map", job=job, **spec).check()


@pytest.mark.parametrize("mode", [True, False])
def test_uneven_portions_are_refused_together_with_gradient_accumulation(mode):
    with pytest.raises(OptionError, match="gradients that are accumulated"):
        plan_of("map", job={**UNEVEN, "dispatch_batches": mode, "accumulation": 2}).check()


def test_even_batches_can_be_overridden_for_an_iteration():
    plan = plan_of("map", job={"ranks": 2})
    other = plan.evened(even_batches=False)
    assert (plan.job.even_batches, other.job.even_batches) == (True, False)
    assert plan.evened(even_batches=True) is plan


@pytest.mark.parametrize(
    ("job", "options", "words"),
    [({"accumulation": 2}, {}, "gradients that are accumulated"), ({}, STOCK, 'transport "stock"')],
)
def test_an_override_that_cannot_work_is_ignored_with_a_warning_of_the_main_process(caplog, job, options, words):
    plan = plan_of("map", job={"ranks": 2, **job}, options=options)
    assert plan.evened(even_batches=False) is plan
    [record] = caplog.records
    assert "join_uneven_inputs" in record.getMessage()
    assert words in record.getMessage()
    other = plan_of("map", job={"ranks": 2, "rank": 1, **job}, options=options)
    assert other.evened(even_batches=False) is other
    assert len(caplog.records) == 1


@pytest.mark.parametrize(("job", "options"), [(None, {}), ({}, STOCK)])
def test_workers_share_a_sequence_out_only_where_ours_dispatches_it(job, options):
    with pytest.raises(OptionError, match=r"workers=2: only dispatch mode .*use workers=0"):
        plan_of("sequence", job=job, options={"workers": 2, **options}).check()
    plan_of("sequence", job={}, options={"workers": 2}).check()


def test_workers_are_refused_for_an_iterable_that_does_not_know_of_them():
    spec = BatchSpec(batch_size=4)
    options = StreamOptions(workers=2)
    plan = Plan(SequenceSource([1, 2], spec=spec), spec, options, None, Job(), with_accelerator=True)
    with pytest.raises(OptionError, match="workers=2: each worker would read all of this source"):
        plan.check()


@pytest.mark.parametrize(("job", "options"), [(SHARD, {}), ({}, STOCK)])
def test_finished_batches_are_sent_by_our_dispatcher_only(job, options):
    with pytest.raises(OptionError, match=r"batch_size=None|mode='shard'"):
        plan_of("batches", job=job, options=options).check()
    plan_of("batches", job={}).check()
    plan_of("batches").check()


def test_finished_batches_have_no_size():
    plan = plan_of("batches", job={})
    with pytest.raises(TypeError, match="their size is not known"):
        plan.global_batch  # noqa: B018 - asking is the test


# --- where it is decoded ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "job", "options", "linked", "where"),
    [
        ("packed", {}, {}, True, "ranks"),
        ("packed", {}, {"decode_on": "reader"}, True, "reader"),
        ("packed", {}, {"workers": 2}, True, "reader"),
        ("packed", {}, STOCK, False, "reader"),
        ("packed", SHARD, {}, False, "reader"),
        ("packed", None, {}, False, "reader"),
        ("map", {}, {}, True, "reader"),
        ("sequence", {}, {}, True, "reader"),
        ("batches", None, {}, True, "reader"),
    ],
)
def test_packed_shards_are_decoded_on_the_ranks_that_ours_links(made, kind, job, options, linked, where):
    plan = plan_of(made.url if kind == "packed" else kind, job=job, options=options)
    plan.check()
    assert (plan.is_linked, plan.decodes_on) == (linked, where)


@pytest.mark.parametrize(("kind", "job", "options"), [("map", {}, {}), ("packed", SHARD, {}), ("packed", {}, STOCK)])
def test_decoding_on_the_ranks_is_refused_where_no_encoded_rows_are_sent(made, kind, job, options):
    plan = plan_of(made.url if kind == "packed" else kind, job=job, options={"decode_on": "ranks", **options})
    with pytest.raises(OptionError, match="decode_on='ranks': needs packed shards"):
        plan.check()


def test_decoding_on_the_ranks_needs_no_workers(made):
    with pytest.raises(OptionError, match=r"workers=2: .*nothing to do"):
        plan_of(made.url, job={}, options={"decode_on": "ranks", "workers": 2}).check()


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


# --- places and schedules --------------------------------------------------------------------------------------


def test_a_place_of_packed_shards_tells_which_data_it_is_of(made):
    place = plan_of(made.url).place(3, 8)
    assert (place.epoch, place.position) == (3, 8)
    assert place.digest != UNKNOWN
    assert plan_of("map").place(0, 0).digest == UNKNOWN


def test_a_place_comes_back(made):
    plan = plan_of(made.url)
    place = plan.place(3, 8)
    assert plan.restored(place.to_dict(), strict=True) == place


@pytest.mark.parametrize(("spec", "field"), [({"seed": 1}, "seed"), ({"shuffle": None}, "shuffle")])
def test_a_place_of_another_order_is_refused(made, spec, field):
    with pytest.raises(OptionError, match=rf"state\['{field}'\]=.*another order"):
        plan_of(made.url).restored(plan_of(made.url, **spec).place(0, 4).to_dict(), strict=True)


def test_ranks_that_differ_in_anything_that_makes_a_step_have_other_facts(made):
    plan = plan_of(made.url, job={})
    facts = agreed(plan, Point(0, 0))
    others = [
        agreed(plan, Point(1, 0)),
        agreed(plan, Point(0, 4)),
        agreed(plan_of(made.url, job={}, batch_size=8), Point(0, 0)),
        agreed(plan_of(made.url, job={}, seed=1), Point(0, 0)),
        agreed(plan_of(made.url, job={}, options={"prefetch_steps": 3}), Point(0, 0)),
        agreed(plan.evened(even_batches=False), Point(0, 0)),
    ]
    assert [other == facts for other in others] == [False] * len(others)
    marks = [None, Bookmark(4, b"x"), Bookmark(4, b"y"), Bookmark(3, b"x")]
    assert len({str(agreed(plan, Point(0, 4, mark))) for mark in marks}) == len(marks)
    assert agreed(plan_of(made.url, job={}), Point(0, 0)) == facts


@pytest.mark.parametrize(
    ("job", "options", "steps"),
    [
        ({}, {"epochs": 1}, 5),
        ({}, {"epochs": 3}, 15),
        ({"accumulation": 2}, {"epochs": 3}, 9),  # 5 steps are 2 + 2 + 1
        ({"accumulation": 2}, {"epochs": 3, "accumulation": 1}, 15),
        ({"ranks": 2}, {"epochs": 2}, 10),
        ({"ranks": 2, "split_batches": False}, {"epochs": 2}, 12),  # 3 steps, each counted for both ranks
    ],
)
def test_the_steps_of_a_schedule_are_those_of_the_optimizer_times_the_ranks_without_split(job, options, steps):
    asked = {"accumulation": None, **options}
    assert plan_of("map", job=job).scheduler_steps(asked["epochs"], asked["accumulation"]) == steps


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"epochs": 1.5}, {"accumulation": 0}, {"accumulation": True}])
def test_a_schedule_of_no_steps_is_refused(wrong):
    asked = {"epochs": 1, "accumulation": 1, **wrong}
    with pytest.raises(OptionError, match=next(iter(wrong))):
        plan_of("map").scheduler_steps(asked["epochs"], asked["accumulation"])


def test_nobody_knows_the_schedule_of_a_source_without_a_length():
    with pytest.raises(TypeError, match="does not tell its length"):
        plan_of("sequence").scheduler_steps(1, None)
