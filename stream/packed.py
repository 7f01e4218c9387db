"""Our shards as a source of rows, and how one of their samples becomes a row."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

from shards.dataset import DatasetReader
from shards.errors import ChecksumError
from shards.joined import JoinedReader
from shards.sample import Sample
from stream.captions import pick, suffixes_for
from stream.collate import Item, blamed
from stream.draws import row_seed
from stream.errors import OptionError, SourceError
from stream.keep import Subset
from stream.options import BatchSpec, CaptionPolicy, Shuffle
from stream.order import Order
from stream.schedule import Slot
from stream.state import digest_of

IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "webp")


class Picking(NamedTuple):
    """How a sample becomes a row: what of it is wanted, the caption policy, and what its draws depend on."""

    captions: CaptionPolicy
    seed: int
    epoch: int
    with_image: bool = True
    with_caption: bool = True
    blames: bool = False

    def item(self, sample: Sample, *, number: int, url: str, position: int, caption: int | None) -> Item:
        """Return the row of a sample; `number` is its global number, `url` that of its shard, `caption` as in `pick`.

        Raises:
            SourceError: the sample lacks its image or its captions.
        """
        with blamed(position, blames=self.blames):
            return self._item(sample, number, url, position, caption)

    def _item(self, sample: Sample, number: int, url: str, position: int, caption: int | None) -> Item:
        name, image = f"shard {url}: {sample.key}", None
        if self.with_image:
            suffix = image_of(sample)
            name, image = f"{name}.{suffix}", sample.parts[suffix]
        text: str | list[str] | None = None
        if self.with_caption:
            text = pick(sample, self.captions, seed=self.seed, epoch=self.epoch, position=position, caption=caption)
        draws = row_seed(seed=self.seed, epoch=self.epoch, position=position)
        return Item(sample.key, image, name, text, number, draws, position)


def image_of(sample: Sample) -> str:
    """Return the suffix of a sample's image.

    Raises:
        SourceError: it has none.
    """
    for suffix in IMAGE_SUFFIXES:
        if suffix in sample.parts:
            return suffix
    parts = ", ".join(sample.parts) or "none"
    raise SourceError(sample.key, f"the sample has no image part ({', '.join(IMAGE_SUFFIXES)}), only {parts}")


class Wanted(NamedTuple):
    """What a spec wants of each sample: the suffixes that are read, and what they are read for."""

    suffixes: tuple[str, ...]
    with_image: bool
    with_caption: bool

    @classmethod
    def of(cls, spec: BatchSpec) -> "Wanted":
        """Return what a spec wants.

        Raises:
            OptionError: its `parts` name no member that a batch is made of.
        """
        texts = suffixes_for(spec.captions)
        suffixes = (*IMAGE_SUFFIXES, *texts) if spec.parts is None else spec.parts
        with_image = any(suffix in IMAGE_SUFFIXES for suffix in suffixes)
        with_caption = set(texts) <= set(suffixes)
        if not with_image and not with_caption:
            images = ", ".join(IMAGE_SUFFIXES)
            problem = f'name an image ({images}), or "{texts[0]}", which captions={spec.captions!r} reads'
            raise OptionError("parts", spec.parts, problem)
        return cls(suffixes, with_image, with_caption)


class Samples:
    """Rows that are samples of packed shards, behind any reader of them; `sample_of` says which.

    With `blames` an error that a row's own bytes are to blame for is a `BadRowError`.

    Raises:
        OptionError: the spec's `parts` name no member that a batch is made of.
    """

    def __init__(self, reader: DatasetReader | JoinedReader, *, spec: BatchSpec, blames: bool = False) -> None:
        self._blames = blames
        self.reader, self._captions, self._seed = reader, spec.captions, spec.seed
        self._wanted = Wanted.of(spec)
        self.suffixes = self._wanted.suffixes

    def sample_of(self, row: int) -> tuple[int, int | None]:
        """Return the sample behind a row, and which of its captions the row is (None: as the policy says)."""
        raise NotImplementedError

    def rows(self, slots: Sequence[Slot], *, epoch: int) -> list[Any]:
        """Return an `Item` for each slot; a sample that several slots share is read once.

        Raises:
            ShardsError, FileNotFoundError: the shards cannot be read.
            SourceError: a sample lacks its image or its captions.
        """
        located = [self.sample_of(slot.row) for slot in slots]
        wanted = list(dict.fromkeys(sample for sample, _ in located))
        found = dict(zip(wanted, self._read(wanted, slots, located), strict=True))
        picking = self.picking(epoch)
        items: list[Any] = []
        for slot, (number, caption) in zip(slots, located, strict=True):
            url, position = self.reader.shard_url(number), slot.position
            items.append(picking.item(found[number], number=number, url=url, position=position, caption=caption))
        return items

    def _read(self, wanted: list[int], slots: Sequence[Slot], located: list[tuple[int, int | None]]) -> list[Sample]:
        try:
            return self.reader.read(wanted, suffixes=self.suffixes)
        except ChecksumError:
            if not self._blames:
                raise
        for slot, (number, _) in zip(slots, located, strict=True):
            with blamed(slot.position, blames=True):
                self.reader.read([number], suffixes=self.suffixes)
        return self.reader.read(wanted, suffixes=self.suffixes)  # it went well this time

    def cost(self, slots: Sequence[Slot]) -> int:
        """Return the bytes of the samples, taking each for its shard's average."""
        return sum(map(self.reader.sample_bytes, {self.sample_of(slot.row)[0] for slot in slots}))

    def picking(self, epoch: int) -> Picking:
        """Return how samples become rows in an epoch."""
        return Picking(
            self._captions, self._seed, epoch, self._wanted.with_image, self._wanted.with_caption, self._blames
        )


class PackedSource(Samples):
    """Our shards. A row is a sample, with captions "each" one caption of a sample."""

    reader: DatasetReader

    def __init__(
        self, reader: DatasetReader, *, spec: BatchSpec, blames: bool = False, among_others: bool = False
    ) -> None:
        super().__init__(reader, spec=spec, blames=blames)
        each = spec.captions == "each"
        self._subset = Subset(reader, each_caption=each, keep=spec.keep, limit=spec.limit, among_others=among_others)
        self._moved = each or spec.keep is not None  # else a row has the number of its sample

    def __len__(self) -> int:
        return len(self._subset)

    @cached_property
    def digest(self) -> str:
        """What tells these data from others, whatever is chosen of them: see `state.digest_of`."""
        return digest_of([(info.url, info.nsamples, info.xxh3_128) for info in self.reader.manifest.shardlist])

    @property
    def subset(self) -> str:
        """What tells the rows from those of another choice of the same data, see `Subset.digest`."""
        return self._subset.digest

    @property
    def missing(self) -> set[str]:
        """Keys to keep that these data lack."""
        len(self)  # chooses the rows
        return self._subset.missing

    @property
    def name(self) -> str:
        """What it is, for people."""
        return self.reader.url

    def shard_rows(self) -> list[int]:
        """Return the number of rows of each shard, from the manifest alone unless rows are chosen by `keep`."""
        return self._subset.shard_rows

    def order(self, *, shuffle: Shuffle | None, seed: int, epoch: int, window_shards: int) -> Order:
        """Return the order of an epoch."""
        return Order(self.shard_rows(), shuffle=shuffle, seed=seed, epoch=epoch, window_shards=window_shards)

    def sample_of(self, row: int) -> tuple[int, int | None]:
        """Return the sample behind a row, and which of its captions the row is (None: as the policy says)."""
        return self._subset.place(row) if self._moved else (row, None)
