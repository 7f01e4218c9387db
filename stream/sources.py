"""What the loader reads: rows with an index (our shards, a map-style Dataset), or one sequence (an iterable).

A *row source* knows how many rows it has and brings any of them; a *sequence source* can only be read from its
beginning, so nothing about its order is ours.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Protocol, cast

from torch.utils.data import DataLoader, IterableDataset

from shards.dataset import DatasetReader
from shards.sample import Sample
from stream.captions import pick, suffixes_for
from stream.collate import Item
from stream.errors import OptionError, SourceError
from stream.options import BatchSpec
from stream.schedule import Slot

IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "webp")


class RowSource(Protocol):
    """Rows that can be brought in any order. Picklable; thread-safe."""

    def shard_rows(self) -> Sequence[int]:
        """Return the number of rows of each shard, in storage order."""

    def rows(self, slots: Sequence[Slot], *, epoch: int) -> list[Any]:
        """Return what stands at these slots, `Item`s or foreign rows, in their order."""

    def cost(self, slots: Sequence[Slot]) -> int:
        """Return about how many bytes `rows` will read for these slots."""


class PackedSource:
    """Our shards. A row is a sample, with captions "each" one caption of a sample."""

    def __init__(self, reader: DatasetReader, *, spec: BatchSpec) -> None:
        self.reader, self._captions, self._seed = reader, spec.captions, spec.seed
        self._suffixes = (*IMAGE_SUFFIXES, *suffixes_for(spec.captions))

    def __len__(self) -> int:
        return sum(self.shard_rows())

    def shard_rows(self) -> list[int]:
        """Return the number of rows of each shard, from the manifest alone."""
        infos = self.reader.manifest.shardlist
        return [info.captions if self._captions == "each" else info.nsamples for info in infos]

    def rows(self, slots: Sequence[Slot], *, epoch: int) -> list[Any]:
        """Return an `Item` for each slot; a sample that several slots share is read once.

        Raises:
            ShardsError, FileNotFoundError: the shards cannot be read.
            SourceError: a sample lacks its image or its captions.
        """
        located = [self._sample_of(slot.row) for slot in slots]
        wanted = list(dict.fromkeys(sample for sample, _ in located))
        found = dict(zip(wanted, self.reader.read(wanted, suffixes=self._suffixes), strict=True))
        items: list[Any] = []
        for slot, (number, caption) in zip(slots, located, strict=True):
            sample = found[number]
            name, image = self._image(number, sample)
            text = pick(sample, self._captions, seed=self._seed, epoch=epoch, position=slot.position, caption=caption)
            items.append(Item(sample.key, image, name, text, number))
        return items

    def cost(self, slots: Sequence[Slot]) -> int:
        """Return the bytes of the samples, taking each for its shard's average."""
        infos = self.reader.manifest.shardlist
        samples = {self._sample_of(slot.row)[0] for slot in slots}
        shards_hit = [infos[self.reader.manifest.locate(sample)[0]] for sample in samples]
        return sum(info.filesize // info.nsamples for info in shards_hit)

    def _sample_of(self, row: int) -> tuple[int, int | None]:
        if self._captions != "each":
            return row, None
        manifest = self.reader.manifest
        shard_no, number = manifest.locate_caption(row)
        in_shard, caption = self.reader.index(shard_no).caption_row(number)
        return manifest.first_row(shard_no) + in_shard, caption

    def _image(self, number: int, sample: Sample) -> tuple[str, memoryview]:
        for suffix in IMAGE_SUFFIXES:
            if suffix in sample.parts:
                shard_no, _ = self.reader.manifest.locate(number)
                shard = self.reader.manifest.shardlist[shard_no].url
                return f"shard {self.reader.url}/{shard}: {sample.key}.{suffix}", sample.parts[suffix]
        parts = ", ".join(sample.parts) or "none"
        raise SourceError(sample.key, f"the sample has no image part ({', '.join(IMAGE_SUFFIXES)}), only {parts}")


class MapSource:
    """Any map-style Dataset: one shard of `len(dataset)` rows."""

    def __init__(self, dataset: Any) -> None:  # noqa: ANN401 - duck-typed, as torch does
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def shard_rows(self) -> list[int]:
        """Return the dataset's length."""
        return [len(self.dataset)]

    def rows(self, slots: Sequence[Slot], *, epoch: int) -> list[Any]:  # noqa: ARG002 - the protocol's signature
        """Return what the dataset gives for these rows, by `__getitems__` where it has that."""
        numbers = [slot.row for slot in slots]
        if getattr(self.dataset, "__getitems__", None):
            return list(self.dataset.__getitems__(numbers))
        return [self.dataset[number] for number in numbers]

    def cost(self, slots: Sequence[Slot]) -> int:  # noqa: ARG002 - the protocol's signature
        """Return 0: a foreign dataset does not tell."""
        return 0


class SequenceSource:
    """Any iterable, such as a webdataset pipeline: read from its beginning by the reader alone."""

    def __init__(self, iterable: Iterable[Any], *, spec: BatchSpec) -> None:
        self.iterable, self._captions, self._seed = iterable, spec.captions, spec.seed

    def rows(self, *, epoch: int) -> Iterator[Any]:
        """Yield the rows of one pass: `Item`s where a row holds an encoded image, else what the source gave."""
        set_epoch = getattr(self.iterable, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)
        for position, row in enumerate(as_seen_by_one_process(self.iterable)):
            yield self._item(row, position, epoch)

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
        return Item(sample.key, memoryview(row[image]), name, text, position)


def open_source(
    source: Any,  # noqa: ANN401 - a URL or anything iterable
    *,
    spec: BatchSpec,
    read: Callable[[str], DatasetReader],
) -> RowSource | SequenceSource:
    """Return the source behind what the user gave; `read` opens a dataset of ours by its URL.

    Raises:
        OptionError: it is neither the URL of a packed dataset nor a dataset.
    """
    if isinstance(source, str | os.PathLike):
        url = os.fspath(source)
        if url.endswith(".tar") or "{" in url:
            problem = "give the folder or the manifest of a packed dataset, or a webdataset.WebDataset over these tars"
            raise OptionError("source", url, problem)
        return PackedSource(read(url), spec=spec)
    # An IterableDataset inherits a __getitem__ that only raises, and may have a length
    if hasattr(source, "__getitem__") and hasattr(source, "__len__") and not isinstance(source, IterableDataset):
        return MapSource(source)
    if isinstance(source, Iterator):
        problem = "an iterator can be read once, so a second epoch would be empty; give what it was made from"
        raise OptionError("source", source, problem)
    if isinstance(source, Iterable):
        return SequenceSource(source, spec=spec)
    raise OptionError("source", source, "give a dataset's URL, a Dataset, or an iterable such as a webdataset pipeline")


def as_seen_by_one_process(iterable: Iterable[Any]) -> Iterable[Any]:
    """Return the iterable as a job of one process would read it.

    webdataset's pipelines split their shards by rank (`split_by_node`) or refuse several ranks
    (`single_node_only`, the default). Only one process reads here, so a copy without those stages is read instead;
    else it would lose (n-1)/n of the data. Pipelines inside a pipeline or a DataLoader (webdataset's `WebLoader`) are
    treated alike.
    """
    if isinstance(iterable, DataLoader):
        loader, dataset = copy(iterable), cast("Iterable[Any]", iterable.dataset)
        loader.__dict__["dataset"] = as_seen_by_one_process(dataset)  # torch refuses to assign it
        return loader
    stages = getattr(iterable, "pipeline", None)
    if not isinstance(stages, list):
        return iterable
    from webdataset import DataPipeline, shardlists  # noqa: PLC0415 - only who uses it pays for its import

    if not isinstance(iterable, DataPipeline):
        return iterable
    by_rank = (shardlists.single_node_only, shardlists.split_by_node)
    kept = [stage for stage in stages if not any(stage is splitter for splitter in by_rank)]
    alone: Any = copy(iterable)  # keeps what the user set: repetitions, length, a subclass
    alone.pipeline = [as_seen_by_one_process(stage) for stage in kept]
    pipeline: Iterable[Any] = alone
    return pipeline
