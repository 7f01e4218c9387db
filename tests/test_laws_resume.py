"""Resuming, for each source and mode, at every step; for other ranks, batches and modes; one order for all of them."""

import json
from hashlib import sha256
from itertools import chain

import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset

from laws import check_resume
from packed import SIZE, make_packed
from shards.dataset import DatasetReader
from stream.keep import key_split
from stream.loader import StreamLoader
from stream.options import StreamOptions
from stream.order import Order
from stream.schedule import Schedule

pytest_plugins = ["rank_pool", "reads_counted"]

SAMPLES = 29
STEP = 12
PATHS = ["alone", "ours", "stock", "shard"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_packed(tmp_path_factory.mktemp("packed"), SAMPLES)


class Rows(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        return {"key": f"{number}"}


class Sequence(IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return ({"key": f"{number}"} for number in range(self.count))


class Batches(IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return ({"key": [f"{number}.{row}" for row in range(number + 1)]} for number in range(self.count))


def loader_of(source, path, **options):
    config = DataLoaderConfiguration(dispatch_batches=path != "shard")
    accelerator = None if path == "alone" else Accelerator(cpu=True, dataloader_config=config)
    made = StreamOptions(
        workers=options.pop("workers", 0),
        prefetch_steps=options.pop("prefetch_steps", 2),
        transport="stock" if path == "stock" else "ours",
    )
    return StreamLoader(
        source, accelerator=accelerator, options=made, **{"batch_size": STEP, "image_size": 16, **options}
    )


def keys_of(batch):
    return list(batch["key"])


def rows_of(batch):
    return list(zip(batch["key"], batch["caption"], [int(image.sum()) for image in batch["image"]], strict=True))


# --- every step of three epochs --------------------------------------------------------------------------------


ORDERS = {
    "window": {"shuffle": "window"},
    "full, random captions": {"shuffle": "full", "captions": "random"},
    "stored, drop_last": {"shuffle": None, "drop_last": True},
    "captions": {"shuffle": "window", "captions": "each", "batch_size": 24},
    "keep": {"shuffle": "window", "keep": key_split("train", 0.3), "batch_size": 6},
    "limit": {"shuffle": "full", "limit": 13, "batch_size": 4},
}


@pytest.mark.parametrize(
    ("path", "name"),
    [*((path, name) for path in ("ours", "shard") for name in ORDERS), ("alone", "window"), ("stock", "window")],
)
def test_packed_shards_resume_at_every_step(made, path, name):
    options = {"image_size": SIZE, **ORDERS[name]}
    steps = check_resume(lambda: loader_of(made.url, path, **options), rows_of)
    assert [step.state["epoch"] for step in steps][-1] == 3


@pytest.mark.parametrize(
    ("path", "shuffle"), [("ours", None), ("ours", "full"), ("shard", "full"), ("stock", "window")]
)
def test_a_dataset_resumes_at_every_step(path, shuffle):
    check_resume(lambda: loader_of(Rows(SAMPLES), path, shuffle=shuffle), keys_of)


@pytest.mark.parametrize("path", ["alone", "ours", "stock"])
def test_a_sequence_resumes_at_every_step(path):
    check_resume(lambda: loader_of(Sequence(SAMPLES), path), keys_of)


@pytest.mark.parametrize("path", ["alone", "ours", "stock"])
def test_tars_resume_at_every_step(made, path):
    pattern = f"{made.url}/made-{{000000..{len(made.tars()) - 1:06d}}}.tar"
    check_resume(lambda: loader_of(pattern, path, image_size=SIZE), rows_of, epochs=2)


@pytest.mark.parametrize("path", ["alone", "ours"])
@pytest.mark.parametrize("split", [True, False])
def test_finished_batches_resume_at_every_step(path, split):
    def made():
        config = DataLoaderConfiguration(dispatch_batches=True, split_batches=split)
        accelerator = None if path == "alone" else Accelerator(cpu=True, dataloader_config=config)
        return StreamLoader(Batches(7), accelerator=accelerator, batch_size=None)

    check_resume(made, keys_of)


def test_a_state_fits_other_modes_batches_prefetching_and_workers(made):
    def other(path, **options):
        return lambda: loader_of(made.url, path, **options)

    others = [
        other("shard"),
        other("alone", batch_size=5),
        other("ours", batch_size=7, prefetch_steps=4),
        other("stock", batch_size=29),
    ]
    check_resume(other("ours"), rows_of, epochs=2, others=others)


def test_a_state_fits_worker_processes(made):
    check_resume(
        lambda: loader_of(made.url, "ours", batch_size=20),
        rows_of,
        epochs=1,
        others=[lambda: loader_of(made.url, "shard", workers=2)],
    )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shuffle", [None, "window", "full"])
def test_nothing_that_was_consumed_is_read_again(made, path, shuffle, reads):
    options = {"shuffle": shuffle, "batch_size": 4, "drop_last": True, "image_size": SIZE}  # so without padding
    loader, consumed, state = loader_of(made.url, path, **options), set(), {}
    for batch in loader:
        consumed |= set(batch["key"])
        state = loader.state_dict()
        if len(consumed) == 16:
            break
    loader.close()
    reads.ranges.clear()
    other = loader_of(made.url, path, **options)
    other.load_state_dict(state)
    left = {key for batch in other for key in batch["key"]}
    other.close()
    assert len(left) == 12
    assert not left & consumed
    spans = {key: span_of(made.url, int(key)) for key in made.keys}
    touched = {key for key, span in spans.items() if any(overlap(span, one) for one in reads.ranges)}
    assert left <= touched
    assert not touched & consumed


def span_of(url, row):
    """The shard of a row, and where its image begins and ends in it."""
    reader = DatasetReader(url)
    shard_no, in_shard = reader.manifest.locate(row)
    start, size = reader.index(shard_no).span(in_shard, "jpg")
    return reader.manifest.shardlist[shard_no].url, start, start + size


def overlap(one, other):
    return one[0] == other[0] and one[1] < other[2] and other[1] < one[2]


# --- any rows, batches and ranks -------------------------------------------------------------------------------


@st.composite
def epochs(draw):
    ranks = [draw(st.integers(1, 5)) for _ in range(3)]
    return {
        "shards": draw(st.lists(st.integers(0, 9), min_size=1, max_size=6)),
        "ranks": ranks,
        "batches": [count * draw(st.integers(1, 4)) for count in ranks],
        "shuffle": draw(st.sampled_from([None, "window", "full"])),
        "even_batches": draw(st.booleans()),
        "drop_last": draw(st.booleans()),
        "stops": [draw(st.integers(0, 6)) for _ in range(2)],
    }


@given(epochs())
@settings(max_examples=1500, deadline=None)
def test_any_ranks_batches_and_stops_give_every_row_once(case):
    """Three jobs one after another, each with ranks and a batch of its own, take up where the one before stopped."""
    order = Order(case["shards"], shuffle=case["shuffle"], seed=1, epoch=0, window_shards=2)
    position, seen = 0, []
    for number, (ranks, batch) in enumerate(zip(case["ranks"], case["batches"], strict=True)):
        last = number == len(case["ranks"]) - 1
        schedule = Schedule(
            len(order),
            global_batch=batch,
            ranks=ranks,
            drop_last=case["drop_last"] and last,
            even_batches=case["even_batches"],
            start=position,
        )
        for step in range(schedule.steps if last else min(schedule.steps, case["stops"][number])):
            real = schedule.real_rows(step)
            portions = [schedule.portion(step, rank).tolist() for rank in range(ranks)]
            seen += list(chain.from_iterable(portions))[:real]
            position += real
    assert seen == list(range(len(seen)))  # positions, hence rows of one order
    assert len(order) - len(seen) < (case["batches"][-1] if case["drop_last"] else 1)
    assert sorted(order.rows_at(torch.tensor(seen, dtype=torch.int64).numpy()).tolist()) == sorted(
        {order.row(one) for one in seen}
    )


@given(
    rows=st.integers(1, 40),
    batches=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    paths=st.tuples(st.sampled_from(["alone", "ours", "shard"]), st.sampled_from(["alone", "ours", "shard"])),
    shuffle=st.sampled_from([None, "window", "full"]),
    stop=st.integers(1, 50),
)
@settings(max_examples=60, deadline=None)
def test_any_loader_goes_on_where_any_other_stopped(rows, batches, paths, shuffle, stop):
    before, after = (
        loader_of(Rows(rows), path, batch_size=size, shuffle=shuffle) for path, size in zip(paths, batches, strict=True)
    )
    whole, seen = loader_of(Rows(rows), "alone", batch_size=rows, shuffle=shuffle), []
    expected = [key for _ in range(2) for batch in whole for key in batch["key"]]
    state = before.state_dict()
    for number, batch in enumerate(before):
        seen += batch["key"]
        state = before.state_dict()
        if number + 1 == stop:
            break
    after.load_state_dict(json.loads(json.dumps(state)))
    while after.epoch < 2:
        seen += [key for batch in after for key in batch["key"]]
    assert seen == expected
    for loader in (before, after, whole):
        loader.close()


# --- real ranks ------------------------------------------------------------------------------------------------


OPTIONS = {"batch_size": STEP, "image_size": SIZE, "seed": 0}
RANKS = [1, 2, 3, 4]


@pytest.fixture(scope="module")
def walked(pools, made):
    """`walked(ranks, mode, ...)`: the steps over all ranks: (epoch, real rows (key, pixels), state)."""
    known = {}

    def walk(ranks, mode, **arguments):
        name = json.dumps([ranks, mode, arguments])
        if name not in known:
            given = {"url": made.url, "mode": mode, "options": OPTIONS, **arguments}
            answers = pools(ranks).call("resume_job:walk", given)
            assert [answer["ranks"] for answer in answers] == [ranks] * ranks
            known[name] = [together(steps) for steps in zip(*(one["steps"] for one in answers), strict=True)]
        return known[name]

    return walk


def together(portions):
    (epoch,) = {portion["epoch"] for portion in portions}
    (real,) = {portion["real"] for portion in portions}
    assert all(portion["state"] == portions[0]["state"] for portion in portions)
    rows = [tuple(row) for portion in portions for row in portion["rows"]]
    return epoch, rows[:real], portions[0]["state"]


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("mode", ["dispatch", "shard"])
def test_keys_and_augmented_pixels_of_each_step_are_the_same_for_any_ranks_and_mode(walked, ranks, mode):
    expected = walked(1, "dispatch", epochs=2)
    assert walked(ranks, mode, epochs=2) == expected
    epochs = [[row for epoch, rows, _ in expected if epoch == number for row in rows] for number in range(2)]
    assert [sorted(key for key, _ in rows) for rows in epochs] == [[f"{number:012d}" for number in range(SAMPLES)]] * 2
    assert [key for key, _ in epochs[0]] != [key for key, _ in epochs[1]]
    assert not {pixels for _, pixels in epochs[0]} & {pixels for _, pixels in epochs[1]}  # augmented anew


@pytest.mark.ranks
def test_the_keys_of_seed_0_are_pinned(walked):
    keys = [key for _, rows, _ in walked(1, "dispatch", epochs=2) for key, _ in rows]
    assert (
        sha256(" ".join(keys).encode()).hexdigest()
        == "ea24628697c68d47082303f0502ed811570aca2ae20d21df7d480609f45f352d"
    )


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("mode", ["dispatch", "shard"])
def test_global_generators_change_neither_order_nor_augmentation(walked, ranks, mode):
    expected = walked(1, "dispatch", epochs=2)
    for seed in (1, 2):
        assert walked(ranks, mode, epochs=2, seed=seed) == expected


@pytest.mark.ranks
@pytest.mark.parametrize("before", [(2, "dispatch"), (3, "shard")], ids=str)
@pytest.mark.parametrize(
    "after", [(1, "shard"), (2, "dispatch"), (3, "dispatch"), (4, "dispatch"), (4, "shard")], ids=str
)
def test_other_ranks_in_another_mode_go_on_at_any_step(walked, before, after):
    whole = walked(*before, epochs=2)
    for number, (_, _, state) in enumerate(whole[:-1]):
        assert walked(*after, epochs=2, state=state) == whole[number + 1 :]


@pytest.mark.ranks
def test_a_state_is_restored_twice_in_a_row_by_other_ranks(walked):
    whole = walked(2, "dispatch", epochs=2)
    ((_, rows, second),) = walked(3, "shard", epochs=2, state=whole[0][2], take=1)
    assert rows == whole[1][1]
    ((_, rows, third),) = walked(4, "dispatch", epochs=2, state=second, take=1)
    assert rows == whole[2][1]
    assert walked(1, "dispatch", epochs=2, state=third) == whole[3:]


@pytest.mark.ranks
@pytest.mark.parametrize("rank", [0, 1])
def test_what_one_rank_cannot_plan_is_an_error_on_all_and_they_may_try_again(pools, made, rank):
    answers = pools(2).call("resume_job:failing_keep", {"url": made.url, "mode": "dispatch", "rank": rank})
    for answer in answers:
        assert "ValueError: no such column" in answer["said"]
        assert "the ranks do not agree" in answer["said"]
        assert f"(rank {rank})" in answer["said"]
    keys = [key for answer in answers for key in answer["keys"]]
    assert set(keys) == set(made.keys)
