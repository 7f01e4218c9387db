"""What is gathered for a description."""

import pytest
import torch
from torch.utils.data import IterableDataset

from packed import SIZE, make_packed
from shards.dataset import DatasetReader
from stream.facts import facts_of
from stream.job import Job
from stream.options import BatchSpec, StreamOptions
from stream.packed import PackedSource
from stream.plan import Plan
from stream.sources import BatchSource, MapSource, SequenceSource

SAMPLES = 20


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(range(SAMPLES))


def facts(source, *, job=None, registered=True, reached=None, **spec):
    made = BatchSpec(**{"batch_size": 4, "image_size": SIZE, **spec})
    plan = Plan(source(made), made, StreamOptions(), None, Job(**(job or {})), with_accelerator=job is not None)
    return facts_of(plan, "train", registered=registered, reached=reached or {})


def mapped(spec):
    return MapSource(range(SAMPLES))


def sequence(spec):
    return SequenceSource(Numbers(), spec=spec)


def test_they_are_those_of_the_job():
    found = facts(mapped, job={"ranks": 4, "rank": 3, "group": 2, "even_batches": False})
    assert (found.ranks, found.rank, found.portions, found.even_batches) == (4, 3, 2, False)
    assert (found.accelerator, found.prepared) == (True, True)


def test_alone_nothing_is_linked_nor_prepared():
    found = facts(mapped, registered=False)
    assert (found.accelerator, found.prepared, found.linked, found.ranks) == (False, False, False, 1)


@pytest.mark.parametrize(
    ("said", "mode", "by_default"), [(None, "dispatch", True), (True, "dispatch", False), (False, "shard", False)]
)
def test_the_mode_is_told_and_who_chose_it(said, mode, by_default):
    found = facts(mapped, job={"dispatch_batches": said})
    assert (found.mode, found.mode_by_default, found.linked) == (mode, by_default, mode == "dispatch")


def test_sizes_are_those_of_the_schedule():
    found = facts(mapped, job={"ranks": 2, "split_batches": False})
    assert (found.global_batch, found.split_batches, found.rows, found.steps) == (8, False, SAMPLES, 3)


def test_a_sequence_has_no_sizes():
    found = facts(sequence)
    assert (found.global_batch, found.rows, found.steps) == (4, None, None)


def test_finished_batches_have_no_batch_size():
    found = facts(lambda spec: BatchSource(Numbers()), batch_size=None)
    assert (found.global_batch, found.rows, found.steps) == (None, None, None)


def test_a_source_is_named_by_its_url_or_its_class(tmp_path):
    made = make_packed(tmp_path, 4)
    assert facts(lambda spec: PackedSource(DatasetReader(made.url), spec=spec)).source == made.url
    assert facts(mapped).source == "a range"
    assert facts(sequence).source == "a Numbers"


@pytest.mark.parametrize(
    ("device", "on_device", "told"), [("cpu", True, False), ("meta", True, True), ("meta", False, False)]
)
def test_batches_are_moved_only_to_what_is_no_cpu(device, on_device, told):
    assert facts(mapped, job={"device": torch.device(device), "on_device": on_device}).on_device == told


def test_what_was_set_in_vain_and_how_ranks_are_reached_is_passed_on():
    found = facts(mapped, job={"without_effect": ("data_seed",)}, reached={1: "TCP"})
    assert (found.without_effect, found.reached) == (("data_seed",), {1: "TCP"})
