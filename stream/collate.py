"""Encoded samples into a batch: decode and resize in threads, straight into the batch's memory.

A batch of our own samples is a dict:

    "image"    uint8 tensor [B, 3, H, W], RGB, channels_last strides (memory is [B, H, W, 3]);
               without an image size a list of B uint8 tensors [3, H_i, W_i]
    "caption"  list[str] of length B; with captions="all" a list[list[str]]
    "key"      list[str] of length B

"image" or "caption" is absent where it was not asked for (`parts`). A user's `transform` gets each row as an example,
a dict of what a batch of one such row holds without its first dimension; a batch of the examples that it returns has
their names, with tensors of one shape stacked and all else in lists.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch.utils.data import default_collate

from shards.errors import ChecksumError
from stream.columns import check_rows, together
from stream.decode import MAX_PIXELS, decode
from stream.errors import BadRowError, DecodeError, SourceError
from stream.gil import GilMeter, Held
from stream.owning import Empty, new_memory
from stream.resize import ResizeSpec, decode_into

Example: TypeAlias = Mapping[str, Any]
Collate: TypeAlias = Callable[[list[Any]], Any]
Transform: TypeAlias = Callable[[dict[str, Any], torch.Generator], Example]


class Hooks(NamedTuple):
    """What a user makes batches with: `transform` for each row, `collate` for all of a batch."""

    transform: Transform | None = None
    collate: Collate | None = None


class Item(NamedTuple):
    """One row as it was read: `image` is encoded, `name` says in messages where it came from.

    `image` and `caption` are None where they were not asked for. Rows with the same `sample` share one image (caption
    rows of one sample); it is decoded once. `draws` seeds the row's own generator.
    """

    key: str
    image: memoryview | None
    name: str
    caption: str | list[str] | None
    sample: int
    draws: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True)
class CollateOptions:
    """How items become a batch.

    `resize` None keeps the images' own sizes. `threads` is how many images decode at once (1: in the calling
    thread). `collate`, where given, makes the batch from a list of examples: dicts with "image" (uint8 tensor
    [3, H, W]), "caption" and "key"; for foreign rows it gets the rows as their source gave them. `same_rows`: it must
    return as many rows as it gets. `transform`, where given, makes each example another one before they are put
    together; its generator is seeded by the row's own draws.
    """

    resize: ResizeSpec | None
    threads: int = 1
    max_pixels: int = MAX_PIXELS
    collate: Collate | None = None
    same_rows: bool = True
    transform: Transform | None = None
    blames: bool = False


@contextmanager
def blamed(position: int, *, blames: bool) -> Iterator[None]:
    """With `blames` make an error that a row's own bytes are to blame for a `BadRowError`."""
    try:
        yield
    except (DecodeError, SourceError, ChecksumError) as exc:
        if not blames:
            raise
        raise BadRowError(position, str(exc)) from exc


_THREADS = "stream-decode"


class Decoder(Protocol):
    """Decodes the images of a whole batch in another process."""

    def decode_encoded(
        self, images: Sequence[tuple[str, memoryview]], *, empty: Empty | None = None
    ) -> torch.Tensor | list[torch.Tensor]:
        """Return uint8 [N, H, W, 3], or N of [H_i, W_i, 3]: of (name, bytes) each, in memory of `empty`."""


