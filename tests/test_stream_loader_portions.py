"""A user's DataLoader as portions, against what torch itself makes of it."""

import pytest
import torch
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, get_worker_info

from packed import make_packed
from ranks import left_behind
from stream.cuts import NO_ROWS
from stream.errors import OptionError, SourceError
from stream.loader_portions import LoaderPortions, Splitting

# webdataset 1.0 leaves closing its tars to the garbage collection
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file <_io.BufferedReader name=.*tar:ResourceWarning")


class Rows(Dataset):
    """Rows are their numbers; with an epoch heard of, pairs of it and the number."""

    def __init__(self, rows, seen=None):
        self.rows, self.seen, self.epoch = rows, seen, None

    def __len__(self):
        return self.rows

    def __getitem__(self, row):
        if self.seen is not None:
            self.seen.append(row)
        return row if self.epoch is None else (self.epoch, row)


class Hearing(Rows):
    def set_epoch(self, epoch):
        self.epoch = epoch


class Sequence(IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        yield from range(worker, self.rows, workers)


class HearingSequence(Sequence):
    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return ((self.epoch, row) for row in super().__iter__())


def portions(loader, splitting, *, epoch=0, skip=0):
    return list(LoaderPortions(loader, splitting).begin(epoch=epoch, skip=skip))


def flat(steps):
    return [row for step in steps for portion in step.portions if portion is not NO_ROWS for row in portion]


KINDS = {
    "rows": lambda rows, **how: DataLoader(Rows(rows), collate_fn=list, **how),
    "sequence": lambda rows, **how: DataLoader(Sequence(rows), collate_fn=list, **how),
}
both_kinds = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


@settings(deadline=None, max_examples=100)
@given(
    rows=st.integers(0, 40),
    share=st.integers(1, 4),
    splitting=st.builds(Splitting, st.integers(1, 4), st.booleans(), st.booleans(), st.booleans()),
    skip=st.integers(0, 2),
)
def test_every_row_comes_exactly_once_and_padding_only_at_the_end(rows, share, splitting, skip):
    count, split, drop_last, even = splitting
    size = share * count
    step_rows = size if split else size * count
    for make in KINDS.values():
        loader = make(rows, batch_size=size, drop_last=drop_last)
        steps = portions(loader, splitting, skip=skip)
        begin = min(rows, skip * step_rows)
        left = rows - begin
        real = left - left % step_rows if drop_last else left
        found = flat(steps)
        assert found[:real] == list(range(begin, begin + real))
        assert found[real:] == [place % min(rows, count) for place in range(len(found) - real)]
        assert [step.real_rows for step in steps[:-1]] == [step_rows] * len(steps[:-1])
        if even or drop_last:
            assert all(len({len(portion) for portion in step.portions}) == 1 for step in steps)
        else:
            assert len(found) == real
        for number, step in enumerate(steps):
            following = [later.portions for later in steps[number + 1 :]]
            assert step.last == [not any(later[p] for later in following) for p in range(count)]


@pytest.mark.parametrize("seeded", [True, False])
def test_a_shuffled_loader_gives_torchs_own_order_and_leaves_the_generators_as_torch_does(seeded):
    def loader():
        generator = torch.Generator().manual_seed(5) if seeded else None
        return DataLoader(Rows(32), batch_size=8, shuffle=True, collate_fn=list, generator=generator)

    torch.manual_seed(7)
    expected = [row for batch in loader() for row in batch]
    state = torch.get_rng_state()
    torch.manual_seed(7)
    assert flat(portions(loader(), Splitting(4, split_batches=True))) == expected
    assert torch.equal(torch.get_rng_state(), state)


class Drawing(Rows):
    def __getitem__(self, row):
        return int(torch.randint(1 << 30, ()))


def test_workers_have_torchs_own_seeds():
    """One worker and portions that are whole batches: its draws come in torch's own order."""

    def loader():
        return DataLoader(Drawing(8), batch_size=2, collate_fn=list, num_workers=1)

    torch.manual_seed(7)
    expected = [row for batch in loader() for row in batch]
    torch.manual_seed(7)
    assert flat(portions(loader(), Splitting(2, split_batches=False))) == expected


def test_a_batch_that_cannot_be_split_is_refused_with_both_numbers():
    with pytest.raises(OptionError, match=r"batch_size=8: .* 8 rows cannot be split over 3 ranks"):
        LoaderPortions(DataLoader(Rows(32), batch_size=8), Splitting(3, split_batches=True))


@both_kinds
def test_each_portion_is_collated_for_itself(make):
    loader = make(8, batch_size=4)
    loader.collate_fn = lambda rows: {"patches": torch.zeros(sum(rows)), "rows": rows}
    steps = portions(loader, Splitting(2, split_batches=True))
    assert [portion["rows"] for step in steps for portion in step.portions] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [len(portion["patches"]) for step in steps for portion in step.portions] == [1, 5, 9, 13]


def test_what_is_skipped_is_not_read():
    seen = []
    loader = DataLoader(Rows(16, seen), batch_size=4, collate_fn=list)
    assert flat(portions(loader, Splitting(2, split_batches=False), skip=1)) == list(range(8, 16))
    assert seen == list(range(8, 16))


# --- samplers of the user ---------------------------------------------------------------------------------------


class Buckets:
    """A batch sampler with batches of several lengths."""

    def __init__(self, batches):
        self.batches, self.epochs = batches, []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def __iter__(self):
        return iter(self.batches)


def test_batches_of_a_batch_sampler_go_to_one_rank_each():
    sampler = Buckets([[0, 1], [2], [3, 4, 5], [6], [7]])
    steps = portions(DataLoader(Rows(8), batch_sampler=sampler, collate_fn=list), Splitting(2, split_batches=False))
    assert [step.portions for step in steps] == [[[0, 1], [2]], [[3, 4, 5], [6]], [[7], [0]]]
    assert [step.real_rows for step in steps] == [3, 4, 1]
    assert sampler.epochs == [0]


def test_batches_of_a_batch_sampler_are_split_by_their_own_size():
    sampler = Buckets([[0, 1], [2, 3, 4, 5], [6]])
    steps = portions(DataLoader(Rows(8), batch_sampler=sampler, collate_fn=list), Splitting(2, split_batches=True))
    assert [step.portions for step in steps] == [[[0], [1]], [[2, 3], [4, 5]], [[6], [6]]]
    assert [step.real_rows for step in steps] == [2, 4, 1]


def test_torchs_batch_sampler_is_taken_for_what_it_is():
    sampler = BatchSampler(SequentialSampler(range(7)), 4, drop_last=False)
    steps = portions(DataLoader(Rows(7), batch_sampler=sampler, collate_fn=list), Splitting(2, split_batches=True))
    assert [step.portions for step in steps] == [[[0, 1], [2, 3]], [[4, 5], [6, 0]]]


def test_a_batch_sampler_that_drops_its_rest_is_taken_at_its_word():
    sampler = BatchSampler(SequentialSampler(range(7)), 2, drop_last=True)
    steps = portions(DataLoader(Rows(7), batch_sampler=sampler, collate_fn=list), Splitting(2, split_batches=False))
    assert [step.portions for step in steps] == [[[0, 1], [2, 3]], [[4], [5]]]


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(0, 30),
    share=st.integers(1, 3),
    splitting=st.builds(Splitting, st.integers(1, 3), st.booleans(), st.booleans(), st.booleans()),
    own=st.sampled_from(["rows", "lists", "batches"]),
)
def test_the_number_of_steps_is_known_before(rows, share, splitting, own):
    size = share * splitting.portions
    made = {
        "rows": lambda: DataLoader(Rows(rows), batch_size=size, collate_fn=list),
        "lists": lambda: DataLoader(
            Rows(rows), batch_sampler=BatchSampler(range(rows), size, drop_last=True), collate_fn=list
        ),
        "batches": lambda: DataLoader(Batches(rows), batch_size=None),
    }
    own_portions = LoaderPortions(made[own](), splitting)
    splits_odd = own == "batches" and splitting.split_batches and splitting.portions == 3  # a batch has two rows
    assert splits_odd or len(own_portions) == len(list(own_portions.begin(epoch=0)))


