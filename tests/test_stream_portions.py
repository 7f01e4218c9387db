"""Portions of foreign sources, for ranks that are but a number here."""

from itertools import count

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from packed import SIZE, make_packed, number_of
from ranks import left_behind
from shards.dataset import DatasetReader
from stream.bookmarks import Bookmarks
from stream.collate import CollateOptions, Collator
from stream.cuts import NO_ROWS, Cut
from stream.errors import SourceError
from stream.options import BatchSpec
from stream.order import Order
from stream.packed import PackedSource
from stream.portions import EpochRows, Pace, batch_portions, map_portions, sequence_portions, source_batches
from stream.resize import ResizeSpec
from stream.schedule import Schedule
from stream.sources import BatchSource, MapSource, SequenceSource

SAMPLES = 20
HERE = Pace()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_packed(tmp_path_factory.mktemp("packed"), SAMPLES)


def collator(collate=list, threads=1):
    return Collator(CollateOptions(ResizeSpec(*SIZE), threads, collate=collate))


def sequence(rows):
    return SequenceSource(rows, spec=BatchSpec(batch_size=1))


def row_portions(source, cut, *, collate=list, pace=HERE, epoch=0, start=0):
    rows = sum(source.shard_rows())
    order = Order([rows], shuffle=None, seed=0, epoch=epoch, window_shards=1)
    schedule = Schedule(
        rows,
        global_batch=cut.global_batch,
        ranks=cut.portions,
        drop_last=cut.drop_last,
        even_batches=cut.even_batches,
        start=start,
    )
    return map_portions(EpochRows(source, order, schedule, cut.portions, epoch), collator(collate), pace)


def sequence_steps(rows, cut, *, collate=list, pace=HERE, epoch=0, start=0):
    return sequence_portions(sequence(rows), cut, collator(collate), pace, epoch=epoch, bookmarks=Bookmarks(start))


MAKERS = {
    "rows": lambda rows, cut, **how: row_portions(MapSource(rows), cut, **how),
    "sequence": sequence_steps,
}
both_makers = pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)


def check(steps, rows, cut, *, start=0, padding=None):
    """Every row exactly once, padding only at the end and of the epoch's first rows, equal sizes, the right ends."""
    left = rows - start
    flat = [row for step in steps for portion in step.portions if portion for row in portion]
    real = left - left % cut.global_batch if cut.drop_last else left
    assert flat[:real] == list(range(start, start + real))
    first = list(range(min(rows, cut.portions))) if padding is None else padding
    assert flat[real:] == [first[place % len(first)] for place in range(len(flat) - real)]
    if cut.even_batches or cut.drop_last:
        assert all(len({len(portion) for portion in step.portions}) == 1 for step in steps)
    else:
        assert len(flat) == real
    assert sum(step.real_rows for step in steps) == real
    for number, step in enumerate(steps):
        following = [later.portions for later in steps[number + 1 :]]
        assert step.last == [not any(later[portion] for later in following) for portion in range(cut.portions)]
        assert step.position_after == start + sum(done.real_rows for done in steps[: number + 1])


@settings(deadline=None, max_examples=80)
@given(
    rows=st.integers(0, 40),
    portions=st.integers(1, 5),
    share=st.integers(1, 4),
    drop_last=st.booleans(),
    even=st.booleans(),
    data=st.data(),
)
def test_every_row_comes_exactly_once_and_padding_only_at_the_end(rows, portions, share, drop_last, even, data):
    cut = Cut(share * portions, portions, drop_last, even)
    start = data.draw(st.integers(0, rows))
    for maker in MAKERS.values():
        check(list(maker(range(rows), cut, start=start)), rows, cut, start=start)


@both_makers
def test_one_row_on_four_ranks_is_four_rows(maker):
    [step] = maker(range(1), Cut(8, 4))
    assert step.portions == [[0], [0], [0], [0]]
    assert (step.real_rows, step.last) == (1, [True] * 4)


