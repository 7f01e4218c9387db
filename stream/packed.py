"""Our shards as a source of rows, and how one of their samples becomes a row."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from shards.dataset import DatasetReader
from shards.sample import Sample
from stream.captions import pick, suffixes_for
from stream.collate import Item
from stream.draws import row_seed
from stream.errors import OptionError, SourceError
from stream.keep import EVERYTHING, Subset
from stream.options import BatchSpec, CaptionPolicy
from stream.schedule import Slot

IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "webp")


class Picking(NamedTuple):
    """How a sample becomes a row: what of it is wanted, the caption policy, and what its draws depend on."""

    captions: CaptionPolicy
    seed: int
    epoch: int
    with_image: bool = True
    with_caption: bool = True

    def item(self, sample: Sample, *, number: int, url: str, position: int, caption: int | None) -> Item:
        """Return the row of a sample; `number` is its global number, `url` that of its shard, `caption` as in `pick`.

        Raises:
            SourceError: the sample lacks its image or its captions.
        """
        name, image = f"shard {url}: {sample.key}", None
        if self.with_image:
            suffix = image_of(sample)
            name, image = f"{name}.{suffix}", sample.parts[suffix]
        text: str | list[str] | None = None
        if self.with_caption:
            text = pick(sample, self.captions, seed=self.seed, epoch=self.epoch, position=position, caption=caption)
        draws = row_seed(seed=self.seed, epoch=self.epoch, position=position)
        return Item(sample.key, image, name, text, number, draws)


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


class PackedSource:
    """Our shards. A row is a sample, with captions "each" one caption of a sample.

    Raises:
        OptionError: the spec's `parts` name no member that a batch is made of.
    """

    def __init__(self, reader: DatasetReader, *, spec: BatchSpec) -> None:
        self.reader, self._captions, self._seed = reader, spec.captions, spec.seed
        self._each = spec.captions == "each"
        self._subset = Subset(reader, each_caption=self._each, keep=spec.keep, limit=spec.limit)
        self._moved = self._each or spec.keep is not None  # else a row has the number of its sample
        texts = suffixes_for(spec.captions)
        self.suffixes = (*IMAGE_SUFFIXES, *texts) if spec.parts is None else spec.parts
        self._with_image = any(suffix in IMAGE_SUFFIXES for suffix in self.suffixes)
        self._with_caption = set(texts) <= set(self.suffixes)
        if not self._with_image and not self._with_caption:
            problem = (
                f'name an image ({", ".join(IMAGE_SUFFIXES)}), or "{texts[0]}", which captions={spec.captions!r} reads'
            )
            raise OptionError("parts", spec.parts, problem)

    def __len__(self) -> int:
        return len(self._subset)

    @property
    def subset(self) -> str:
        """What tells the rows from those of another choice of the same data, see `Subset.digest`."""
        return self._subset.digest

    @property
    def is_whole(self) -> bool:
        """Whether every row of the dataset is one here."""
        return self._subset.digest == EVERYTHING

    def shard_rows(self) -> list[int]:
        """Return the number of rows of each shard, from the manifest alone unless rows are chosen by `keep`."""
        return self._subset.shard_rows

    def rows(self, slots: Sequence[Slot], *, epoch: int) -> list[Any]:
        """Return an `Item` for each slot; a sample that several slots share is read once.

        Raises:
            ShardsError, FileNotFoundError: the shards cannot be read.
            SourceError: a sample lacks its image or its captions.
        """
        located = [self.sample_of(slot.row) for slot in slots]
        wanted = list(dict.fromkeys(sample for sample, _ in located))
        found = dict(zip(wanted, self.reader.read(wanted, suffixes=self.suffixes), strict=True))
        picking, manifest = self.picking(epoch), self.reader.manifest
        items: list[Any] = []
        for slot, (number, caption) in zip(slots, located, strict=True):
            url = f"{self.reader.url}/{manifest.shardlist[manifest.locate(number)[0]].url}"
            position = slot.position
            items.append(picking.item(found[number], number=number, url=url, position=position, caption=caption))
        return items

    def cost(self, slots: Sequence[Slot]) -> int:
        """Return the bytes of the samples, taking each for its shard's average."""
        infos = self.reader.manifest.shardlist
        samples = {self.sample_of(slot.row)[0] for slot in slots}
        shards_hit = [infos[self.reader.manifest.locate(sample)[0]] for sample in samples]
        return sum(info.filesize // info.nsamples for info in shards_hit)

    def picking(self, epoch: int) -> Picking:
        """Return how samples become rows in an epoch."""
        return Picking(self._captions, self._seed, epoch, self._with_image, self._with_caption)

    def sample_of(self, row: int) -> tuple[int, int | None]:
        """Return the sample behind a row, and which of its captions the row is (None: as the policy says)."""
        return self._subset.place(row) if self._moved else (row, None)