class _Here:
    """What belongs to one process: a fork copies no threads, and a lock as it is at that moment."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.pool: ThreadPoolExecutor | None = None
        self.lock, self.collating = threading.Lock(), threading.Lock()


class Collator:
    """Makes batches. Thread-safe; a pickled or forked copy starts threads of its own when it first needs them.

    A user's `collate` is called by one thread at a time: few are thread-safe, and Hugging Face's fast tokenizers raise
    "Already borrowed".

    Raises:
        DecodeError: from a call: an image cannot be decoded.
        SourceError: from a call: foreign rows cannot be put together.
    """

    def __init__(self, options: CollateOptions, helper: Decoder | None = None, *, empty: Empty = new_memory) -> None:
        """Start nothing yet; `empty` gives the memory that images of one size are decoded into, for a batch at once."""
        self.options, self._helper, self._empty = options, helper, empty
        self._meter = GilMeter()
        self._here = _Here()

    def __getstate__(self) -> CollateOptions:
        return self.options

    def __setstate__(self, options: CollateOptions) -> None:
        self.__init__(options)  # type: ignore[misc] # a copy elsewhere decodes there

    @property
    def held(self) -> Held:
        """Where the time of the threads that decode went; to be asked before `close`."""
        return self._meter.snapshot()

    def __call__(self, rows: Sequence[object]) -> Any:  # noqa: ANN401 - a user's collate returns what it likes
        """Return the batch of these rows, which are all `Item`s or all foreign."""
        if not all(isinstance(row, Item) for row in rows):
            return self._foreign(rows)
        items = [row for row in rows if isinstance(row, Item)]
        batch: dict[str, Any] = {}
        if items and items[0].image is not None:
            batch["image"] = self._images(items)
        if items and items[0].caption is not None:
            batch["caption"] = [item.caption for item in items]
        batch["key"] = [item.key for item in items]
        collate, transform = self.options.collate, self.options.transform
        if collate is None and transform is None:
            return batch
        examples = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
        if transform is not None:
            examples = self._transformed(transform, examples, items)
        return together(examples) if collate is None else self._collated(collate, examples)

    def close(self) -> None:
        """End the decoding threads. Idempotent."""
        here = self._own()
        with here.lock:
            pool, here.pool = here.pool, None
        if pool is not None:  # a garbage collection may call this in one of the pool's own threads
            pool.shutdown(wait=not threading.current_thread().name.startswith(_THREADS), cancel_futures=True)

    def _transformed(
        self, transform: Transform, examples: list[dict[str, Any]], items: list[Item]
    ) -> list[dict[str, Any]]:
        if len({item.sample for item in items}) < len(items) and isinstance(examples[0].get("image"), torch.Tensor):
            for example in examples:  # rows of one sample may lie in one memory, and a transform may write into it
                example["image"] = example["image"].clone()

        def made(pair: tuple[dict[str, Any], Item]) -> dict[str, Any]:
            example, item = pair
            try:
                result: object = transform(example, torch.Generator().manual_seed(item.draws))
            except Exception as exc:
                exc.add_note(f"in transform of {item.name}")
                raise
            if not isinstance(result, Mapping):
                problem = f"must return an example, a dict with names of its own; got a {type(result).__name__}"
                raise SourceError(f"transform of {item.name}", problem)
            return dict(result)

        return self._map(made, list(zip(examples, items, strict=True)))

    def _collated(self, collate: Collate, rows: list[Any]) -> Any:  # noqa: ANN401 - see __call__
        count = len(rows)
        with self._own().collating:
            batch = collate(rows)
        if self.options.same_rows:
            check_rows(batch, count)
        return batch

    def _foreign(self, rows: Sequence[object]) -> Any:  # noqa: ANN401 - see __call__
        if self.options.collate is not None:
            return self._collated(self.options.collate, list(rows))
        try:
            return default_collate(list(rows))
        except (TypeError, RuntimeError, KeyError) as exc:
            problem = f"rows cannot be put together into a batch ({exc}); give StreamLoader a collate= that can"
            raise SourceError("the source", problem) from exc

    def _images(self, items: list[Item]) -> Any:  # noqa: ANN401 - a tensor or a list of tensors
        places: dict[int, int] = {}
        for item in items:
            places.setdefault(item.sample, len(places))
        unique = list({item.sample: item for item in reversed(items)}.values())
        unique.sort(key=lambda item: places[item.sample])
        order = [places[item.sample] for item in items]
        memory = self._decoded(unique)
        if isinstance(memory, list):
            again = [place in order[:number] for number, place in enumerate(order)]  # each row is its user's to change
            return [
                (memory[place].clone() if is_again else memory[place]).permute(2, 0, 1)
                for place, is_again in zip(order, again, strict=True)
            ]
        if len(unique) < len(items):
            memory = memory[torch.tensor(order)]
        return memory.permute(0, 3, 1, 2)

    def _decoded(self, items: list[Item]) -> torch.Tensor | list[torch.Tensor]:
        """Return uint8 [N, H, W, 3], or without a size N of [H_i, W_i, 3]."""
        if self._helper is not None:
            return self._decoded_elsewhere(self._helper, items)
        spec = self.options.resize
        if spec is None:
            return self._map(self._full_size, items)
        memory = self._empty(len(items) * spec.height * spec.width * 3).view(len(items), spec.height, spec.width, 3)
        self._map(lambda pair: self._resized(pair[0], pair[1], spec), list(zip(items, memory.unbind(0), strict=True)))
        return memory

    def _decoded_elsewhere(self, helper: Decoder, items: list[Item]) -> torch.Tensor | list[torch.Tensor]:
        try:
            return helper.decode_encoded([(item.name, _encoded(item)) for item in items], empty=self._empty)
        except DecodeError as exc:
            mine = [item.position for item in items if item.name == exc.name]
            if not self.options.blames or not mine:
                raise
            raise BadRowError(mine[0], str(exc)) from exc

    def _full_size(self, item: Item) -> torch.Tensor:
        with blamed(item.position, blames=self.options.blames):
            return self._whole(item)

    def _whole(self, item: Item) -> torch.Tensor:
        return torch.from_numpy(decode(_encoded(item), name=item.name, max_pixels=self.options.max_pixels))

    def _resized(self, item: Item, out: torch.Tensor, spec: ResizeSpec) -> None:
        with blamed(item.position, blames=self.options.blames):
            decode_into(_encoded(item), out, spec, name=item.name, max_pixels=self.options.max_pixels)

    def _map(self, work: Callable[[Any], Any], values: list[Any]) -> list[Any]:
        if self.options.threads == 1 or len(values) == 1:
            with self._meter.job():
                return [work(value) for value in values]
        futures = [self._threads().submit(self._metered, work, value) for value in values]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:  # after an error the rest need not be decoded
                future.cancel()

    def _metered(self, work: Callable[[Any], Any], value: Any) -> Any:  # noqa: ANN401 - see _map
        with self._meter.job():
            return work(value)

    def _threads(self) -> ThreadPoolExecutor:
        here = self._own()
        with here.lock:
            if here.pool is None:
                here.pool = ThreadPoolExecutor(self.options.threads, thread_name_prefix=_THREADS)
            return here.pool

    def _own(self) -> "_Here":
        if self._here.process != os.getpid():
            self._here = _Here()
        return self._here


def _encoded(item: Item) -> memoryview:
    if item.image is None:
        raise TypeError(f"{item.name}: a row without an image has nothing to decode")
    return item.image
