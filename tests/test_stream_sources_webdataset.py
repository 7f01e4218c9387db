"""webdataset pipelines as a source: read whole by one process, whatever the job looks like."""

import io
import tarfile

import pytest
import torch
import webdataset
from torch.utils.data import DataLoader

from packed import captions_of, jpeg_of, key_of, make_packed
from stream.collate import Item
from stream.foreign import as_seen_by_one_process
from stream.options import BatchSpec
from stream.sources import SequenceSource, open_batches

SAMPLES = 20
SPEC = BatchSpec(batch_size=4)

# webdataset 1.0 leaves closing its tars to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file <_io.BufferedReader name=.*tar:ResourceWarning")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_packed(tmp_path_factory.mktemp("packed"), SAMPLES)


@pytest.fixture
def two_ranks(monkeypatch):
    """The launcher's word, as webdataset reads it, that this is the second of two processes."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")


def rows_of(source, **options):
    return list(SequenceSource(source, spec=BatchSpec(batch_size=4, **options)).rows(epoch=0))


def tar_of(path, samples):
    with tarfile.open(path, "w") as tar:
        for key, parts in samples:
            for suffix, data in parts.items():
                info = tarfile.TarInfo(f"{key}.{suffix}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return str(path)


def test_a_row_with_an_encoded_image_becomes_an_item(made):
    first = rows_of(webdataset.WebDataset(made.tars(), shardshuffle=False))[0]
    assert isinstance(first, Item)
    assert (first.key, bytes(first.image), first.caption) == (key_of(0), jpeg_of(0), captions_of(0)[0])
    assert first.name == f"{made.tars()[0]}: {key_of(0)}.jpg"


def test_a_sequence_has_all_captions_too(made):
    found = rows_of(webdataset.WebDataset(made.tars(), shardshuffle=False), captions="all")
    assert [row.caption for row in found] == made.captions


def test_a_row_with_a_decoded_image_stays_as_it_is(made):
    rows = webdataset.WebDataset(made.tars(), shardshuffle=False).decode("torchrgb").to_tuple("jpg", "__key__")
    image, key = rows_of(rows)[0]
    assert (image.dtype, key) == (torch.float32, key_of(0))


def test_an_image_of_a_foreign_tar_may_have_any_of_the_suffixes(tmp_path):
    samples = [(str(number), {suffix: jpeg_of(number), "txt": b"x"}) for number, suffix in enumerate(("jpeg", "webp"))]
    tar = tar_of(tmp_path / "any.tar", samples)
    assert [row.name for row in rows_of(webdataset.WebDataset([tar], shardshuffle=False))] == [
        f"{tar}: 0.jpeg",
        f"{tar}: 1.webp",
    ]


# --- webdataset in a job of two processes -----------------------------------------------------------------------


@pytest.mark.parametrize("splitter", [webdataset.split_by_node, webdataset.shardlists.single_node_only, None])
def test_a_pipeline_is_read_whole_whatever_its_node_splitter(made, two_ranks, splitter):
    found = rows_of(webdataset.WebDataset(made.tars(), shardshuffle=False, nodesplitter=splitter))
    assert [row.key for row in found] == made.keys


def test_a_pipeline_inside_a_pipeline_is_read_whole(made, two_ranks):
    inner = webdataset.WebDataset(made.tars(), shardshuffle=False, nodesplitter=webdataset.split_by_node)
    assert [row.key for row in rows_of(webdataset.DataPipeline(inner))] == made.keys


@pytest.mark.parametrize("loader", [DataLoader, webdataset.WebLoader])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_over_a_pipeline_is_read_whole(made, two_ranks, loader, workers):
    inner = webdataset.WebDataset(made.tars(), shardshuffle=False, nodesplitter=webdataset.split_by_node)
    found = rows_of(loader(inner, batch_size=None, num_workers=workers))
    assert sorted(row.key for row in found) == made.keys


def test_a_pipeline_keeps_its_length_of_an_epoch(made, two_ranks):
    rows = webdataset.WebDataset(made.tars(), shardshuffle=False).with_epoch(SAMPLES + 7)
    assert [row.key for row in rows_of(rows)] == made.keys + made.keys[:7]


def test_a_pipeline_keeps_what_its_class_does(made, two_ranks):
    class Twice(webdataset.WebDataset):
        def __iter__(self):
            yield from super().__iter__()
            yield from super().__iter__()

    assert [row.key for row in rows_of(Twice(made.tars(), shardshuffle=False))] == made.keys * 2


def test_the_pipeline_of_the_user_is_not_changed(made, two_ranks):
    rows = webdataset.WebDataset(made.tars(), shardshuffle=False)
    stages = list(rows.pipeline)
    list(as_seen_by_one_process(rows))
    assert rows.pipeline == stages


def test_a_user_loader_is_not_changed(made):
    inner = webdataset.WebDataset(made.tars(), shardshuffle=False)
    loader = DataLoader(inner, batch_size=None)
    as_seen_by_one_process(loader)
    assert loader.dataset is inner


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pipeline_may_make_batches_itself(made, two_ranks, workers):
    rows = webdataset.WebDataset(made.tars(), shardshuffle=False).to_tuple("__key__").batched(3)
    source = webdataset.WebLoader(rows, batch_size=None, num_workers=workers) if workers else rows
    found = [key for [keys] in open_batches(source).batches(epoch=0) for key in keys]
    assert sorted(found) == made.keys


def test_shuffled_shards_are_told_their_epoch_also_in_workers(made):
    rows = webdataset.WebDataset(made.tars(), shardshuffle=10, detshuffle=True, seed=1)
    loader = DataLoader(rows, batch_size=None, num_workers=1)
    epochs = [[row.key for row in SequenceSource(loader, spec=SPEC).rows(epoch=epoch)] for epoch in (0, 1, 0)]
    assert epochs[0] == epochs[2] != epochs[1]
