"""Steps as finished batches: cut, collated, packed for the stock dispatcher, errors in their places."""

import functools
import threading
from collections import UserDict, deque
from itertools import count

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from packed import SIZE, key_of, make_packed, number_of
from ranks import left_behind
from shards.dataset import DatasetReader
from stream.bookmarks import Bookmarks
from stream.collate import CollateOptions, Collator
from stream.errors import DecodeError, SourceError
from stream.options import BatchSpec
from stream.order import Order
from stream.packed import PackedSource
from stream.plain import unpack
from stream.resize import ResizeSpec
from stream.schedule import Schedule
from stream.sharded import Failed, Loaded, ShardDataset, StepSampler
from stream.sources import SequenceSource
from stream.steps import Ahead, Cut, Finish, LoadedSteps, Told, named, row_steps, sequence_steps, unnamed

SAMPLES = 20
AHEAD = Ahead(2, 2**20)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_packed(tmp_path_factory.mktemp("packed"), SAMPLES)


def finish_of(collate=list, packed_for=None, threads=1):
    return Finish(Collator(CollateOptions(ResizeSpec(*SIZE), threads, collate=collate)), packed_for)


def loaded_rows(made, finish, ahead=AHEAD):
    dataset = ShardDataset(PackedSource(DatasetReader(made.url), spec=BatchSpec(batch_size=6)))
    order = Order([SAMPLES], shuffle=None, seed=0, epoch=0, window_shards=1)
    schedule = Schedule(SAMPLES, global_batch=6, ranks=2, drop_last=False)
    return LoadedSteps(row_steps(dataset, StepSampler(order, schedule, epoch=0, rank=None), finish, ahead), finish)


def loaded_sequence(rows, cut, finish, ahead=AHEAD):
    source = SequenceSource(rows, spec=BatchSpec(batch_size=1))
    return LoadedSteps(sequence_steps(source, cut, finish, ahead, epoch=0), finish)


def raises(error):
    def collate(rows):
        raise error

    return collate


# --- steps of a row source -------------------------------------------------------------------------------------


def test_a_row_source_gives_its_steps_in_order(made):
    batches = list(loaded_rows(made, finish_of(collate=None, threads=2)))
    expected = [*range(SAMPLES)]
    assert [number_of(image) for batch in batches for image in batch["image"]] == expected
    assert [len(batch["key"]) for batch in batches] == [6, 6, 6, 2]
    assert left_behind() == []


def test_packed_steps_bring_the_number_of_their_real_rows(made):
    found = [unpack(step) for step in loaded_rows(made, finish_of(collate=None, packed_for=2))]
    assert [real for _, real in found] == [6, 6, 6, 2]
    assert [key for batch, _ in found for key in batch["key"]] == [key_of(number) for number in range(SAMPLES)]


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_steps_that_are_left_early_leave_no_threads(made, taken):
    steps = iter(loaded_rows(made, finish_of(collate=None, threads=2)))
    for _ in range(taken):
        next(steps)
    del steps
    assert left_behind() == []


def test_a_small_budget_of_bytes_still_gives_every_step(made):
    assert len(list(loaded_rows(made, finish_of(), Ahead(3, 1)))) == 4


# --- steps of a sequence ---------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(rows=st.integers(1, 40), share=st.integers(1, 5), ranks=st.integers(1, 4), drop_last=st.booleans())
def test_a_sequence_is_cut_as_a_source_of_known_length_would_be(rows, share, ranks, drop_last):
    schedule = Schedule(rows, global_batch=share * ranks, ranks=ranks, drop_last=drop_last)
    found = list(loaded_sequence(range(rows), Cut(share * ranks, ranks, drop_last), finish_of()))
    last = schedule.steps - 1
    assert [told[:3] for told in found] == [
        (schedule.positions(step).tolist(), schedule.real_rows(step), step == last) for step in range(schedule.steps)
    ]


@pytest.mark.parametrize(("rows", "drop_last"), [(0, False), (0, True), (3, True)])
def test_an_epoch_without_steps_is_empty(rows, drop_last):
    assert list(loaded_sequence(range(rows), Cut(4, 2, drop_last), finish_of())) == []


@pytest.mark.parametrize(("rows", "drop_last"), [(0, False), (3, True)])
def test_packed_an_epoch_without_steps_is_one_step_without_real_rows(rows, drop_last):
    [step] = loaded_sequence(range(rows), Cut(4, 2, drop_last), finish_of(packed_for=2))
    assert {len(tensor) for tensor in step.values()} == {2}
    assert unpack(step) == ({}, 0)


def test_a_sequence_without_end_is_read_no_farther_than_ahead():
    taken = []
    rows = (taken.append(number) or number for number in count())
    steps = iter(loaded_sequence(rows, Cut(2, 1, drop_last=False), finish_of(), Ahead(1, 2**20)))
    assert next(steps).batch == [0, 1]
    steps.close()
    assert len(taken) <= 2 + 2 + 2 + 1  # handed out, ahead, waiting for a place, and the row that tells of an end
    assert left_behind() == []