@both_makers
@pytest.mark.parametrize(("rows", "drop_last"), [(0, False), (0, True), (7, True)])
def test_an_empty_source_or_less_than_a_step_is_an_empty_epoch(maker, rows, drop_last):
    assert list(maker(range(rows), Cut(8, 4, drop_last))) == []


@both_makers
def test_uneven_portions_end_at_their_own_steps(maker):
    first, second = maker(range(6), Cut(4, 4, even_batches=False))
    assert first.last == [False, False, True, True]
    assert second.portions == [[4], [5], NO_ROWS, NO_ROWS]
    assert second.last == [True] * 4


@both_makers
def test_each_portion_is_collated_for_itself(maker):
    """What collating makes need not have the rows along its first dimension, and is never cut."""

    def patches(rows):
        return {"patches": torch.cat([torch.full((row + 1, 3), row) for row in rows]), "rows": rows}

    found = [portion for step in maker(range(7), Cut(4, 2), collate=patches) for portion in step.portions]
    assert [len(portion["patches"]) for portion in found] == [3, 7, 11, 8]  # the last one is padded with row 0


@both_makers
def test_lists_of_tensors_stay_whole(maker):
    images = [torch.full((3, 2 + number, 4), number) for number in range(4)]
    [step] = maker(images, Cut(4, 2))
    assert [[image.shape[1] for image in portion] for portion in step.portions] == [[2, 3], [4, 5]]


@both_makers
def test_portions_padded_to_their_longest_row_differ_in_size(maker):
    def padded(rows):
        return torch.nn.utils.rnn.pad_sequence([torch.ones(row + 1) for row in rows], batch_first=True)

    [step] = maker(range(4), Cut(4, 2), collate=padded)
    assert [portion.shape for portion in step.portions] == [(2, 2), (2, 4)]


@both_makers
def test_scalar_tensors_go_as_they_are(maker):
    [step] = maker(range(4), Cut(4, 2), collate=lambda rows: {"sum": torch.tensor(sum(rows))})
    assert [portion["sum"].item() for portion in step.portions] == [1, 5]


@both_makers
@pytest.mark.parametrize("taken", [0, 1, 2])
def test_a_maker_that_is_left_early_leaves_no_threads(maker, taken):
    steps = maker(range(40), Cut(4, 2))
    for _ in range(taken):
        next(steps)
    steps.close()
    assert left_behind() == []


def fails_at(row):
    def collate(rows):
        if row in rows:
            raise ValueError("no")
        return rows

    return collate


@both_makers
@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_a_collate_function_comes_behind_the_good_steps(maker, workers):
    rows = range(40) if maker is MAKERS["rows"] else Shared(40)
    steps = maker(rows, Cut(4, 2), collate=fails_at(9), pace=Pace(workers))
    assert [next(steps).portions for _ in range(2)] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    with pytest.raises(ValueError, match=r"^no$") as caught:
        next(steps)
    assert left_behind() == []  # though the error is held
    assert caught.value.args == ("no",)


class Failing(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, row):
        if row == 9:
            raise OSError("the connection was reset")
        return row


class FailingSequence(IterableDataset):
    def __iter__(self):
        yield from range(9)
        raise OSError("the connection was reset")


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("maker", "source"), [(MAKERS["rows"], Failing()), (MAKERS["sequence"], FailingSequence())])
def test_an_error_of_a_source_comes_behind_the_good_steps(maker, source, workers):
    steps = maker(source, Cut(4, 2), pace=Pace(workers))
    assert [next(steps).last for _ in range(2)] == [[False, False]] * 2
    with pytest.raises(OSError, match="the connection was reset"):
        next(steps)
    assert left_behind() == []


def test_a_sequence_without_end_is_read_no_farther_than_ahead():
    taken = []

    class Endless(IterableDataset):
        def __iter__(self):
            return (taken.append(number) or number for number in count())

    steps = sequence_steps(Endless(), Cut(2, 1), pace=Pace(steps=1))
    assert next(steps).portions == [[0, 1]]
    steps.close()
    assert len(taken) <= 3 + 2 + 2  # handed out and its look ahead, ahead, and waiting for a place
    assert left_behind() == []


