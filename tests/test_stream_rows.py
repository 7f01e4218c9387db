"""Encoded rows as a portion: planned, filled and opened they are what the source itself gives."""

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasets_made import Row, law, make_dataset
from packed import captions_of, jpeg_of, key_of, make_packed, parts_of
from shards.dataset import DatasetReader
from shards.errors import ChecksumError, ShardsError, StoreError
from shards.index import RowInfo
from shards.store import open_store
from shards.writer import ShardWriter
from stream.errors import SourceError, StreamError
from stream.options import BatchSpec
from stream.packed import PackedSource
from stream.rows import open_rows, plan_rows
from stream.schedule import Slot

SAMPLES = 20
POLICIES = ["first", "random", "all", "each"]
TINY = RowInfo(64, 16, 1, (4,))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_packed(tmp_path_factory.mktemp("packed"), SAMPLES)


@pytest.fixture
def own(tmp_path):
    """A dataset that a test may spoil."""
    return make_packed(tmp_path / "own", SAMPLES)


def packed(url, **options) -> PackedSource:
    return PackedSource(DatasetReader(str(url)), spec=BatchSpec(batch_size=4, seed=7, **options))


def slots(*rows):
    return [Slot(100 + position, row) for position, row in enumerate(rows)]


def filled(plan, *, room=0):
    """The memory as a rank sees it: not writable."""
    memory = np.full(plan.size + room, 0xEE, dtype=np.uint8)
    plan.fill(memory)
    memory.flags.writeable = False
    return memory


def sent(source, wanted, *, epoch=0, verify=True):
    plan = plan_rows(source, wanted, epoch=epoch)
    return open_rows(plan.header, filled(plan), verify=verify)


def outcome(bring):
    """What was brought, or the error."""
    try:
        return bring()
    except (ShardsError, StreamError) as exc:
        return type(exc), str(exc), vars(exc)


def spoil(made, sample: int, suffix: str) -> None:
    """Flip the last byte of a part."""
    reader = DatasetReader(made.url)
    shard_no, row = reader.manifest.locate(sample)
    offset, size = reader.index(shard_no).span(row, suffix)
    with Path(made.tars()[shard_no]).open("r+b") as file:
        file.seek(offset + size - 1)
        last = file.read(1)[0]
        file.seek(offset + size - 1)
        file.write(bytes([last ^ 1]))


# --- the oracle: the source itself -----------------------------------------------------------------------------


@pytest.mark.parametrize("captions", POLICIES)
@pytest.mark.parametrize("rows", [range(SAMPLES), [19, 0, 7], [5], [3, 3, 3], []], ids=len)
def test_rows_that_were_sent_are_those_of_the_source(made, captions, rows):
    source = packed(made.url, captions=captions)
    assert sent(source, slots(*rows), epoch=2) == source.rows(slots(*rows), epoch=2)


@law
@given(
    st.sampled_from(POLICIES),
    st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, SAMPLES - 1)), max_size=24),
    st.integers(0, 2**40),
)
def test_any_portion_is_what_the_source_gives(made, captions, wanted, epoch):
    source = packed(made.url, captions=captions)
    portion = [Slot(position, row) for position, row in wanted]
    assert sent(source, portion, epoch=epoch) == source.rows(portion, epoch=epoch)


def test_all_caption_rows_are_all_pairs(made):
    found = sent(packed(made.url, captions="each"), slots(*range(len(made.pairs))))
    assert [(item.key, item.caption) for item in found] == made.pairs


