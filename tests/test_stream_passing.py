"""Batches on their way: through torch's loader, failures raised in their place, nothing started early."""

import pytest
import torch
from torch.utils.data import IterableDataset

from ranks import left_behind, soon_left_behind
from stream.errors import SourceError
from stream.passing import LoaderParts, Passing, plain_passing, same
from stream.plain import pack, pack_fault
from stream.sharded import Failed
from stream.steps import Told


class Batches(IterableDataset):
    """Finished batches; notes when it is begun and when it is ended."""

    def __init__(self, batches):
        self.batches, self.notes = batches, []

    def __iter__(self):
        self.notes.append("begun")
        try:
            yield from self.batches
        finally:
            self.notes.append("ended")


def passing_of(*batches, **options):
    return Passing(list(batches), **options)


def test_batches_pass_through_as_they_are():
    first, second = {"a": 1}, [torch.ones(2)]
    assert [found for found, _ in passing_of(first, second)] == [first, second]


def test_nothing_begins_before_the_first_next():
    batches = Batches([1, 2])
    passing = plain_passing(LoaderParts(dataset=batches))
    assert batches.notes == []
    assert next(passing) == (1, None)
    assert batches.notes == ["begun"]
    passing.close()
    passing.close()
    assert batches.notes == ["begun", "ended"]
    assert list(passing) == []


def test_a_passing_that_was_closed_first_never_begins():
    batches = Batches([1, 2])
    passing = plain_passing(LoaderParts(dataset=batches))
    passing.close()
    assert list(passing) == []
    assert batches.notes == []


def test_a_failure_is_raised_in_its_place():
    passing = passing_of("good", Failed(OSError("no")), "never")
    assert next(passing) == ("good", None)
    with pytest.raises(OSError, match=r"^no$"):
        next(passing)


def test_packed_steps_are_unpacked_with_their_real_rows():
    step = pack({"key": ["a", "b", "a"]}, rows=3, real_rows=2)
    assert next(passing_of(step, packed=True)) == ({"key": ["a", "b", "a"]}, 2)


def test_a_packed_fault_is_raised():
    with pytest.raises(SourceError, match="the disk is gone"):
        next(passing_of(pack_fault(2, "the disk is gone"), packed=True))


def test_a_step_without_real_rows_ends_the_epoch():
    assert list(passing_of(pack({}, rows=2, real_rows=0), packed=True)) == []


def test_batches_that_are_wanted_on_the_cpu_are_brought_there():
    batch = {"image": torch.ones(2, 3), "more": {"texts": ["a", "b"]}, "list": [torch.ones(1), torch.ones(2)]}
    [(found, _)] = passing_of(pack(batch, rows=2, real_rows=2), packed=True, to_cpu=True)
    assert found["more"] == batch["more"]
    assert torch.equal(found["image"], batch["image"])
    assert [list(item) for item in found["list"]] == [[1], [1, 1]]


def test_alone_nobody_needs_to_know_the_last_batch():
    passing = passing_of("only")
    next(passing)
    assert passing.is_last() is False
    passing.set_remainder(1)


def test_alone_a_sequence_tells_its_rows_and_its_last_batch():
    passing = passing_of(Told("first", 4, last=False), Told("second", 3, last=True))
    assert [(batch, rows, passing.is_last()) for batch, rows in passing] == [("first", 4, False), ("second", 3, True)]


class Doubles(torch.utils.data.Dataset):
    def __getitems__(self, numbers):
        return [2 * number for number in numbers]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_and_a_dataset_make_batches_with_and_without_workers(workers):
    parts = LoaderParts(
        dataset=Doubles(), sampler=[[0, 1], [2]], finish=same, workers=workers, prefetch=2 if workers else None
    )
    assert [batch for batch, _ in plain_passing(parts)] == [[0, 2], [4]]
    assert soon_left_behind() == []


def test_worker_processes_end_with_close():
    parts = LoaderParts(dataset=Doubles(), sampler=[[n] for n in range(100)], finish=same, workers=2, prefetch=2)
    passing = plain_passing(parts)
    assert left_behind() == []
    next(passing)
    assert len(left_behind()) == 2
    passing.close()
    assert left_behind() == []


def test_torchs_global_generator_is_not_drawn_from():
    before = torch.get_rng_state()
    list(plain_passing(LoaderParts(dataset=Batches([1]))))
    assert torch.equal(torch.get_rng_state(), before)
