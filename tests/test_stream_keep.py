"""Which rows are chosen, from the index alone."""

import json
import logging
import pickle
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from coco_cases import pack, succeeded
from packed import captions_of, key_of, make_packed, size_of
from shards.dataset import DatasetReader
from shards.index import IndexBuilder, RowInfo, ShardIndex
from stream.errors import OptionError
from stream.keep import EVERYTHING, IndexRows, Place, Subset, key_split

SAMPLES = 29
WIDE = [number for number in range(SAMPLES) if size_of(number)[1] == 128]
"""The samples whose picture is 128 pixels wide: every third one."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_packed(tmp_path_factory.mktemp("packed"), SAMPLES)


def subset(made, *, each=False, **options):
    return Subset(DatasetReader(made.url), each_caption=each, **options)


def places(chosen):
    return [tuple(chosen.place(row)) for row in range(len(chosen))]


def is_wide(rows):
    return rows.width == 128


def rows_of(*infos):
    builder = IndexBuilder()
    for number, info in enumerate(infos):
        builder.add(key_of(number), {"jpg": (512, 10, 0)}, info)
    data = builder.to_bytes(shard="made-000000.tar", shard_bytes=10240, shard_xxh3_128="0" * 32)
    return IndexRows(ShardIndex(data, url="made-000000.tar.index"))


# --- what the index tells --------------------------------------------------------------------------------------


def test_the_rows_of_a_shard_are_arrays():
    rows = rows_of(RowInfo(640, 480, 3, (7, 2, 9)), RowInfo(0, 10, 0, ()), RowInfo(100, 200, 1, (5,)))
    assert len(rows) == 3
    assert rows.key.tolist() == [key_of(0), key_of(1), key_of(2)]
    assert (rows.width.tolist(), rows.height.tolist()) == ([640, 0, 100], [480, 10, 200])
    assert rows.license.tolist() == [3, 0, 1]
    assert rows.captions.tolist() == [3, 0, 1]
    assert rows.caption_bytes.tolist() == [7, 0, 5]
    assert rows.shortest_caption_bytes.tolist() == [2, 0, 5]
    assert rows.longest_caption_bytes.tolist() == [9, 0, 5]
    np.testing.assert_array_equal(rows.aspect, [640 / 480, np.nan, 0.5])


def test_a_shard_without_rows_has_empty_arrays():
    rows = rows_of()
    for name in ("key", "width", "aspect", "captions", "caption_bytes", "longest_caption_bytes"):
        assert getattr(rows, name).shape == (0,)


def test_an_aspect_that_is_not_known_is_kept_by_no_comparison():
    rows = rows_of(RowInfo(0, 0), RowInfo(2, 1))
    assert (rows.aspect > 0).tolist() == [False, True]
    assert (rows.aspect <= 2).tolist() == [False, True]


# --- subsets ---------------------------------------------------------------------------------------------------


def test_everything_is_every_row_as_it_is_stored(made):
    chosen = subset(made)
    assert places(chosen) == [(number, None) for number in range(SAMPLES)]
    assert chosen.digest == EVERYTHING


def test_a_predicate_chooses_samples_of_every_shard(made):
    chosen = subset(made, keep=is_wide)
    assert len(chosen.shard_rows) > 2
    assert places(chosen) == [(number, None) for number in WIDE]
    assert sum(chosen.shard_rows) == len(WIDE)


def test_rows_of_captions_are_those_of_the_samples_that_are_kept(made):
    chosen = subset(made, each=True, keep=is_wide)
    expected = [(number, caption) for number in WIDE for caption in range(len(captions_of(number)))]
    assert places(chosen) == expected


def test_keys_choose_their_samples(made):
    chosen = subset(made, keep=[key_of(20), key_of(3), key_of(20)])
    assert places(chosen) == [(3, None), (20, None)]


def test_keys_that_the_dataset_lacks_are_refused_by_name(made):
    with pytest.raises(OptionError, match="2 of its keys are not in the dataset") as caught:
        subset(made, keep={key_of(3), "nobody", "noone"}).shard_rows  # noqa: B018 - read at the first use
    assert caught.value.got == ["nobody", "noone"]


@pytest.mark.parametrize("limit", [1, 7, SAMPLES, 10**6])
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("keep", [None, is_wide])
def test_a_limit_cuts_the_end_off(made, limit, each, keep):
    whole = places(subset(made, each=each, keep=keep))
    assert places(subset(made, each=each, keep=keep, limit=limit)) == whole[:limit]


def test_a_limit_alone_reads_no_index(made):
    reader = DatasetReader(made.url)
    chosen = Subset(reader, each_caption=False, limit=5)
    assert (len(chosen), chosen.place(4)) == (5, Place(4, None))
    assert reader._readers == {}


def test_rows_are_chosen_without_the_shards(tmp_path):
    """Ranks of other hosts need not reach them in dispatch mode."""
    made = make_packed(tmp_path, SAMPLES)
    for tar in made.tars():
        Path(tar).unlink()
    assert len(subset(made, keep=is_wide)) == len(WIDE)


def test_nothing_kept_is_an_empty_epoch_and_a_warning(made, caplog):
    chosen = subset(made, keep=lambda rows: rows.width > 10**6)
    with caplog.at_level(logging.WARNING, "stream"):
        assert (len(chosen), places(chosen)) == (0, [])
    assert f"keep= chose none of the {SAMPLES} samples of {made.url}" in caplog.text


@pytest.mark.parametrize("row", [-1, len(WIDE)])
def test_a_row_outside_is_refused(made, row):
    with pytest.raises(IndexError, match=f"{len(WIDE)} rows here"):
        subset(made, keep=is_wide).place(row)


@pytest.mark.parametrize(
    ("flags", "got"),
    [
        (lambda rows: True, "bool"),
        (lambda rows: rows.width, r"int64 \[\d+\]"),
        (lambda rows: np.ones((len(rows), 1), dtype=bool), r"bool \[\d+, 1\]"),
        (lambda rows: list(rows.width > 1), "list"),
    ],
)
def test_a_predicate_that_gives_no_flags_is_refused(made, flags, got):
    with pytest.raises(OptionError, match=rf"keep='{got}': must return a numpy array of bool"):
        subset(made, keep=flags).shard_rows  # noqa: B018 - read at the first use


def test_flags_of_which_some_are_masked_are_refused(made):
    def keep(rows):
        return np.ma.masked_less(rows.width, 3) > 0

    with pytest.raises(OptionError, match=r"keep='a masked array': .*\.filled\(False\)"):
        subset(made, keep=keep).shard_rows  # noqa: B018 - read at the first use
    flags = [keep(IndexRows(DatasetReader(made.url).lone_index(0))).filled(False)]
    assert len(subset(made, keep=lambda rows: keep(rows).filled(False))) >= flags[0].sum()


def test_the_digest_tells_choices_apart_and_not_the_ways_to_make_them(made):
    by_flags, by_keys = subset(made, keep=is_wide), subset(made, keep=[key_of(number) for number in WIDE])
    assert by_flags.digest == by_keys.digest
    others = [subset(made), subset(made, keep=[key_of(3)]), subset(made, limit=5), subset(made, keep=is_wide, limit=5)]
    assert len({one.digest for one in [by_flags, *others]}) == 5
    assert subset(made, keep=lambda rows: rows.width > 0).digest != by_flags.digest


def test_a_choice_that_changes_nothing_is_none(made):
    assert subset(made, keep=lambda rows: rows.width > 0).digest == EVERYTHING
    assert subset(made, limit=SAMPLES).digest == EVERYTHING
    near, far = [key_of(number) for number in (1, 2)], [key_of(number) for number in (1, 2, 20)]
    for each, limit in ((False, 2), (True, 3)):  # samples 1 and 2 have 2 and 3 captions
        assert (
            subset(made, keep=near, limit=limit, each=each).digest
            == subset(made, keep=far, limit=limit, each=each).digest
        )


def test_a_copy_keeps_its_rows_though_its_predicate_cannot_be_pickled(made):
    chosen = subset(made, keep=lambda rows: rows.width == 128)
    copy = pickle.loads(pickle.dumps(chosen))
    assert (places(copy), copy.digest) == (places(chosen), chosen.digest)


# --- splitting by key ------------------------------------------------------------------------------------------


@given(st.integers(0, 2**64 - 1), st.floats(0.001, 0.999))
@settings(max_examples=50)
def test_the_sides_of_a_split_share_out_all_samples(seed, fraction):
    rows = rows_of(*[RowInfo()] * 40)
    train, val = (key_split(part, fraction, seed=seed)(rows) for part in ("train", "val"))
    assert (train ^ val).all()
    drawn = [xxhash.xxh3_64_intdigest(key_of(number).encode(), seed) for number in range(40)]
    assert val.tolist() == [one < fraction * 2**64 for one in drawn]


def test_a_split_is_pinned():
    rows = rows_of(*[RowInfo()] * 40)
    assert np.flatnonzero(key_split("val", 0.1)(rows)).tolist() == [0, 3, 6, 8, 18, 19, 27]
    assert np.flatnonzero(key_split("val", 0.1, seed=1)(rows)).tolist() == [8, 9, 10, 18]


def test_a_larger_fraction_keeps_all_of_a_smaller_one():
    rows = rows_of(*[RowInfo()] * 200)
    small, large = (set(np.flatnonzero(key_split("val", fraction)(rows))) for fraction in (0.1, 0.3))
    assert small < large


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("test", 0.1), "part"),
        (("val", 0.0), "fraction"),
        (("val", 1.0), "fraction"),
        (("val", 1), "fraction"),
        (("val", "0.1"), "fraction"),
    ],
)
def test_a_split_that_cannot_be_is_refused(arguments, option):
    with pytest.raises(OptionError) as caught:
        key_split(*arguments)
    assert caught.value.option == option


@pytest.mark.parametrize("seed", [-1, 2**64, 0.5, True, None])
def test_a_seed_of_a_split_is_a_64_bit_number(seed):
    with pytest.raises(OptionError, match="seed"):
        key_split("val", 0.1, seed=seed)


# --- the real captions -----------------------------------------------------------------------------------------


def test_filters_of_real_captions_have_the_lengths_that_are_counted_by_hand(shared_data, tmp_path):
    coco = shared_data / "coco"
    captions = coco / "annotations/captions_val2017_found.json"
    succeeded(pack(coco / "val2017", captions, tmp_path / "out", "--shard-size", "5000000"))
    told = json.loads(captions.read_text())
    texts = {image["id"]: [] for image in told["images"]}
    for one in sorted(told["annotations"], key=lambda annotation: annotation["id"]):
        texts[one["image_id"]].append(one["caption"].encode())
    reader = DatasetReader(str(tmp_path / "out"))

    def counted(keep, *, each=False):
        return len(Subset(reader, each_caption=each, keep=keep))

    images = told["images"]
    assert counted(None) == len(images)
    assert counted(lambda rows: rows.width > rows.height) == sum(one["width"] > one["height"] for one in images)
    assert counted(lambda rows: rows.aspect < 0.8) == sum(one["width"] / one["height"] < 0.8 for one in images)
    assert counted(lambda rows: rows.width * rows.height >= 300_000) == sum(
        one["width"] * one["height"] >= 300_000 for one in images
    )
    assert counted(lambda rows: rows.caption_bytes < 50) == sum(len(each[0]) < 50 for each in texts.values())
    assert counted(lambda rows: rows.longest_caption_bytes > 80) == sum(
        max(map(len, each)) > 80 for each in texts.values()
    )
    assert counted(lambda rows: rows.captions > 5, each=True) == sum(
        len(each) for each in texts.values() if len(each) > 5
    )
    val = [one["id"] for one in images if xxhash.xxh3_64_intdigest(f"{one['id']:012d}".encode(), 0) < int(0.2 * 2**64)]
    assert 0 < counted(key_split("val", 0.2)) == len(val)