def test_a_portion_may_span_many_shards(made):
    found = sent(packed(made.url), slots(19, 0, 10, 1))
    assert [bytes(item.image) for item in found] == [jpeg_of(number) for number in (19, 0, 10, 1)]
    assert [item.name.split(": ")[0].removeprefix("shard ") for item in found] == [
        made.tars()[place] for place in (-1, 0, len(made.tars()) // 2, 0)
    ]


def test_a_portion_from_a_store_that_is_not_local_is_the_same(tmp_path):
    url = f"memory://{tmp_path}"
    with ShardWriter(open_store(url), "made", shard_bytes=24 * 2**10) as writer:
        for number in range(SAMPLES):
            writer.add(key_of(number), parts_of(number), RowInfo(64, 16, 1, (9,) * len(captions_of(number))))
        writer.close()
    for captions in POLICIES:
        source = packed(url, captions=captions)
        wanted = slots(19, 3, 0, 3, 11)
        assert sent(source, wanted, epoch=1) == source.rows(wanted, epoch=1)
    plan = plan_rows(packed(url), slots(0, 1, 1), epoch=0)
    assert plan.size == sum(len(jpeg_of(number)) + len(captions_of(number)[0].encode()) for number in (0, 1))


def test_an_image_above_what_one_read_may_bring_comes_whole_among_thumbnails(tmp_path):
    large = np.random.default_rng(0).bytes(20 * 2**20)
    images = [b"thumb 0", large, b"thumb 2"]
    rows = [Row(key_of(n), {"png": image, "txt": b"text"}, TINY) for n, image in enumerate(images)]
    make_dataset(tmp_path, rows, shard_bytes=2**30)
    found = sent(packed(tmp_path), slots(2, 1, 0))
    assert [item.image == image for item, image in zip(found, images[::-1], strict=True)] == [True] * 3


# --- once ------------------------------------------------------------------------------------------------------


def test_caption_rows_of_one_sample_share_its_image(made):
    found = sent(packed(made.url, captions="each"), slots(1, 2))
    assert [item.key for item in found] == [key_of(1)] * 2
    assert found[0].image is found[1].image


def test_a_row_that_pads_is_sent_once_and_draws_its_own_caption(made):
    source = packed(made.url, captions="random")
    wanted = [Slot(position, 3) for position in range(8)]
    plan = plan_rows(source, wanted, epoch=0)
    assert plan.size == plan_rows(source, wanted[:1], epoch=0).size
    assert len({item.caption for item in open_rows(plan.header, filled(plan), verify=True)}) > 1


def test_images_are_views_of_the_portions_memory(made):
    plan = plan_rows(packed(made.url), slots(4, 9), epoch=0)
    memory = filled(plan)
    for item in open_rows(plan.header, memory, verify=True):
        assert np.shares_memory(np.frombuffer(item.image, np.uint8), memory)


# --- what is read, when, by whom -------------------------------------------------------------------------------


def test_planning_reads_no_shard(own):
    source, tars = packed(own.url), own.tars()
    for shard_no, path in enumerate(tars):
        source.reader.index(shard_no)
        Path(path).unlink()
    plan = plan_rows(source, slots(0, 19), epoch=0)
    assert plan.where == f"shard {tars[0]}: {key_of(0)}"
    with pytest.raises(FileNotFoundError, match=r"made-000000\.tar"):
        filled(plan)


def test_opening_needs_no_file(own):
    source = packed(own.url, captions="all")
    plan, expected = plan_rows(source, slots(3, 8), epoch=0), source.rows(slots(3, 8), epoch=0)
    memory = filled(plan)
    shutil.rmtree(own.url)
    assert open_rows(plan.header, memory, verify=True) == expected


def test_local_shards_are_read_straight_into_the_memory(made, monkeypatch):
    source = packed(made.url)
    plan = plan_rows(source, slots(0, 19), epoch=0)
    for name in ("read", "read_many"):
        monkeypatch.setattr(type(source.reader.shard(0).store), name, None)
    assert [item.key for item in open_rows(plan.header, filled(plan), verify=True)] == [key_of(0), key_of(19)]


def test_many_threads_may_fill_at_once(made):
    source, together = packed(made.url), threading.Barrier(4)
    plans = [plan_rows(source, slots(*range(start, SAMPLES, 4)), epoch=0) for start in range(4)]
    alone = [filled(plan).tobytes() for plan in plans]

    def fill(plan):
        together.wait(timeout=30)
        return [filled(plan).tobytes() for _ in range(20)]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(fill, plans)) == [[memory] * 20 for memory in alone]


def test_a_longer_memory_is_filled_no_further(made):
    plan = plan_rows(packed(made.url), slots(0, 1), epoch=0)
    memory = filled(plan, room=10)
    assert memory[plan.size :].tolist() == [0xEE] * 10
    assert [item.key for item in open_rows(plan.header, memory, verify=True)] == [key_of(0), key_of(1)]


