"""Sources that say of themselves where they are: no counting where they do, exactly as before where they do not."""

import json
import logging
import pickle
import re
import threading
import warnings

import numpy as np
import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader, IterableDataset

from laws import check_resume
from stream.bookmarks import Bookmarks, copy_of, has_state, says_something
from stream.errors import OptionError
from stream.foreign import one_pass
from stream.loader import StreamLoader
from stream.options import StreamOptions
from stream.point import Bookmark
from stream.whole import from_bytes, to_bytes

pytest_plugins = ["rank_pool"]
ROWS = 29


class Telling(IterableDataset):
    """Rows in another order each epoch; says where it is, in the way of torchdata: what it is told holds once."""

    def __init__(self, rows=ROWS):
        self.rows, self.epoch, self.at, self.start = rows, 0, 0, 0
        self.read = []

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        self.at, self.start = self.start, 0
        while self.at < self.rows:
            self.at += 1
            number = (self.at - 1 + 7 * self.epoch) % self.rows
            self.read.append(number)
            yield {"key": f"{number}"}

    def state_dict(self):
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.start, self.epoch = state["at"], state["epoch"]


class Lasting(Telling):
    """In the way of Hugging Face's datasets: what it is told holds for every iterator of the same epoch."""

    def __init__(self, rows=ROWS, *, whatever_epoch=False):
        super().__init__(rows)
        self.told, self.whatever = None, whatever_epoch

    def __iter__(self):
        if self.told is not None and (self.whatever or self.told["epoch"] == self.epoch):
            self.start = self.told["at"]
        return super().__iter__()

    def load_state_dict(self, state):
        self.told = dict(state)


class Whatever(Lasting):
    """As old versions of these datasets: what it is told holds for every iterator."""

    def __init__(self, rows=ROWS):
        super().__init__(rows, whatever_epoch=True)


class Noting(Telling):
    """Notes what is read of it and of its copies in one list."""

    def __deepcopy__(self, memo):
        other = type(self)(self.rows)
        other.read = self.read
        return other


class Batches(Telling):
    """Batches of one to three rows."""

    def __iter__(self):
        for row in super().__iter__():
            yield {"key": [f"{row['key']}.{number}" for number in range(1 + int(row["key"]) % 3)]}


class Plain(IterableDataset):
    def __iter__(self):
        return ({"key": f"{number}"} for number in range(ROWS))


KINDS = [Telling, Lasting, Whatever]


def loader_of(source, path="ours", *, split=True, batch_size=6, **options):
    config = DataLoaderConfiguration(dispatch_batches=True, split_batches=split)
    accelerator = None if path == "alone" else Accelerator(cpu=True, dataloader_config=config)
    made = StreamOptions(transport="stock" if path == "stock" else "ours", **options)
    return StreamLoader(source, accelerator=accelerator, batch_size=batch_size, options=made)


def keys_of(batch):
    return list(batch["key"])


# --- resuming --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", ["alone", "ours", "stock"])
def test_a_source_with_a_state_of_its_own_resumes_at_every_step(kind, path):
    check_resume(lambda: loader_of(kind(), path), keys_of)


@pytest.mark.parametrize("split", [True, False])
def test_batches_of_a_source_with_a_state_of_its_own_resume_at_every_step(split):
    check_resume(lambda: loader_of(Batches(7), split=split, batch_size=None), keys_of)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_fits_other_batches_and_ways_to_read(kind):
    others = [
        lambda: loader_of(kind(), batch_size=7, prefetch_steps=4),
        lambda: loader_of(kind(), "alone", batch_size=5),
        lambda: loader_of(kind(), "stock", batch_size=29),
    ]
    check_resume(lambda: loader_of(kind()), keys_of, epochs=2, others=others)


@pytest.mark.parametrize("path", ["alone", "ours"])
def test_nothing_that_was_consumed_is_read_again(path):
    loader, seen, state = loader_of(Telling(), path, batch_size=4), [], None
    for batch in loader:
        seen += batch["key"]
        state = loader.state_dict()
        if len(seen) == 16:
            break
    loader.close()
    source = Noting()
    other = loader_of(source, path, batch_size=4)
    other.load_state_dict(json.loads(json.dumps(state)))
    rest = [key for batch in other for key in batch["key"]]
    other.close()
    assert [*seen, *rest] == [f"{number}" for number in range(ROWS)]
    assert source.read == list(range(16, ROWS))


def test_without_a_bookmark_the_same_state_is_counted():
    loader = loader_of(Telling())
    batch = next(iter(loader))
    state = loader.state_dict()
    loader.close()
    assert state["bookmark"]["position"] == state["position"] == len(batch["key"])
    del state["bookmark"]
    source = Telling()
    other = loader_of(source)
    other.load_state_dict(state)
    assert next(iter(other))["key"] == [f"{number}" for number in range(6, 12)]
    assert source.read[:6] == list(range(6))
    other.close()


