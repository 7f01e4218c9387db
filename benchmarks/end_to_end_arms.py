"""The ways from shards to batches on every rank, made alike so that one loop measures each.

    ours-uint8      StreamLoader
    ours-float32    the same, each rank converts its portion
    stock-uint8     accelerate's own DataLoaderDispatcher around webdataset with 2 workers, which use the same decoder
    stock-float32   the same, the workers convert
    pillow-uint8    the same as stock, with Pillow's draft mode and its bilinear resize as decoder
    pillow-float32

Stock gets all help that needs no other code than its own: batches lie in memory as it sends them, they hold images
alone, and the ranks that only receive start no workers.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
import webdataset
from accelerate import Accelerator
from accelerate.data_loader import DataLoaderDispatcher
from torch.utils.data import IterableDataset

from ceiling import by_pillow
from end_to_end_plan import Arm, Plan
from shards.dataset import DatasetReader
from stream.loader import StreamLoader
from stream.options import StreamOptions
from stream.resize import ResizeSpec, decode_into

WORKERS = 2


class Loader(Protocol):
    """One way. `images` begins anew and yields this rank's images; it must be closed."""

    def images(self) -> Iterator[torch.Tensor]:
        """Yield [rows, 3, side, side]."""

    def close(self) -> None:
        """Give back what is held."""


class Decode(Protocol):
    """Makes uint8 [H, W, 3] of a sample of webdataset."""

    def __call__(self, sample: dict[str, Any], spec: ResizeSpec) -> torch.Tensor:
        """Decode and resize."""


class Ours:
    """See the top of this file."""

    def __init__(self, plan: Plan, accelerator: Accelerator, *, to_float: bool) -> None:
        self._to_float = to_float
        self._loader = StreamLoader(
            plan.data,
            accelerator=accelerator,
            batch_size=plan.rows,
            image_size=plan.side,
            name="float32" if to_float else "uint8",
            options=StreamOptions(transport="ours"),
        )
        accelerator.prepare(self._loader)

    def images(self) -> Iterator[torch.Tensor]:
        """Yield the images of this rank's portions."""
        for batch in self._loader:
            yield batch["image"].float().div_(255) if self._to_float else batch["image"]

    def close(self) -> None:
        """Close the loader with its links."""
        self._loader.close()


class Stock:
    """See the top of this file."""

    def __init__(self, plan: Plan, accelerator: Accelerator, *, decode: Decode, to_float: bool) -> None:
        reads = accelerator.is_main_process
        source = pipeline(plan, decode, to_float=to_float) if reads else Nothing()
        # Made here, for prepare() refuses to split the batches of a DataLoader without a batch size
        self._loader: Any = DataLoaderDispatcher(
            source, split_batches=True, _drop_last=True, batch_size=None, num_workers=WORKERS if reads else 0
        )

    def images(self) -> Iterator[torch.Tensor]:
        """Yield this rank's slices."""
        try:
            for batch in self._loader:
                yield batch["image"]
        finally:
            self._loader.end()

    def close(self) -> None:
        """Do nothing: workers end with their iteration."""


class Nothing(IterableDataset[Any]):
    """What a rank reads that only receives."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())


def same_decoder(sample: dict[str, Any], spec: ResizeSpec) -> torch.Tensor:
    """Decode and resize as ours does."""
    out = torch.empty((spec.height, spec.width, 3), dtype=torch.uint8)
    decode_into(sample["jpg"], out, spec, name=sample["__key__"])
    return out


def pillow_decoder(sample: dict[str, Any], spec: ResizeSpec) -> torch.Tensor:
    """Decode and resize by Pillow alone."""
    return torch.from_numpy(np.array(by_pillow(sample["jpg"], spec)))


def pipeline(plan: Plan, decode: Decode, *, to_float: bool) -> Any:  # noqa: ANN401 - webdataset is untyped
    """Return an endless webdataset pipeline of batches, to be shared by the workers."""
    reader = DatasetReader(plan.data)
    # Once for each worker, so that none is without a shard and all have equally many
    urls = [f"{reader.url}/{info.url}" for info in reader.manifest.shardlist] * WORKERS
    spec = ResizeSpec(plan.side, plan.side)
    samples = webdataset.WebDataset(urls, shardshuffle=False, nodesplitter=None, empty_check=False)
    batches = samples.map(partial(decode, spec=spec)).batched(
        plan.rows, collation_fn=partial(collate, to_float=to_float), partial=False
    )
    return batches.repeat()


def collate(images: Sequence[torch.Tensor], *, to_float: bool) -> dict[str, torch.Tensor]:
    """Make a batch, contiguous: stock dispatch scrambles any other layout."""
    image = torch.stack(list(images)).permute(0, 3, 1, 2).contiguous()
    return {"image": image.float().div_(255) if to_float else image}


def loader(arm: Arm, plan: Plan, accelerator: Accelerator) -> Loader:
    """Return one way.

    Raises:
        ValueError: it is none: the ceiling.
    """
    kind, _, pixels = arm.partition("-")
    if kind == "ours":
        return Ours(plan, accelerator, to_float=pixels == "float32")
    if kind in {"stock", "pillow"}:
        decode = same_decoder if kind == "stock" else pillow_decoder
        return Stock(plan, accelerator, decode=decode, to_float=pixels == "float32")
    raise ValueError(f"{arm} is no way from shards to batches")