def test_an_empty_portion_takes_no_memory(made):
    plan = plan_rows(packed(made.url), [], epoch=0)
    assert (plan.size, plan.where) == (0, "no row")
    assert open_rows(plan.header, filled(plan), verify=True) == []


def test_a_short_memory_is_refused_by_both_sides(made):
    plan = plan_rows(packed(made.url), slots(0), epoch=0)
    short = np.empty(plan.size - 1, dtype=np.uint8)
    with pytest.raises(ValueError, match=f"{plan.size - 1} bytes cannot take {plan.size} bytes"):
        plan.fill(short)
    with pytest.raises(ValueError, match=f"{plan.size - 1} bytes cannot hold a portion of {plan.size} bytes"):
        open_rows(plan.header, short, verify=True)


def test_a_header_that_was_cut_is_refused(made):
    plan = plan_rows(packed(made.url), slots(0), epoch=0)
    with pytest.raises(msgspec.DecodeError):
        open_rows(plan.header[:-1], filled(plan), verify=True)


# --- errors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("captions", "suffix"), [("first", "jpg"), ("first", "txt"), ("each", "json")])
def test_a_flipped_bit_is_the_same_error_as_from_the_source(own, captions, suffix):
    spoil(own, 8, suffix)
    source = packed(own.url, captions=captions)
    wanted = slots(*range(len(source)))
    found = outcome(lambda: sent(source, wanted))
    assert found == outcome(lambda: source.rows(wanted, epoch=0))
    assert found[0] is ChecksumError
    assert f"part {key_of(8)}.{suffix} at byte " in found[1]


@pytest.mark.parametrize("rows", [[2, 17, 9], [17, 2, 9], [9, 3, 17, 2]])
def test_of_many_errors_the_same_one_comes_first(own, rows):
    for sample in (2, 9, 17):
        spoil(own, sample, "jpg")
    source = packed(own.url)
    assert outcome(lambda: sent(source, slots(*rows))) == outcome(lambda: source.rows(slots(*rows), epoch=0))


def test_a_part_that_no_row_needs_may_be_spoiled(own):
    spoil(own, 8, "json")
    source = packed(own.url, captions="first")
    assert sent(source, slots(8)) == source.rows(slots(8), epoch=0)


def test_without_verifying_a_flipped_bit_passes(own):
    spoil(own, 8, "jpg")
    [item] = sent(packed(own.url), slots(8), verify=False)
    assert item.image != jpeg_of(8)
    assert item.image[:-1] == jpeg_of(8)[:-1]


ODD = {
    "no txt": {"jpg": b"image", "json": b'{"captions": ["one"]}'},
    "no json": {"jpg": b"image", "txt": b"text"},
    "no image": {"gif": b"image", "txt": b"text", "json": b'{"captions": ["one"]}'},
    "two images": {"webp": b"a", "png": b"b", "txt": b"text", "json": b'{"captions": ["one"]}'},
    "empty parts": {"jpg": b"", "txt": b"", "json": b'{"captions": [""]}'},
    "no text": {"jpg": b"image", "txt": b"\xff", "json": b"[]"},
    "no captions": {"jpg": b"image", "txt": b"text", "json": b'{"captions": []}'},
    "nothing to read": {"gif": b"image"},
}


@pytest.mark.parametrize("captions", POLICIES)
@pytest.mark.parametrize("parts", ODD.values(), ids=ODD)
def test_an_odd_sample_is_the_same_row_or_error_as_from_the_source(tmp_path, captions, parts):
    make_dataset(tmp_path, [Row("plain", parts_of(1), TINY), Row("odd", parts, TINY)])
    source = packed(tmp_path, captions=captions)
    found = outcome(lambda: sent(source, slots(0, 1)))
    assert found == outcome(lambda: source.rows(slots(0, 1), epoch=0))
    assert isinstance(found, list) or found[0] is SourceError


def test_a_shard_that_was_cut_after_planning_is_named(own):
    source = packed(own.url)
    plan = plan_rows(source, slots(0), epoch=0)
    with Path(own.tars()[0]).open("r+b") as file:
        file.truncate(600)
    with pytest.raises(StoreError, match=r"made-000000\.tar failed: .* the file ends there, it was cut"):
        filled(plan)
