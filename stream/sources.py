"""What the loader reads: rows with an index (our shards, a map-style Dataset), or one sequence (an iterable).

A *row source* knows how many rows it has and brings any of them; a *sequence source* can only be read from its
beginning, so nothing about its order is ours; a *batch source* is a sequence of finished batches.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from torch.utils.data import IterableDataset, get_worker_info

from shards.dataset import DatasetReader
from shards.sample import Sample
from stream.bookmarks import Bookmarks
from stream.captions import pick, suffixes_for
from stream.collate import Item
from stream.draws import row_seed
from stream.errors import OptionError
from stream.foreign import one_pass, tell_epoch
from stream.mix import MixOrder
from stream.mixed import MixedSource, StreamMix
from stream.options import BatchSpec, Shuffle
from stream.order import Order
from stream.packed import IMAGE_SUFFIXES, PackedSource
from stream.schedule import Slot
from stream.tars import Tars, names_tars


class RowSource(Protocol):
    """Rows that can be brought in any order. Picklable; thread-safe."""

    def __len__(self) -> int:
        """Return the rows of an epoch."""

    def order(self, *, shuffle: Shuffle | None, seed: int, epoch: int, window_shards: int) -> Order | MixOrder:
        """Return which row stands at which position of an epoch."""

    def rows(self, slots: Sequence[Slot], *, epoch: int) -> list[Any]:
        """Return what stands at these slots, `Item`s or foreign rows, in their order."""

    def cost(self, slots: Sequence[Slot]) -> int:
        """Return about how many bytes `rows` will read for these slots."""


class MapSource:
    """Any map-style Dataset: one shard of `len(dataset)` rows, or of its first `limit`."""

    def __init__(self, dataset: Any, *, limit: int | None = None) -> None:  # noqa: ANN401 - duck-typed, as torch does
        self.dataset, self._limit = dataset, limit
        self._told: int | None = None

    def __len__(self) -> int:
        rows = len(self.dataset)
        return rows if self._limit is None else min(rows, self._limit)

    def shard_rows(self) -> list[int]:
        """Return the number of its rows."""
        return [len(self)]

    def order(self, *, shuffle: Shuffle | None, seed: int, epoch: int, window_shards: int) -> Order:
        """Return the order of an epoch."""
        return Order(self.shard_rows(), shuffle=shuffle, seed=seed, epoch=epoch, window_shards=window_shards)

    def rows(self, slots: Sequence[Slot], *, epoch: int) -> list[Any]:
        """Return what the dataset gives for these rows, by `__getitems__` where it has that.

        A dataset with `set_epoch` hears of each new epoch first, in every process that reads it.
        """
        if self._told != epoch:
            self._told = epoch
            tell_epoch(self.dataset, epoch)
        numbers = [slot.row for slot in slots]
        if getattr(self.dataset, "__getitems__", None):
            return list(self.dataset.__getitems__(numbers))
        return [self.dataset[number] for number in numbers]

    def cost(self, slots: Sequence[Slot]) -> int:  # noqa: ARG002 - the protocol's signature
        """Return 0: a foreign dataset does not tell."""
        return 0


class SequenceSource:
    """Any iterable of rows, such as a webdataset pipeline: read from its beginning, beside the reader alone.

    In one of torch's worker processes it gives that worker's part: torch's IterableDatasets and webdataset's pipelines
    know which worker they are in, see `shares_out`.
    """

    def __init__(self, iterable: Iterable[Any], *, spec: BatchSpec) -> None:
        self.iterable, self._captions, self._seed = iterable, spec.captions, spec.seed

    def rows(self, *, epoch: int, bookmarks: Bookmarks | None = None) -> Iterator[Any]:
        """Yield the rows of one pass: `Item`s where a row holds an encoded image, else what the source gave.

        A row's position, which random captions are drawn from, differs from that of any row of another worker.
        `bookmarks` say behind which row to begin.
        """
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        begun = 0 if bookmarks is None else bookmarks.base
        for number, row in enumerate(one_pass(self.iterable, epoch=epoch, bookmarks=bookmarks), start=begun):
            yield self._item(row, number * workers + worker, epoch)

    def _item(self, row: Any, position: int, epoch: int) -> Any:  # noqa: ANN401 - foreign rows
        if not isinstance(row, Mapping) or "__key__" not in row:
            return row
        image = next((s for s in IMAGE_SUFFIXES if isinstance(row.get(s), bytes)), None)
        if image is None:
            return row
        texts = {s: memoryview(row[s]) for s in suffixes_for(self._captions) if isinstance(row.get(s), bytes)}
        sample = Sample(row["__key__"], texts)
        text = pick(sample, self._captions, seed=self._seed, epoch=epoch, position=position, caption=None)
        name = f"{row.get('__url__', 'the source')}: {sample.key}.{image}"
        draws = row_seed(seed=self._seed, epoch=epoch, position=position)
        return Item(sample.key, memoryview(row[image]), name, text, position, draws)


class BatchSource:
    """Any iterable of finished batches: a pipeline that ends in `.batched()`, a DataLoader, an own batch maker."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        self.iterable = iterable

    def batches(self, *, epoch: int, bookmarks: Bookmarks | None = None) -> Iterator[Any]:
        """Yield the batches of one pass, in a worker process those of its part, as the source made them.

        `bookmarks` say behind which batch to begin.
        """
        yield from one_pass(self.iterable, epoch=epoch, bookmarks=bookmarks)