# --- our own collator -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_packed_rows_are_decoded_for_each_portion(made, workers):
    source = PackedSource(DatasetReader(made.url), spec=BatchSpec(batch_size=6))
    steps = list(row_portions(source, Cut(6, 2), collate=None, pace=Pace(workers)))
    found = [[number_of(image) for image in portion["image"]] for step in steps for portion in step.portions]
    assert found == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11], [12, 13, 14], [15, 16, 17], [18], [19]]


def test_a_step_says_what_was_read_for_it(made):
    assert next(sequence_steps(range(3), Cut(2, 1))).where == "row 0 of the source"


# --- workers ----------------------------------------------------------------------------------------------------


class Shared(IterableDataset):
    """Rows that torch's workers share out, each as many as `uneven` says."""

    def __init__(self, rows, uneven=()):
        self.rows, self.uneven, self.epoch = rows, uneven, None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        info = get_worker_info()
        if info is None:
            yield from range(self.rows)
        elif self.uneven:
            yield from range(sum(self.uneven[: info.id]), sum(self.uneven[: info.id + 1]))
        else:
            yield from range(info.id, self.rows, info.num_workers)


@pytest.mark.parametrize("cut", [Cut(6, 3), Cut(6, 3, drop_last=True), Cut(6, 3, even_batches=False)])
def test_two_workers_give_the_same_rows_by_their_numbers_as_none(cut):
    found = list(row_portions(MapSource(range(22)), cut, pace=Pace(2)))
    check(found, 22, cut)
    assert left_behind() == []


@pytest.mark.parametrize("uneven", [(13, 8), (0, 21), (20, 1), (3, 18)])
def test_no_row_is_lost_when_workers_end_unevenly(uneven):
    steps = list(sequence_steps(Shared(21, uneven), Cut(4, 2), pace=Pace(2)))
    assert [step.real_rows for step in steps] == [4, 4, 4, 4, 4, 1]
    flat = [row for step in steps for portion in step.portions for row in portion]
    assert sorted(flat[:21]) == list(range(21))
    assert all(len(portion) == 2 for step in steps[:-1] for portion in step.portions)
    assert [step.last for step in steps] == [[False, False]] * 5 + [[True, True]]
    assert left_behind() == []


def test_workers_pass_over_the_first_steps_without_making_them():
    steps = list(sequence_steps(Shared(21), Cut(4, 2), pace=Pace(2), start=8))
    whole = list(sequence_steps(Shared(21), Cut(4, 2), pace=Pace(2)))
    assert steps == whole[2:]


@pytest.mark.parametrize("taken", [0, 1])
@both_makers
def test_a_maker_with_workers_that_is_left_early_leaves_no_processes(maker, taken):
    steps = maker(range(40) if maker is MAKERS["rows"] else Shared(40), Cut(4, 2), pace=Pace(2))
    for _ in range(taken):
        next(steps)
    steps.close()
    assert left_behind() == []


class Epochs(Dataset):
    """Tells in each row the epoch that it heard of."""

    epoch = None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 4

    def __getitem__(self, row):
        return self.epoch


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_hears_of_each_epoch(workers):
    source = MapSource(Epochs())
    for epoch in (0, 1, 5):
        assert [s.portions for s in row_portions(source, Cut(4, 1), pace=Pace(workers), epoch=epoch)] == [[[epoch] * 4]]


# --- batches that their source made -------------------------------------------------------------------------------


def made_batches(batches, cut, *, split=False, start=0):
    return list(batch_portions(batches, cut, split=split, bookmarks=Bookmarks(start)))