@pytest.mark.parametrize("loader", [DataLoader(Sequence(4)), DataLoader(Sequence(4), batch_size=None)])
def test_the_number_of_steps_of_a_sequence_is_unknown(loader):
    with pytest.raises(TypeError, match="has no length"):
        len(LoaderPortions(loader, Splitting(1, split_batches=False)))


class FailingSampler(Buckets):
    def __iter__(self):
        yield [0, 1]
        raise OSError("the connection was reset")


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_a_sampler_comes_behind_the_good_steps(workers):
    loader = DataLoader(Rows(8), batch_sampler=FailingSampler([]), collate_fn=list, num_workers=workers)
    steps = LoaderPortions(loader, Splitting(1, split_batches=False)).begin(epoch=0)
    assert next(steps).portions == [[0, 1]]
    with pytest.raises(OSError, match="the connection was reset"):
        next(steps)
    assert left_behind() == []


# --- batches that the dataset makes -----------------------------------------------------------------------------


class Batches(Rows):
    def __getitem__(self, row):
        return {"id": torch.tensor([2 * row, 2 * row + 1])}


class BatchSequence(Sequence):
    def __iter__(self):
        return ({"id": torch.tensor([2 * row, 2 * row + 1])} for row in super().__iter__())


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", [Batches(5), BatchSequence(5)])
@pytest.mark.parametrize("split", [True, False])
def test_a_dataset_that_makes_batches_gives_its_own_size(dataset, workers, split):
    loader = DataLoader(dataset, batch_size=None, num_workers=workers)
    steps = portions(loader, Splitting(2, split_batches=split))
    found = [row for step in steps for portion in step.portions for row in portion["id"].tolist()]
    assert len(steps) == (5 if split else 3)
    assert sorted(found[:10]) == list(range(10))
    assert found[10:] == ([] if split else [0, 1])
    assert steps[-1].last == [True, True]
    assert left_behind() == []