def open_any(
    source: Any,  # noqa: ANN401 - a URL or anything iterable
    *,
    spec: BatchSpec,
    read: Callable[[str], DatasetReader],
    blames: bool = False,
) -> "RowSource | SequenceSource | BatchSource":
    """Return the source behind what the user gave: of finished batches where no batch size is given, else of rows.

    Raises:
        OptionError: it is not what the batch size says.
    """
    return open_batches(source) if spec.batch_size is None else open_source(source, spec=spec, read=read, blames=blames)


def open_source(
    source: Any,  # noqa: ANN401 - a URL or anything iterable
    *,
    spec: BatchSpec,
    read: Callable[[str], DatasetReader],
    blames: bool = False,
) -> RowSource | SequenceSource:
    """Return the source behind what the user gave; `read` opens a dataset of ours by its URL.

    Raises:
        OptionError: it is neither the URL of a packed dataset or of tars, nor a dataset.
    """
    if isinstance(source, str | os.PathLike):
        url = os.fspath(source)
        if "*" in url:
            problem = (
                "names of tars are given by braces, e.g. coco-{000000..000099}.tar, and a packed dataset by its folder"
            )
            raise OptionError("source", url, problem)
        return (
            SequenceSource(Tars(url), spec=spec)
            if names_tars(url)
            else PackedSource(read(url), spec=spec, blames=blames)
        )
    if isinstance(source, StreamMix):
        sources = [PackedSource(read(url), spec=spec, among_others=True) for url in source.sources]
        return MixedSource(sources, source.mix, spec=spec, blames=blames)
    # An IterableDataset inherits a __getitem__ that only raises, and may have a length
    if hasattr(source, "__getitem__") and hasattr(source, "__len__") and not isinstance(source, IterableDataset):
        return MapSource(source, limit=spec.limit)
    _refuse_iterator(source)
    if isinstance(source, Iterable):
        return SequenceSource(source, spec=spec)
    raise OptionError("source", source, "give a dataset's URL, a Dataset, or an iterable such as a webdataset pipeline")


def open_batches(source: Any) -> BatchSource:  # noqa: ANN401 - anything iterable
    """Return the source of finished batches behind what the user gave.

    Raises:
        OptionError: it gives samples, or nothing.
    """
    if isinstance(source, str | os.PathLike):
        raise OptionError("source", source, "gives samples, no batches; say with batch_size= how many make one")
    _refuse_iterator(source)
    if not isinstance(source, Iterable):
        raise OptionError("source", source, "give an iterable of batches, such as a pipeline that ends in .batched()")
    return BatchSource(source)


def _refuse_iterator(source: object) -> None:
    if isinstance(source, Iterator):
        problem = "an iterator can be read once, so a second epoch would be empty; give what it was made from"
        raise OptionError("source", source, problem)


def shares_out(source: SequenceSource | BatchSource) -> bool:
    """Tell whether the worker processes of one reader share this source out among them.

    torch's IterableDatasets are asked to (`get_worker_info`), webdataset's pipelines do; of any other iterable each
    worker would read all.
    """
    return isinstance(source.iterable, IterableDataset)
