"""Read a whole dataset by global row: manifest, indexes and shards opened at first use."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from threading import Lock

from xxhash import xxh3_128_hexdigest

from shards.errors import MismatchError
from shards.index import ShardIndex
from shards.manifest import FILE_NAME, Manifest
from shards.ranges import Merged
from shards.rows import ShardReader
from shards.sample import Sample
from shards.store import Store, open_store


class DatasetReader:
    """The rows of a packed dataset, numbered from 0 over all shards in storage order.

    Thread-safe and picklable: a copy in another process opens its own files. `url` is the dataset's folder or its
    manifest file.

    Raises:
        FileNotFoundError: at first use: there is no manifest, index or shard at that URL.
        ManifestError, IndexFormatError, MismatchError: at first use: the files cannot be trusted.
    """

    def __init__(self, url: str, *, storage_options: Mapping[str, object] | None = None, verify: bool = True) -> None:
        folder, _, last = url.rstrip("/").rpartition("/")
        named = last.endswith(".json")
        self._store: Store = open_store((folder or ".") if named else url, storage_options=storage_options)
        self._file = last if named else FILE_NAME
        self._verify = verify
        self._readers: dict[int, ShardReader] = {}
        self._lock = Lock()

    def __getstate__(self) -> tuple[Store, str, bool]:
        return self._store, self._file, self._verify

    def __setstate__(self, state: tuple[Store, str, bool]) -> None:
        self._store, self._file, self._verify = state
        self._readers, self._lock = {}, Lock()

    def __len__(self) -> int:
        return self.manifest.samples

    @property
    def url(self) -> str:
        """The URL of the dataset's folder."""
        return self._store.url

    @cached_property
    def manifest(self) -> Manifest:
        """The dataset's manifest."""
        return Manifest.from_bytes(self._store.read(self._file), url=self._store.url_of(self._file))

    def index(self, shard_no: int) -> ShardIndex:
        """Return the index of a shard; the first call reads it and compares shard, index and manifest."""
        return self.shard(shard_no).index

    def shard(self, shard_no: int) -> ShardReader:
        """Return the reader of a shard."""
        reader = self._readers.get(shard_no)
        if reader is None:
            with self._lock:
                reader = self._readers.get(shard_no) or self._open(shard_no)
                self._readers[shard_no] = reader
        return reader

    def read(self, rows: Sequence[int], *, suffixes: Sequence[str] | None = None) -> list[Sample]:
        """Return the samples of these global rows, in their order, by merged reads over all shards.

        `suffixes` limits the parts that are read; a sample has those of them that exist.

        Raises:
            IndexError: there is no such row.
            ChecksumError: a part differs from its index.
            StoreError, FileNotFoundError: a file cannot be read.
        """
        places: dict[int, list[int]] = {}
        located = [self.manifest.locate(row) for row in rows]
        for place, (shard_no, _) in enumerate(located):
            places.setdefault(shard_no, []).append(place)
        plans = {
            shard_no: self.shard(shard_no).plan([located[place][1] for place in group], suffixes)
            for shard_no, group in places.items()
        }
        answers = iter(
            self._store.read_many([self._range(no, read) for no, plan in plans.items() for read in plan.reads])
        )
        samples: list[Sample | None] = [None] * len(rows)
        for shard_no, plan in plans.items():
            group = places[shard_no]
            views = [memoryview(next(answers)) for _ in plan.reads]
            found = self.shard(shard_no).assemble([located[place][1] for place in group], plan, views)
            for place, sample in zip(group, found, strict=True):
                samples[place] = sample
        return [sample for sample in samples if sample is not None]

    def _range(self, shard_no: int, read: Merged) -> tuple[str, int, int]:
        return self.manifest.shardlist[shard_no].url, read.start, read.end

    def _open(self, shard_no: int) -> ShardReader:
        info = self.manifest.shardlist[shard_no]
        data = self._store.read(info.index_url)
        url = self._store.url_of(info.index_url)
        index = ShardIndex(data, url=url)
        if xxh3_128_hexdigest(data) != info.index_xxh3_128 or index.shard_xxh3_128 != info.xxh3_128:
            raise MismatchError(url, "the index is not the one that the manifest lists")
        reader = ShardReader(self._store, info.url, index, verify=self._verify)
        reader.check_size()
        return reader