class Own(DataLoader):
    """A loader whose iteration nobody but itself knows."""

    def __iter__(self):
        return iter([[10, 11], [12, 13]])


def test_a_loader_with_an_iteration_of_its_own_is_taken_at_its_word():
    steps = portions(Own(Rows(4)), Splitting(2, split_batches=False))
    assert [step.portions for step in steps] == [[[10, 11], [12, 13]]]


def test_a_batch_that_cannot_be_cut_is_refused_by_name():
    class Patches(Rows):
        def __getitem__(self, row):
            return {"id": torch.zeros(2), "patches": torch.zeros(5)}

    with pytest.raises(SourceError, match=r"batch\['patches'\]"):
        portions(DataLoader(Patches(2), batch_size=None), Splitting(2, split_batches=True))


# --- workers ----------------------------------------------------------------------------------------------------


@both_kinds
@pytest.mark.parametrize("split", [True, False])
def test_workers_lose_no_row_and_double_none(make, split):
    steps = portions(make(23, batch_size=4, num_workers=2), Splitting(2, split))
    found, real = flat(steps), sum(step.real_rows for step in steps)
    assert sorted(found[:23]) == list(range(23))
    assert real == 23
    assert {len(portion) for step in steps[:-1] for portion in step.portions} == {2 if split else 4}
    assert left_behind() == []


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", [Hearing, HearingSequence])
def test_each_epoch_reaches_datasets_and_workers_that_live_on(dataset, workers):
    loader = DataLoader(dataset(9), batch_size=2, collate_fn=list, num_workers=workers, persistent_workers=workers > 0)
    made = LoaderPortions(loader, Splitting(1, split_batches=False))
    alive = []
    for epoch in (0, 1, 7):
        found = flat(made.begin(epoch=epoch))
        assert sorted(found) == [(epoch, row) for row in range(9)]
        alive.append(len(left_behind()))
    assert alive == [workers] * 3
    made.close()
    assert left_behind() == []


@both_kinds
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("taken", [0, 1])
def test_steps_that_are_left_early_leave_nothing(make, workers, taken):
    steps = LoaderPortions(make(40, batch_size=2, num_workers=workers), Splitting(2, split_batches=True)).begin(epoch=0)
    for _ in range(taken):
        next(steps)
    steps.close()
    assert left_behind() == []


@both_kinds
@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_the_collate_function_comes_behind_the_good_steps(make, workers):
    def collate(rows):
        if 9 in rows:
            raise ValueError("no")
        return rows

    loader = make(40, batch_size=4, num_workers=workers)
    loader.collate_fn = collate
    steps = LoaderPortions(loader, Splitting(2, split_batches=True)).begin(epoch=0)
    assert [next(steps).portions for _ in range(2)] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    with pytest.raises(ValueError, match=r"^no$"):
        next(steps)
    assert left_behind() == []


@both_kinds
def test_skipped_steps_of_workers_are_those_that_come_first(make):
    splitting = Splitting(2, split_batches=True)
    whole = portions(make(23, batch_size=4, num_workers=2), splitting)
    assert portions(make(23, batch_size=4, num_workers=2), splitting, skip=2) == whole[2:]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [4, None])
def test_a_pipeline_that_splits_by_rank_is_read_whole(tmp_path, monkeypatch, workers, batch_size):
    made = make_packed(tmp_path, 20)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    pipeline = webdataset.DataPipeline(
        webdataset.SimpleShardList(made.tars()),
        webdataset.split_by_node,
        webdataset.split_by_worker,
        webdataset.tarfile_to_samples(),
        webdataset.to_tuple("__key__"),
    )
    loader = DataLoader(pipeline, batch_size=batch_size, collate_fn=list, num_workers=workers)
    steps = portions(loader, Splitting(2, split_batches=False))
    found = flat(steps) if batch_size else [portion for step in steps for portion in step.portions]
    assert sorted(key for (key,) in found[:20]) == made.keys


@both_kinds
def test_spawned_workers_do_the_same(make):
    loader = make(9, batch_size=4, num_workers=1, multiprocessing_context="spawn")
    assert flat(portions(loader, Splitting(2, split_batches=True)))[:9] == list(range(9))
    assert left_behind() == []


def test_persistent_workers_begin_anew_after_an_error():
    def collate(rows):
        if (0, 5) in rows:
            raise ValueError("no")
        return rows

    loader = DataLoader(Hearing(8), batch_size=2, collate_fn=collate, num_workers=1, persistent_workers=True)
    made = LoaderPortions(loader, Splitting(1, split_batches=False))
    with pytest.raises(ValueError, match=r"^no$"):
        list(made.begin(epoch=0))
    assert flat(made.begin(epoch=1)) == [(1, row) for row in range(8)]
    made.close()
    assert left_behind() == []
