"""Bad rows and those that stand in for them: pure, then in loaders of every mode."""

import json
import logging
from itertools import chain

import numpy as np
import pytest
from accelerate import Accelerator, DataLoaderConfiguration
from hypothesis import given
from hypothesis import strategies as st

from packed import SIZE, jpeg_of, key_of, make_packed, number_of
from shards.index import RowInfo
from shards.store import open_store
from shards.writer import ShardWriter
from stream.errors import OptionError, SourceError
from stream.loader import StreamLoader
from stream.options import StreamOptions
from stream.order import Order
from stream.quarantine import Quarantine
from stream.substitute import Substituted

pytestmark = pytest.mark.usefixtures("nothing_left")

pytest_plugins = ["rank_pool"]

SAMPLES = 29
BAD = {3: b"", 4: jpeg_of(4)[:200], 17: b"no image at all"}
"""The bytes of the images that cannot be decoded; 3 and 4 are neighbours as they are stored."""


# --- pure ------------------------------------------------------------------------------------------------------


@given(
    shards=st.lists(st.integers(0, 8), min_size=1, max_size=5),
    shuffle=st.sampled_from([None, "window", "full"]),
    data=st.data(),
)
def test_the_first_good_row_behind_a_bad_one_stands_in_for_it(shards, shuffle, data):
    order = Order(shards, shuffle=shuffle, seed=3, epoch=1, window_shards=2)
    count = len(order)
    bad = data.draw(st.sets(st.integers(0, max(0, count - 1)), max_size=max(0, count - 1)))
    rows = order.rows(0, count).tolist()
    expected = []
    for position in range(count):
        at = position
        while rows[at] in bad:
            at = (at + 1) % count
        expected.append(rows[at])
    made = Substituted(order, bad)
    assert len(made) == count
    assert made.rows_at(np.arange(count)).tolist() == expected
    assert [made.row(position) for position in range(count)] == expected


def test_where_every_row_is_bad_there_is_none():
    with pytest.raises(ValueError, match="all 3 rows of the epoch are bad"):
        Substituted(Order([3], shuffle=None, seed=0, epoch=0, window_shards=1), {0, 1, 2}).row(0)


@pytest.mark.parametrize(("limit", "most"), [(2, 2), (0.1, 10), (0.001, 1), (10**6, 99)])
def test_more_bad_rows_than_are_allowed_are_an_error_that_names_the_first(limit, most):
    quarantine = Quarantine("train", limit)
    for row in range(most):
        quarantine.add(row, f"problem {row}", of=100, tells=False)
    assert quarantine.rows == tuple(range(most))
    with pytest.raises(SourceError, match=rf"has {most + 1} bad rows of 100, more than bad_rows_limit=") as caught:
        quarantine.add(most, "one more", of=100, tells=False)
    shown = str(caught.value).split("The first ones: ")[1].split("; ")
    assert shown[:2] == ["row 0: problem 0", "row 1: problem 1" if most > 1 else "row 1: one more"]
    assert len(shown) == min(10, most + 1)


# --- in loaders ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_packed(tmp_path_factory.mktemp("packed"), SAMPLES, images=BAD)


@pytest.fixture(params=["ours", "shard"])
def path(request):
    return request.param


@pytest.fixture(params=["alone", "ours", "reader", "shard", "workers", "process"])
def everywhere(request):
    return request.param


def loader_of(source, path="alone", *, limit=5, on_error="substitute", **options):
    config = DataLoaderConfiguration(dispatch_batches=path != "shard")
    accelerator = None if path == "alone" else Accelerator(cpu=True, dataloader_config=config)
    made = StreamOptions(
        on_error=on_error,
        bad_rows_limit=limit,
        workers=2 * (path == "workers"),
        decode_on="reader" if path == "reader" else None,
        decode_in="process" if path == "process" else "thread",
    )
    options = {"batch_size": 4, "image_size": SIZE, "shuffle": "full", **options}
    return StreamLoader(source, accelerator=accelerator, options=made, **options)


def numbers_of(loader):
    return [int(key) for batch in loader for key in batch["key"]]


def expected_of(epoch, *, bad=BAD, shuffle="full", count=SAMPLES):
    rows = Order([count], shuffle=shuffle, seed=0, epoch=epoch, window_shards=4).rows(0, count).tolist()
    return [next(row for row in chain(rows[at:], rows[:at]) if row not in bad) for at in range(count)]