@settings(deadline=None, max_examples=150)
@given(
    batches=st.integers(0, 20), portions=st.integers(1, 5), drop_last=st.booleans(), even=st.booleans(), data=st.data()
)
def test_each_batch_goes_to_one_rank_uncut(batches, portions, drop_last, even, data):
    start = data.draw(st.integers(0, batches))
    cut = Cut(1, portions, drop_last, even)
    steps = made_batches([[number] for number in range(batches)], cut, start=start)
    check(steps, batches, cut._replace(global_batch=portions), start=start)


def test_whole_batches_may_differ_in_all_and_tell_their_rows_where_they_can():
    batches = [
        {"ids": torch.zeros(3, 5)},
        {"ids": torch.zeros(2, 7)},
        {"patches": torch.zeros(9), "ids": torch.zeros(2)},
    ]
    steps = made_batches(batches, Cut(1, 2))
    assert [step.real_rows for step in steps] == [5, -1]
    assert steps[1].portions[0] is batches[2]
    # A copy: rank 0 has the first batch itself by now, and may have changed it
    assert torch.equal(steps[1].portions[1]["ids"], batches[0]["ids"])
    assert steps[1].portions[1]["ids"].data_ptr() != batches[0]["ids"].data_ptr()


@settings(deadline=None, max_examples=150)
@given(shares=st.lists(st.integers(1, 3), max_size=6), tail=st.integers(0, 9), portions=st.integers(1, 4))
def test_split_batches_are_cut_in_equal_slices_and_only_the_last_is_padded(shares, tail, portions):
    sizes = [share * portions for share in shares] + [tail]
    rows = iter(torch.arange(100))
    batches = [torch.stack([next(rows) for _ in range(size)]) for size in sizes if size]
    steps = made_batches(batches, Cut(1, portions), split=True)
    for batch, step in zip(batches, steps, strict=True):
        flat = torch.cat(step.portions).tolist()
        assert flat[: step.real_rows] == batch.tolist()
        assert len({len(portion) for portion in step.portions}) == 1
        assert set(flat[step.real_rows :]) <= set(batch.tolist())
    assert [step.last for step in steps] == [[step is steps[-1]] * portions for step in steps]


def test_a_batch_whose_columns_disagree_is_sent_whole_or_refused():
    batch = {"image_grid_thw": torch.zeros(2, 3), "pixel_values": torch.zeros(96, 4)}
    assert made_batches([batch, batch], Cut(1, 2))[0].portions[0] is batch
    with pytest.raises(SourceError, match=r"batch\['pixel_values'\]"):
        made_batches([batch], Cut(1, 2), split=True)


def test_the_first_batches_are_passed_over():
    batches = [torch.full((4,), number) for number in range(5)]
    steps = made_batches(batches, Cut(1, 2), split=True, start=3)
    assert [step.portions[0].tolist() for step in steps] == [[3, 3], [4, 4]]
    assert [step.position_after for step in steps] == [4, 5]


class SharedBatches(Shared):
    def __iter__(self):
        return (torch.tensor([row, row]) for row in super().__iter__())


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_may_be_made_by_workers(workers):
    source = BatchSource(SharedBatches(9))
    steps = list(batch_portions(source_batches(source, Pace(workers), epoch=0), Cut(1, 2), split=True))
    assert sorted(step.portions[0].item() for step in steps) == list(range(9))
    assert left_behind() == []


def test_a_batch_source_that_is_left_early_leaves_nothing():
    source = BatchSource(DataLoader(Shared(40), batch_size=2, num_workers=2))
    steps = batch_portions(source_batches(source, Pace(), epoch=0), Cut(1, 2), split=False)
    next(steps)
    steps.close()
    assert left_behind() == []


@pytest.mark.parametrize("start", [0, 3])
def test_a_batch_that_cannot_be_split_is_named_by_its_number_in_the_epoch(start):
    batches = [[0, 1]] * 5 + [[0, 1, 2]] + [[0, 1]] * 2
    with pytest.raises(SourceError, match="batch 5 of the source"):
        made_batches(batches, Cut(1, 2), split=True, start=start)