def test_a_sequence_can_be_taken_up_behind_some_of_its_rows():
    source = SequenceSource(range(7), spec=BatchSpec(batch_size=1))
    cut = Cut(3, 1, drop_last=False)
    steps = LoadedSteps(sequence_steps(source, cut, finish_of(), AHEAD, epoch=0, bookmarks=Bookmarks(3)), finish_of())
    assert list(steps) == [Told([3, 4, 5], 3, last=False), Told([6], 1, last=True)]


def test_a_sequence_that_fails_gives_its_whole_steps_first():
    def rows():
        yield from range(5)
        raise OSError("the connection was reset")

    *good, failed = loaded_sequence(rows(), Cut(2, 1, drop_last=False), finish_of())
    assert [told.batch for told in good] == [[0, 1], [2, 3]]
    assert isinstance(failed.error, OSError)
    assert left_behind() == []


# --- errors ----------------------------------------------------------------------------------------------------


def test_an_error_of_a_collate_function_is_a_value_in_the_batchs_place():
    error = ValueError("no")
    assert finish_of(raises(error))(Loaded([1], 1)) == Failed(error)


def test_an_error_of_reading_is_handed_on():
    error = OSError("no")
    assert finish_of()(Failed(error)) == Failed(error)


@pytest.mark.parametrize("failed", [Failed(DecodeError("a.jpg", "empty file")), Loaded([1], 1)])
def test_a_packed_error_reaches_every_rank_with_its_words(failed):
    step = finish_of(raises(DecodeError("a.jpg", "empty file")), packed_for=3)(failed)
    for rank in range(3):
        with pytest.raises(SourceError, match=r"DecodeError: image a\.jpg: empty file"):
            unpack({name: tensor[rank : rank + 1] for name, tensor in step.items()})


def test_a_packed_error_of_foreign_code_says_where_it_was_raised():
    step = finish_of(raises(KeyError("pixel_values")), packed_for=1)(Loaded([1], 1))
    with pytest.raises(SourceError, match=r"KeyError: 'pixel_values' \(raised at .*steps\.py:\d+ in collate\)"):
        unpack(step)


def test_a_batch_that_cannot_be_packed_is_an_error_that_says_what():
    step = finish_of(lambda rows: {"ids": {1, 2}}, packed_for=1)(Loaded([1], 1))
    with pytest.raises(SourceError, match=r"batch\['ids'\]: is of type set"):
        unpack(step)


def test_a_stop_iteration_is_no_silent_end():
    failed = finish_of(raises(StopIteration()))(Loaded([1], 1))
    assert isinstance(failed.error, SourceError)
    assert "raised StopIteration" in str(failed.error)


class UnsendableError(Exception):
    """It cannot be sent between processes: it holds a lock."""

    def __init__(self):
        super().__init__(threading.Lock())

    def __str__(self):
        return "has a lock"


class UnmakeableError(Exception):
    """It can be sent, but not made again from what was sent."""

    def __init__(self, one, two):
        super().__init__(f"{one} {two}")


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (DecodeError("a.jpg", "empty file"), DecodeError, r"^image a\.jpg: empty file"),
        (ValueError("no"), ValueError, "^no$"),
        (UnsendableError(), SourceError, "^a worker process: UnsendableError: has a lock"),
        (UnmakeableError(1, 2), SourceError, "^a worker process: UnmakeableError: 1 2"),
    ],
)
def test_an_error_in_a_worker_process_comes_back(error, kind, words):
    finish = finish_of(raises(error))
    loader = DataLoader([1], batch_size=1, num_workers=1, collate_fn=lambda rows: finish(Loaded(rows, 1)), timeout=60)
    [failed] = loader
    with pytest.raises(kind, match=words):
        raise failed.error


# --- batches that are no mappings ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "batch",
    [
        torch.arange(3),
        [torch.arange(3), ["a", "b", "c"]],
        (torch.arange(3), [b"a", b"b", b"c"]),
        {"one": {"two": [1, 2, 3]}},
        {},
        (),
        [],
        [[1, 2, 3], (4, 5, 6)],
    ],
)
def test_a_batch_of_any_form_comes_back(batch):
    step = finish_of(lambda rows: batch, packed_for=1)(Loaded([1, 2, 3], 3))
    found = unnamed(unpack(step)[0])
    assert type(found) is type(batch)
    assert plain(found) == plain(batch)


def test_a_mapping_comes_back_as_a_dict():
    assert unnamed(named(UserDict(a=1))) == {"a": 1}


def test_a_batch_that_is_neither_is_refused_by_its_type():
    step = finish_of(lambda rows: deque([1, 2, 3]), packed_for=1)(Loaded([1, 2, 3], 3))
    with pytest.raises(SourceError, match="is of type deque"):
        unpack(step)


@functools.singledispatch
def plain(value):
    return value


@plain.register
def _(value: torch.Tensor):
    return value.tolist()


@plain.register
def _(value: list):
    return list(map(plain, value))


@plain.register
def _(value: tuple):
    return tuple(map(plain, value))
