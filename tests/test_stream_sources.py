"""What the loader reads: our shards, a map-style dataset, or any iterable."""

import pickle
from types import SimpleNamespace

import pytest
from torch.utils.data import DataLoader, Dataset, IterableDataset

from packed import captions_of, jpeg_of, key_of, make_packed
from shards.dataset import DatasetReader
from shards.index import RowInfo
from shards.store import open_store
from shards.writer import ShardWriter
from stream.draws import draw
from stream.errors import OptionError, SourceError
from stream.options import BatchSpec
from stream.packed import PackedSource
from stream.schedule import Slot
from stream.sources import (
    BatchSource,
    MapSource,
    SequenceSource,
    open_batches,
    open_source,
    shares_out,
)
from stream.tars import Tars

SAMPLES = 20


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_packed(tmp_path_factory.mktemp("packed"), SAMPLES)


def spec(**options):
    return BatchSpec(batch_size=4, **options)


def packed(made, **options):
    return PackedSource(DatasetReader(made.url), spec=spec(**options))


def slots(*rows):
    return [Slot(position, row) for position, row in enumerate(rows)]


def opened(source, **options):
    return open_source(source, spec=spec(**options), read=DatasetReader)


# --- packed shards ---------------------------------------------------------------------------------------------


def test_packed_rows_come_in_the_order_that_was_asked_for(made):
    found = packed(made).rows(slots(19, 0, 7), epoch=0)
    assert [row.key for row in found] == [key_of(19), key_of(0), key_of(7)]
    assert [bytes(row.image) for row in found] == [jpeg_of(19), jpeg_of(0), jpeg_of(7)]
    assert [row.caption for row in found] == [captions_of(number)[0] for number in (19, 0, 7)]


def test_a_packed_row_says_where_it_came_from(made):
    [row] = packed(made).rows(slots(0), epoch=0)
    assert row.name == f"shard {made.url}/made-000000.tar: {key_of(0)}.jpg"


def test_rows_are_counted_by_sample_or_by_caption(made):
    assert sum(packed(made).shard_rows()) == len(packed(made)) == SAMPLES
    assert len(packed(made, captions="each")) == len(made.pairs)
    assert len(packed(made).shard_rows()) == len(made.tars()) > 2


def test_caption_rows_are_all_pairs_in_storage_order(made):
    found = packed(made, captions="each").rows(slots(*range(len(made.pairs))), epoch=0)
    assert [(row.key, row.caption) for row in found] == made.pairs


def test_caption_rows_of_one_sample_share_what_was_read(made):
    found = packed(made, captions="each").rows(slots(1, 2), epoch=0)
    assert [row.key for row in found] == [key_of(1)] * 2
    assert found[0].sample == found[1].sample
    assert found[0].image is found[1].image


def test_captions_all_are_lists(made):
    found = packed(made, captions="all").rows(slots(3, 4), epoch=0)
    assert [row.caption for row in found] == [captions_of(3), captions_of(4)]


def test_a_random_caption_depends_on_position_and_epoch_alone(made):
    source = packed(made, captions="random", seed=5)
    for epoch in (0, 1):
        [row] = source.rows([Slot(position=11, row=3)], epoch=epoch)
        assert row.caption == captions_of(3)[draw(4, seed=5, epoch=epoch, position=11)]


def test_the_cost_of_rows_is_about_what_they_take(made):
    source = packed(made)
    infos = source.reader.manifest.shardlist
    exact = sum(info.filesize for info in infos)
    assert 0.8 * exact < source.cost(slots(*range(SAMPLES))) <= exact


def test_a_sample_that_several_rows_share_costs_once(made):
    source = packed(made, captions="each")
    assert source.cost(slots(1, 2)) == source.cost(slots(1)) > 0


def test_a_packed_source_that_was_pickled_reads_the_same(made):
    copied = pickle.loads(pickle.dumps(packed(made, captions="each")))
    assert [row.key for row in copied.rows(slots(0, 5), epoch=0)] == [made.pairs[0][0], made.pairs[5][0]]


def test_a_packed_sample_without_an_image_is_named_with_its_parts(tmp_path):
    with ShardWriter(open_store(str(tmp_path)), "made") as writer:
        writer.add("abc", {"txt": b"text", "gif": b"an image of another kind"}, RowInfo())
    source = PackedSource(DatasetReader(str(tmp_path)), spec=spec())
    with pytest.raises(SourceError, match=r"^abc: the sample has no image part \(jpg, jpeg, png, webp\), only txt$"):
        source.rows(slots(0), epoch=0)


# --- map-style datasets ----------------------------------------------------------------------------------------


class Squares(Dataset):
    def __len__(self):
        return 9

    def __getitem__(self, number):
        return number * number


class BatchedSquares(Squares):
    def __init__(self):
        self.asked = []

    def __getitems__(self, numbers):
        self.asked.append(numbers)
        return (self[number] for number in numbers)


class SquaresWithoutBatches(Squares):
    __getitems__ = None  # how a dataset takes it back


@pytest.mark.parametrize("dataset", [Squares(), SquaresWithoutBatches(), [n * n for n in range(9)], range(9)])
def test_a_dataset_with_a_length_is_read_by_row(dataset):
    source = opened(dataset)
    assert isinstance(source, MapSource)
    assert source.shard_rows() == [9]
    assert source.rows(slots(8, 0, 3), epoch=0) == [dataset[8], dataset[0], dataset[3]]