@pytest.mark.parametrize("path", ["alone", "ours"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_that_was_taken_up_and_left_begins_at_its_beginning(kind, path):
    loader = loader_of(kind(), path)
    next(iter(loader))
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert next(iter(loader))["key"][0] == "6"
    assert [key for batch in loader for key in batch["key"]] == [f"{number}" for number in range(ROWS)]
    assert next(iter(loader))["key"][0] == "7"  # the next epoch
    loader.close()


def test_skipped_steps_lie_behind_the_bookmark():
    loader = loader_of(Telling())
    next(iter(loader))
    state = loader.state_dict()
    loader.load_state_dict(state)
    loader.skip(2)
    skipped = loader.state_dict()
    assert (skipped["position"], skipped["bookmark"]) == (18, state["bookmark"])
    for restored in (loader, loader_of(Telling())):
        restored.load_state_dict(skipped)
        assert next(iter(restored))["key"][0] == "18"
        restored.close()


def test_accumulating_loaders_save_what_the_source_said_at_the_last_optimizer_step():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    loader = accelerator.prepare(StreamLoader(Telling(), accelerator=accelerator, batch_size=4))
    model = torch.nn.Linear(1, 1)
    states = []
    for _ in loader:
        with accelerator.accumulate(model):
            states.append(loader.state_dict())
    loader.close()
    assert [state["position"] for state in states[:4]] == [0, 8, 8, 16]
    assert [state.get("bookmark", {}).get("position", 0) for state in states[:4]] == [0, 8, 8, 16]
    accelerator.free_memory()


def test_other_data_are_not_told_what_the_source_said():
    loader = loader_of(Telling())
    next(iter(loader))
    state = loader.state_dict()
    loader.close()
    source = Telling()
    other = loader_of(source)
    other.load_state_dict(state, strict=False)
    assert next(iter(other))["key"][0] == "6"
    assert source.read[0] == 0
    other.close()


@pytest.mark.parametrize("changed", [{"position": 7, "state": ""}, {"position": -1, "state": ""}, {"position": 0}, 3])
def test_a_bookmark_that_is_none_is_refused(changed):
    loader = loader_of(Telling())
    state = {**loader.state_dict(), "position": 6, "bookmark": changed}
    with pytest.raises(OptionError, match="bookmark"):
        loader.load_state_dict(state)
    loader.close()


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_go_on_behind_what_the_source_said(pools, ranks):
    answers = pools(ranks).call("resume_job:telling", {"rows": ROWS})
    assert [answer["ranks"] for answer in answers] == [ranks] * ranks
    assert all(answer["states"] == answers[0]["states"] for answer in answers)
    whole = [row for step in zip(*(answer["keys"] for answer in answers), strict=True) for rows in step for row in rows]
    assert whole[:ROWS] == [f"{number}" for number in range(ROWS)]
    state = answers[0]["states"][1]
    assert state["bookmark"]["position"] == state["position"] == 24
    for after in (1, 2):
        found = pools(after).call("resume_job:telling", {"rows": ROWS, "state": state})
        rest = [row for step in zip(*(one["keys"] for one in found), strict=True) for rows in step for row in rows]
        assert rest[: ROWS - 24] == [f"{number}" for number in range(24, ROWS)]
        assert found[0]["read"] == list(range(24, ROWS))
        assert [one["read"] for one in found[1:]] == [[]] * (after - 1)


# --- one source, several passes --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("look", [lambda source: next(iter(source)), list], ids=["peeked", "read whole"])
def test_what_was_done_with_a_source_before_changes_nothing(kind, look):
    def looked_at():
        source = kind()
        look(source)
        return source

    loader = loader_of(looked_at(), "alone")
    next(iter(loader))
    state = loader.state_dict()
    loader.close()
    other = loader_of(looked_at(), "alone")
    other.load_state_dict(state)
    assert [sum(len(batch["key"]) for batch in other) for _ in range(3)] == [ROWS - 6, ROWS, ROWS]
    other.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", ["alone", "ours"])
def test_a_loader_that_was_resumed_leaves_the_source_to_others_as_it_was(kind, path):
    source = kind()
    train, evaluation = loader_of(source, path), loader_of(source, path)
    next(iter(train))
    train.load_state_dict(train.state_dict())
    for count in (ROWS - 6, ROWS, ROWS):
        assert sum(len(batch["key"]) for batch in train) == count
        assert sum(len(batch["key"]) for batch in evaluation) == ROWS
    for loader in (train, evaluation):
        loader.close()


def test_while_two_passes_go_on_over_one_source_it_is_counted(caplog):
    source = Telling(400)
    train, evaluation = loader_of(source, batch_size=4), loader_of(source, batch_size=4)
    iteration = iter(train)
    next(iteration)
    assert "bookmark" in train.state_dict()
    with caplog.at_level(logging.WARNING, "stream"):
        other = iter(evaluation)
        next(other)
        next(iteration)
    assert "two passes go on over one Telling" in caplog.text
    other.close()
    for _ in range(50):
        next(iteration)  # what was read ahead before is behind
    assert "bookmark" not in train.state_dict()
    for loader in (train, evaluation):
        loader.close()
    iteration = iter(train)
    next(iteration)
    assert "bookmark" in train.state_dict()  # a pass by itself again
    train.close()


def test_a_source_that_cannot_be_copied_is_counted_with_a_warning(caplog):
    class Held(Telling):
        def __init__(self):
            super().__init__()
            self.lock = threading.Lock()

    loader = loader_of(Held())
    next(iter(loader))
    state = loader.state_dict()
    source = Held()
    other = loader_of(source)
    with caplog.at_level(logging.WARNING, "stream"):
        other.load_state_dict(state)
        assert next(iter(other))["key"][0] == "6"
    assert source.read[0] == 0
    assert "Held cannot be copied" in caplog.text
    for one in (loader, other):
        one.close()
    assert copy_of(threading.Lock()) is None


@pytest.mark.parametrize("first", [None, {}])
def test_a_source_that_says_nothing_before_its_first_item_resumes_too(first):
    class Late(Telling):
        said = first

        def __iter__(self):
            for row in super().__iter__():
                self.said = {"at": self.at, "epoch": self.epoch}
                yield row

        def state_dict(self):
            return self.said

    check_resume(lambda: loader_of(Late(), "alone"), keys_of, epochs=2)


def test_a_dataset_of_hugging_face_resumes_at_every_step():
    datasets = pytest.importorskip("datasets")

    def rows(shards):
        for shard in shards:
            yield from ({"key": f"{shard}.{number}"} for number in range(5))

    def made():
        return datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": [0, 1, 2, 3]})

    whole = loader_of(made(), batch_size=4)
    walked = [[(keys_of(batch), whole.state_dict()) for batch in whole] for _ in range(2)]
    whole.close()
    for number, (_, state) in enumerate(walked[0][:-1]):
        assert state["bookmark"]["position"] == state["position"]
        other = loader_of(made(), batch_size=4)
        other.load_state_dict(state)
        assert [keys_of(batch) for batch in other] == [keys for keys, _ in walked[0][number + 1 :]]
        assert [keys_of(batch) for batch in other] == [keys for keys, _ in walked[1]]
        other.close()


# --- torchdata's loaders ---------------------------------------------------------------------------------------


def stateful(dataset, **options):
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    logging.getLogger("torchdata").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchdata's own affair
        return loaders.StatefulDataLoader(dataset, batch_size=3, **options)


@pytest.mark.parametrize("kind", [*KINDS, Plain])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_torchdata_loader_resumes_at_every_step(kind, workers):
    def made():
        return loader_of(stateful(kind(), num_workers=workers), batch_size=None)

    if workers == 0:
        check_resume(made, keys_of, epochs=2)
        return
    loader = made()
    walked = [(keys_of(batch), loader.state_dict()) for batch in loader]
    loader.close()
    other = made()
    other.load_state_dict(walked[3][1])
    assert [keys_of(batch) for batch in other] == [keys for keys, _ in walked[4:]]
    other.close()


def test_a_torchdata_loader_over_rows_by_number_goes_on_without_reading_them_again():
    class Rows(torch.utils.data.Dataset):
        def __init__(self):
            self.read = []

        def __len__(self):
            return ROWS

        def __getitem__(self, number):
            self.read.append(number)
            return {"key": number}

        def __deepcopy__(self, memo):
            return self

    def made(rows):
        return loader_of(stateful(rows, shuffle=True, generator=torch.Generator().manual_seed(5)), batch_size=None)

    loader = made(Rows())
    walked = [(batch["key"].tolist(), loader.state_dict()) for batch in loader]
    loader.close()
    rows = Rows()
    other = made(rows)
    other.load_state_dict(walked[3][1])
    rest = [batch["key"].tolist() for batch in other]
    other.close()
    assert rest == [keys for keys, _ in walked[4:]]
    assert sorted(rows.read) == sorted(number for keys in rest for number in keys)


# --- what is said of it ----------------------------------------------------------------------------------------


def test_describe_tells_which_sources_are_counted():
    own, counted = "resume: by the source's own state_dict()", "resume: counts; rank 0 reads"
    for source, options, said in [
        (Telling(), {}, own),
        (Telling(), {"workers": 2}, counted),
        (Plain(), {}, counted),
    ]:
        loader = loader_of(source, **options)
        assert said in loader.describe()
        loader.close()
    assert counted in loader_of(Telling(), "stock").describe()
    assert own in loader_of(Telling(), "alone").describe()


def test_states_of_sources_that_say_nothing_are_as_they_were():
    loader = loader_of(Plain())
    next(iter(loader))
    assert "bookmark" not in loader.state_dict()
    loader.close()


@pytest.mark.parametrize(
    ("state", "problem"),
    [({"at": object()}, r"Odd.state_dict\(\).*object"), ({"at": b"x" * 2**21}, "bytes, more than")],
)
def test_a_state_that_cannot_travel_is_done_without_and_one_warning(state, problem, caplog):
    class Odd(Telling):
        def state_dict(self):
            return state

    loader = loader_of(Odd())
    with caplog.at_level(logging.WARNING, "stream"):
        states = [loader.state_dict() for _ in loader]
    loader.close()
    assert not any("bookmark" in one for one in states)
    (record,) = [record for record in caplog.records if "is not saved" in record.message]
    assert re.search(problem, record.message)


def test_what_a_source_raises_when_it_is_asked_is_raised():
    class Broken(Telling):
        def state_dict(self):
            raise OSError("no state today")

    loader = loader_of(Broken())
    with pytest.raises(OSError, match="no state today"):
        list(iter(loader))
    loader.close()


# --- the pieces ------------------------------------------------------------------------------------------------


def test_a_bookmark_is_taken_every_so_many_items():
    marks = Bookmarks(every=4)
    source = Telling(10)
    assert list(one_pass(source, epoch=0, bookmarks=marks)) == [{"key": f"{number}"} for number in range(10)]
    assert marks.at(3) is None
    assert [marks.at(position).position for position in (4, 7, 8, 100)] == [4, 4, 8, 8]
    assert from_bytes(marks.at(8).state) == {"at": 8, "epoch": 0}


def test_a_state_is_that_of_its_moment():
    class Same(Telling):
        def __init__(self):
            super().__init__(8)
            self.kept = {"at": 0, "epoch": 0}

        def state_dict(self):
            self.kept["at"] = self.at
            return self.kept

    marks = Bookmarks(every=2)
    list(one_pass(Same(), epoch=0, bookmarks=marks))
    assert [from_bytes(marks.at(position).state)["at"] for position in (2, 4, 6)] == [2, 4, 6]


def test_a_source_that_was_never_sent_elsewhere_is_told_nothing():
    class Deaf(Telling):
        def load_state_dict(self, state):
            raise AssertionError(state)

    assert len(list(one_pass(Deaf(), epoch=0, bookmarks=Bookmarks(every=4)))) == ROWS


def test_a_loader_that_iterates_another_dataset_is_no_source_with_a_state():
    assert has_state(Telling())
    assert not has_state(Plain())
    assert not has_state(DataLoader(Telling(), batch_size=None))


def test_a_state_of_torchdata_says_something_where_a_dataset_does():
    assert says_something({"worker": {"0": {"dataset_state": {"at": 1}}}})
    assert not says_something({"dataset_state": None, "fetcher": {"dataset_iter_state": None}, "n": 3})


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1, "b": [None, True, 2.5, "x", b"y"], "c": (1, (2,)), "d": {"deep": {}}},
        {"generator": torch.Generator().manual_seed(3).get_state()},
        {"array": np.arange(6).reshape(2, 3)},
    ],
    ids=["plain", "tensor", "array"],
)
def test_states_come_back_from_bytes_as_they_were(value):
    found = from_bytes(to_bytes(value))
    for name, leaf in value.items():
        same = np.array_equal(found[name], leaf) if hasattr(leaf, "shape") else found[name] == leaf
        assert same, name
        assert type(found[name]) is type(leaf)


def test_a_bookmark_is_a_value():
    mark = Bookmark(4, b"x")
    assert pickle.loads(pickle.dumps(mark)) == mark


@pytest.mark.parametrize(("source", "how"), [(Plain, "counting"), (Telling, "what the source said of itself")])
def test_restoring_what_nothing_identifies_is_warned_of(source, how, caplog):
    loader = loader_of(source())
    with caplog.at_level(logging.WARNING, "stream"):
        loader.load_state_dict(loader.state_dict())  # the beginning is sure
        assert caplog.records == []
        next(iter(loader))
        loader.load_state_dict(loader.state_dict())
    loader.close()
    (record,) = caplog.records
    assert f"position 6 of epoch 0 is restored by {how}: this source has no index" in record.getMessage()