def test_bad_images_are_replaced_and_never_met_again(made, everywhere, caplog):
    loader = loader_of(made.url, everywhere)
    epochs = []
    for _ in range(2):
        epochs.append([])
        for batch in loader:
            assert [number_of(image) for image in batch["image"]] == [int(key) for key in batch["key"]]
            epochs[-1] += map(int, batch["key"])
    assert epochs == [expected_of(0), expected_of(1)]
    assert json.loads(json.dumps(loader.state_dict()))["quarantine"] == sorted(BAD)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    named = [[number for number in BAD if f"row {number} is bad" in text] for text in said if "is bad" in text]
    assert sorted(chain.from_iterable(named)) == sorted(BAD)
    loader.close()


def test_it_goes_on_at_any_step_as_if_it_had_not_stopped(made, path):
    loader = loader_of(made.url, path)
    steps = []
    while loader.epoch < 2:
        steps += [(batch["key"], loader.state_dict()) for batch in loader]
    loader.close()
    for number in (0, 3, 7, 9):
        other = loader_of(made.url, "ours" if path == "alone" else "alone")
        other.load_state_dict(steps[number][1])
        rest = []
        while other.epoch < 2:
            rest += [batch["key"] for batch in other]
        assert rest == [keys for keys, _ in steps[number + 1 :]]
        other.close()


def test_caption_rows_of_a_bad_image_are_replaced_each(made, path):
    loader = loader_of(made.url, path, captions="each", limit=20)
    keys = numbers_of(loader)
    assert len(keys) == loader.total_dataset_length
    assert not set(keys) & set(BAD)
    assert set(keys) == set(range(SAMPLES)) - set(BAD)
    loader.close()


def test_a_part_that_differs_from_its_checksum_is_replaced(tmp_path, everywhere):
    made = make_packed(tmp_path, SAMPLES, shard_bytes=10**6)
    with open(made.tars()[0], "r+b") as file:  # noqa: PTH123 - in place
        file.seek(700)
        file.write(b"\0" * 64)
    loader = loader_of(made.url, everywhere)
    assert numbers_of(loader) == expected_of(0, bad={0})
    loader.close()


def test_a_sample_without_an_image_is_replaced(tmp_path, path):
    with ShardWriter(open_store(str(tmp_path / "out")), name="made") as writer:
        for number in range(12):
            parts = {"jpg": jpeg_of(number), "txt": b"text"}
            writer.add(key_of(number), {"txt": b"text"} if number == 7 else parts, RowInfo())
    loader = loader_of(str(tmp_path / "out"), path)
    assert numbers_of(loader) == expected_of(0, bad={7}, count=12)
    loader.close()


def test_too_many_are_an_error_that_lists_them(made, path):
    loader = loader_of(made.url, path, limit=2)
    with pytest.raises(SourceError, match=r"has 3 bad rows of 29, more than bad_rows_limit=2 allows") as caught:
        list(loader)
    assert all(f"row {number}: " in str(caught.value) for number in BAD)
    loader.close()


def test_by_default_a_bad_row_is_an_error(made, path):
    loader = loader_of(made.url, path, on_error="raise")
    with pytest.raises(Exception, match=r"image .*\.jpg"):
        list(loader)
    loader.close()


@pytest.mark.parametrize("source", [[1, 2, 3], (row for row in range(3))])
def test_a_source_without_an_index_is_refused(source):
    with pytest.raises(OptionError):
        loader_of(source if isinstance(source, list) else _Sequence())


class _Sequence:
    def __iter__(self):
        return iter(range(3))


def test_the_stock_transport_is_refused(made):
    with pytest.raises(OptionError, match="does not tell which row was bad"):
        StreamLoader(
            made.url,
            batch_size=4,
            accelerator=Accelerator(cpu=True),
            options=StreamOptions(on_error="substitute", transport="stock"),
        )


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("mode", ["dispatch", "shard"])
def test_any_number_of_ranks_gives_the_same_rows(pools, made, ranks, mode):
    answers = pools(ranks).call("resume_job:bad_rows", {"url": made.url, "mode": mode, "size": list(SIZE), "epochs": 2})
    steps = zip(*(answer["keys"] for answer in answers), strict=True)
    keys = [int(key) for portions in steps for key in chain.from_iterable(portions)]
    per_epoch = len(keys) // 2
    for epoch in range(2):
        assert keys[epoch * per_epoch :][:SAMPLES] == expected_of(epoch)
    known = [set(answer["quarantine"]) for answer in answers]
    if mode == "dispatch":
        assert known == [set(BAD)] * ranks
    assert set().union(*known) == set(BAD)
    assert [answer["saved"] for answer in answers] == [sorted(BAD)] * ranks
