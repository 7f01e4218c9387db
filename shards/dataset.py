"""Read a whole dataset by global row: manifest, indexes and shards opened at first use."""

import errno
from collections.abc import Callable, Mapping, Sequence

from xxhash import xxh3_128_hexdigest

from shards.errors import ChecksumError, MismatchError
from shards.index import ShardIndex
from shards.manifest import FILE_NAME, Manifest, ShardInfo
from shards.planned import DatasetPlan, PlanStart, assign, fill, fill_in_place, tell_of_damage
from shards.ranges import Merged
from shards.retry import Patience
from shards.rows import PlacedSample, ReadPlan, ShardReader
from shards.sample import Sample
from shards.store import Store, open_store

_NO_DATASET = (
    "no packed dataset is here; give the folder that the packer wrote, or pack images and captions first with "
    "tools/pack_coco.py"
)


_BEGINNING, _PATIENCE = PlanStart(), Patience()


class DatasetReader:
    """The rows of a packed dataset, numbered from 0 over all shards in storage order.

    Thread-safe without a lock, so that no fork can copy a held one: threads that open one shard at the same time may
    read its index more than once, and one of the copies stays. Picklable: a copy in another process opens its own
    files. `url` is the dataset's folder or its manifest file (`.../*.json`).

    Raises:
        FileNotFoundError: at first use: there is no manifest, index or shard at that URL.
        ManifestError, IndexFormatError, MismatchError: at first use: the files cannot be trusted.
    """

    def __init__(
        self,
        url: str,
        *,
        storage_options: Mapping[str, object] | None = None,
        verify: bool = True,
        patience: Patience = _PATIENCE,
    ) -> None:
        folder, self._file = _split(url)
        self._store: Store = open_store(folder, storage_options=storage_options, patience=patience)
        self._verify = verify
        self._manifest: Manifest | None = None
        self._readers: dict[int, ShardReader] = {}

    def __getstate__(self) -> tuple[Store, str, bool]:
        return self._store, self._file, self._verify

    def __setstate__(self, state: tuple[Store, str, bool]) -> None:
        self._store, self._file, self._verify = state
        self._manifest, self._readers = None, {}

    def __len__(self) -> int:
        return self.manifest.samples

    @property
    def url(self) -> str:
        """The URL of the dataset's folder."""
        return self._store.url

    @property
    def manifest(self) -> Manifest:
        """The dataset's manifest."""
        if self._manifest is None:
            url = self._store.url_of(self._file)
            try:
                data = self._store.read(self._file)
            except FileNotFoundError as exc:
                raise FileNotFoundError(errno.ENOENT, _NO_DATASET, url) from exc
            self._manifest = Manifest.from_bytes(data, url=url)
        return self._manifest

    def index(self, shard_no: int) -> ShardIndex:
        """Return the index of a shard; the first call reads it and compares shard, index and manifest."""
        return self.shard(shard_no).index

    def shard(self, shard_no: int) -> ShardReader:
        """Return the reader of a shard.

        Raises:
            IndexError: there is no such shard.
        """
        reader = self._readers.get(shard_no)
        return reader if reader is not None else self._readers.setdefault(shard_no, self._open(shard_no))

    def shard_url(self, row: int) -> str:
        """Return the URL of the shard that holds a global row.

        Raises:
            IndexError: there is no such row.
        """
        return self._store.url_of(self.manifest.shardlist[self.manifest.locate(row)[0]].url)

    def sample_bytes(self, row: int) -> int:
        """Return about how many bytes a global row's sample takes: its shard's average.

        Raises:
            IndexError: there is no such row.
        """
        info = self.manifest.shardlist[self.manifest.locate(row)[0]]
        return info.filesize // info.nsamples

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
            found = self._assembled(shard_no, [located[place][1] for place in group], plan, views)
            for place, sample in zip(group, found, strict=True):
                samples[place] = sample
        return [sample for sample in samples if sample is not None]

    def _assembled(self, shard_no: int, rows: list[int], plan: ReadPlan, views: list[memoryview]) -> list[Sample]:
        """Cut what was read into samples; what came damaged from a remote store is fetched once more."""
        shard = self.shard(shard_no)
        try:
            return shard.assemble(rows, plan, views)
        except ChecksumError as exc:
            if self._store.in_place:
                raise
            tell_of_damage(exc.url, [f"{exc.key}.{exc.suffix}"])
        again = self._store.read_many([self._range(shard_no, read) for read in plan.reads])
        return shard.assemble(rows, plan, map(memoryview, again))

    def plan(
        self, rows: Sequence[int], *, suffixes: Sequence[str] | None = None, start: PlanStart = _BEGINNING
    ) -> DatasetPlan:
        """Decide how these global rows are brought into one memory; reads nothing but indexes that were not open yet.

        With `start` the plan stands behind others in that memory, its rows and shards are numbered on from there.

        Raises:
            IndexError: there is no such row.
            IndexFormatError, MismatchError, StoreError, FileNotFoundError: a shard cannot be opened.
        """
        manifest = self.manifest
        groups: dict[int, list[int]] = {}
        for row in rows:
            shard_no, in_shard = manifest.locate(row)
            groups.setdefault(shard_no, []).append(in_shard)
        size, urls = start.at, [self._store.url_of(manifest.shardlist[shard_no].url) for shard_no in groups]
        samples: list[PlacedSample] = []
        reads: list[tuple[str, list[tuple[int, int]]]] = []
        for place, (shard_no, group) in enumerate(groups.items(), start=start.shard):
            shard, first = self.shard(shard_no), start.row + manifest.first_row(shard_no)
            ranges, parts, size = shard.lay_out(group, suffixes, at=size)
            reads.append((shard.name, ranges))
            key = shard.index.key
            samples += [PlacedSample(first + row, place, key(row), p) for row, p in zip(group, parts, strict=True)]
        return DatasetPlan(size, urls, samples, reads, start.at)

    def local_reads(self, plan: DatasetPlan) -> list[tuple[str, list[tuple[int, int]]]] | None:
        """Return (path, ranges) of local files whose bytes, one behind the other, `fill` brings; None: of no such."""
        store = self._store
        return [(store.url_of(name), ranges) for name, ranges in plan.reads] if store.in_place else None

    def fill_at_once(self, plan: DatasetPlan, memory: memoryview) -> bool:
        """As `fill`, but only if the system holds all of it in its memory: False, and `memory` in part filled, if not.

        So it never waits for a disk or a network.

        Raises:
            ValueError, StoreError, FileNotFoundError: as `fill`.
        """
        return self._store.in_place and fill_in_place(self._store, plan, memory, wait=False)

    def fill(
        self, plan: DatasetPlan, memory: memoryview, *, copy: Callable[[memoryview, memoryview], None] = assign
    ) -> None:
        """Bring the bytes of a plan into `memory` (writable, `plan.size` bytes).

        A store that cannot read in place brings all reads at once, then `copy(into, data)` copies each part; give one
        that lets other threads run meanwhile. A part that differs from its checksum is fetched once more then; who
        opens the samples compares all of them.

        Raises:
            ValueError: the memory is too short.
            StoreError, FileNotFoundError: a file cannot be read; the memory may be filled in part.
        """
        fill(self._store, plan, memory, copy=copy, verify=self._verify)

    def _range(self, shard_no: int, read: Merged) -> tuple[str, int, int]:
        return self.manifest.shardlist[shard_no].url, read.start, read.end

    def lone_index(self, shard_no: int) -> ShardIndex:
        """Return the index of a shard, compared with the manifest; the shard itself need not be reachable.

        Raises:
            IndexError: there is no such shard.
            IndexFormatError, MismatchError, StoreError, FileNotFoundError: the index cannot be read or trusted.
        """
        known = self._readers.get(shard_no)
        return known.index if known is not None else self._index(shard_no)

    def _open(self, shard_no: int) -> ShardReader:
        index = self._index(shard_no)
        reader = ShardReader(self._store, self.manifest.shardlist[shard_no].url, index, verify=self._verify)
        reader.check_size()
        return reader

    def _index(self, shard_no: int) -> ShardIndex:
        count = len(self.manifest.shardlist)
        if not 0 <= shard_no < count:
            raise IndexError(f"dataset {self.url} has {count} shards, not one numbered {shard_no}")
        info = self.manifest.shardlist[shard_no]
        data = self._store.read(info.index_url)
        url = self._store.url_of(info.index_url)
        index = ShardIndex(data, url=url)
        _check_listed(info, data, index)
        return index


def _check_listed(info: ShardInfo, data: bytes, index: ShardIndex) -> None:
    """Compare an index (and its bytes) with what the manifest lists.

    Raises:
        MismatchError: they differ.
    """
    for what, listed, found in (
        ("index bytes", info.index_filesize, len(data)),
        ("index digest", info.index_xxh3_128, xxh3_128_hexdigest(data)),
        ("shard bytes", info.filesize, index.shard_bytes),
        ("shard digest", info.xxh3_128, index.shard_xxh3_128),
        ("samples", info.nsamples, len(index)),
        ("captions", info.captions, index.captions_total),
    ):
        if listed != found:
            raise MismatchError(
                index.url, f"it is not the index that the manifest lists ({what}: {listed}, not {found})"
            )


def _split(url: str) -> tuple[str, str]:
    """Split the URL of a folder or of a manifest into (folder, file name of the manifest)."""
    folder, slash, last = url.rpartition("/")
    if not last.endswith(".json"):
        return url, FILE_NAME
    if not folder or folder.endswith((":/", "://")):  # "/manifest.json" and "memory://manifest.json" lie in a root
        folder += slash
    return folder or ".", last