def test_a_dataset_that_brings_many_rows_is_asked_once():
    source = opened(BatchedSquares())
    assert source.rows(slots(8, 0, 3), epoch=0) == [64, 0, 9]
    assert source.dataset.asked == [[8, 0, 3]]


def test_a_dataset_hears_of_each_epoch_once():
    class Hearing(Squares):
        def __init__(self):
            self.epochs = []

        def set_epoch(self, epoch):
            self.epochs.append(epoch)

    source = opened(Hearing())
    for epoch in (0, 0, 3, 3):
        source.rows(slots(1), epoch=epoch)
    assert source.dataset.epochs == [0, 3]


# --- sequences -------------------------------------------------------------------------------------------------


class Numbers(IterableDataset):
    def __init__(self, count):
        self.count, self.epochs = count, []

    def __iter__(self):
        return iter(range(self.count))

    def set_epoch(self, epoch):
        self.epochs.append(epoch)


class NumbersWithLength(Numbers):
    def __len__(self):
        return self.count


@pytest.mark.parametrize("dataset", [Numbers(5), NumbersWithLength(5)])
def test_an_iterable_dataset_is_a_sequence_whether_it_has_a_length_or_not(dataset):
    source = opened(dataset)
    assert isinstance(source, SequenceSource)
    assert list(source.rows(epoch=0)) == [0, 1, 2, 3, 4]


def test_a_sequence_hears_of_the_epoch():
    dataset = Numbers(1)
    list(SequenceSource(dataset, spec=spec()).rows(epoch=3))
    assert dataset.epochs == [3]


def test_positions_differ_from_those_of_other_workers(monkeypatch):
    """Random captions are drawn from them, and rows of several workers may meet in one batch."""
    rows = [{"__key__": str(number), "jpg": b"", "txt": b"text"} for number in range(3)]
    found = []
    for worker in range(2):
        info = SimpleNamespace(id=worker, num_workers=2)
        monkeypatch.setattr("stream.sources.get_worker_info", lambda info=info: info)
        found += [item.sample for item in SequenceSource(rows, spec=spec()).rows(epoch=0)]
    assert found == [0, 2, 4, 1, 3, 5]


@pytest.mark.parametrize("row", [{"jpg": b"no key"}, {"__key__": "no image", "txt": b""}, "text", (1, 2)])
def test_a_row_that_is_no_sample_of_ours_stays_as_it_is(row):
    assert list(opened({0: row}.values()).rows(epoch=0)) == [row]


def test_a_sample_without_its_caption_is_named():
    with pytest.raises(SourceError, match=r"sample abc: has no \.txt"):
        list(opened({0: {"__key__": "abc", "jpg": jpeg_of(1)}}.values()).rows(epoch=0))


# --- what a source may be --------------------------------------------------------------------------------------


def test_a_path_is_a_packed_dataset(made, tmp_path):
    assert isinstance(opened(made.url), PackedSource)
    assert isinstance(opened(tmp_path), PackedSource)


@pytest.mark.parametrize("url", ["coco-000000.tar", "s3://bucket/coco-{000000..000099}.tar"])
def test_names_of_tars_are_a_sequence_of_their_samples(url):
    source = opened(url)
    assert isinstance(source, SequenceSource)
    assert isinstance(source.iterable, Tars)


def test_samples_of_a_tar_become_items(made):
    first = next(opened(made.tars()[0]).rows(epoch=0))
    assert (first.key, bytes(first.image), first.caption) == (key_of(0), jpeg_of(0), captions_of(0)[0])


def test_a_pattern_that_cannot_be_meant_is_refused():
    with pytest.raises(OptionError, match="a brace without its other half"):
        opened("coco-{000000..000099.tar")


@pytest.mark.parametrize("source", [7, None, object()])
def test_what_is_no_source_is_refused(source):
    with pytest.raises(OptionError, match="give a dataset's URL, a Dataset, or an iterable"):
        opened(source)


def test_an_iterator_is_refused_since_its_second_epoch_would_be_empty():
    with pytest.raises(OptionError, match="read once"):
        open_source((row for row in range(3)), spec=BatchSpec(batch_size=2), read=DatasetReader)


# --- batches that their source made -----------------------------------------------------------------------------


def test_batches_come_as_their_source_made_them():
    dataset = Numbers(3)
    source = open_batches(dataset)
    assert isinstance(source, BatchSource)
    assert list(source.batches(epoch=4)) == [0, 1, 2]
    assert dataset.epochs == [4]


@pytest.mark.parametrize("source", ["coco-000000.tar", "folder", 7, None, iter([1])])
def test_what_gives_no_batches_is_refused(source):
    with pytest.raises(OptionError, match="source="):
        open_batches(source)


def test_workers_share_out_what_knows_of_them():
    assert shares_out(opened(Numbers(3)))
    assert shares_out(opened("a-{0..3}.tar"))
    assert not shares_out(opened({0: 1}.values()))
    assert not shares_out(open_batches(DataLoader(Numbers(3))))


def test_a_glob_is_refused_with_what_to_write():
    with pytest.raises(OptionError, match=r"by braces, e.g. coco-\{000000..000099\}.tar"):
        opened("coco/*.tar")
