"""What reading captions alone costs, counted at the store; `pytest --proof` reads 10,000 rows."""

import numpy as np
import pytest
from accelerate import Accelerator, DataLoaderConfiguration

from packed import key_of
from shards.index import RowInfo
from shards.local import LocalStore
from shards.store import open_store
from shards.writer import ShardWriter
from stream.loader import StreamLoader

pytest_plugins = ["reads_counted"]


@pytest.fixture(scope="module")
def rows(full):
    return full(600, 10_000)


@pytest.fixture(scope="module")
def url(tmp_path_factory, rows):
    """Rows of a photograph's size and a caption's."""
    folder, chance = tmp_path_factory.mktemp("packed") / "out", np.random.default_rng(0)
    image = chance.bytes(60_000)  # never decoded here
    with ShardWriter(open_store(str(folder)), name="made", shard_bytes=8 * 2**20) as writer:
        for number in range(rows):
            text = f"caption of row {number}, of the usual length of a sentence".encode()
            size = int(chance.integers(20_000, 60_000))
            writer.add(key_of(number), {"jpg": image[:size], "txt": text}, RowInfo(640, 480, 0, (len(text),)))
    return str(folder)


@pytest.fixture
def requests(monkeypatch):
    """What a store was asked for from now on, each request with its number of ranges.

    What the page cache turned out not to hold is asked for again, and counts once.
    """
    found, read_many, read_ranges_into = {}, LocalStore.read_many, LocalStore.read_ranges_into

    def counting_many(self, wanted):
        found[tuple(wanted)] = len(wanted)
        return read_many(self, wanted)

    def counting_into(self, name, buffer, ranges, *, wait=True):
        found[name, tuple(ranges)] = len(ranges)
        return read_ranges_into(self, name, buffer, ranges, wait=wait)

    monkeypatch.setattr(LocalStore, "read_many", counting_many)
    monkeypatch.setattr(LocalStore, "read_ranges_into", counting_into)
    return found


@pytest.mark.parametrize("mode", ["dispatch", "shard"])
def test_captions_alone_are_few_bytes_in_no_more_requests(url, rows, mode, reads, requests, monkeypatch):
    monkeypatch.setattr("stream.collate.Collator._images", lambda _self, items: [0] * len(items))
    config = DataLoaderConfiguration(dispatch_batches=mode == "dispatch", split_batches=True)
    counts = {}
    for name, parts in (("captions", ("txt",)), ("all", None)):
        reads.ranges.clear()
        requests.clear()
        accelerator = Accelerator(cpu=True, dataloader_config=config)
        loader = StreamLoader(url, accelerator=accelerator, batch_size=64, parts=parts)
        assert sum(len(batch["key"]) for batch in loader) == rows
        loader.close()
        size = sum(end - start for _, start, end in set(reads.ranges))
        counts[name] = (size, len(requests), sum(requests.values()))
    assert counts["captions"][0] <= 0.05 * counts["all"][0]
    assert counts["captions"][1] <= counts["all"][1]
    # Rows that are neighbours by chance share a range where all of them is read
    assert counts["captions"][2] <= 1.2 * counts["all"][2]
