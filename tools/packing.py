"""Pack the images of a plan: processes check them, one writer keeps the order.

Invariants: samples are added in the order of the plan whatever the number of processes; the bytes that are written
are the bytes that were checked (compared by size and xxh3_64); after the first image that may not be left out nothing
more is written, but all others are still checked, so that the error counts them.
"""

from collections.abc import Callable, Sequence
from contextlib import closing

import msgspec

from coco import Record
from crew import Crew
from formats import look
from images import ImageSource, open_source
from pack_errors import ChangedImageError, LeftOutError, UnreadableImageError
from plan import Entry, Plan
from reading import SOURCES, read_ahead
from rejections import Rejection
from shards.index import RowInfo
from shards.writer import ShardWriter
from verdict import Task, Verdict


class _Urls(msgspec.Struct, frozen=True):
    coco: str
    flickr: str


class _Metadata(msgspec.Struct, frozen=True):
    """The `.json` part of a sample (FORMAT.md): every field always there, never null."""

    image_id: int
    file_name: str
    width: int
    height: int
    captions: tuple[str, ...]
    caption_ids: tuple[int, ...]
    license: int
    urls: _Urls


class Packer:
    """Adds images to a writer one by one; `images`, `captions` and `image_bytes` count what was added."""

    def __init__(self, source: ImageSource, writer: ShardWriter, *, skip_bad: bool) -> None:
        self._source, self._writer, self._skip_bad = source, writer, skip_bad
        self._to_json = msgspec.json.Encoder().encode
        self.bad: list[Rejection] = []
        self.images = self.captions = self.image_bytes = 0

    def take(self, entry: Entry, data: memoryview | UnreadableImageError) -> None:
        """Add an image that nobody checked, or note it as bad: only its first bytes are looked at.

        Raises:
            StoreError: the output failed.
        """
        if isinstance(data, UnreadableImageError):
            self._reject(entry.record, data.problem)
            return
        suffix, problem = look(entry.record.file_name, data)
        if problem:
            self._reject(entry.record, problem)
        elif self._writing:
            self._add(entry.record, suffix, data)

    def take_checked(self, entry: Entry, verdict: Verdict) -> None:
        """Read and add an image that has a verdict, or note it as bad.

        Raises:
            ChangedImageError: its bytes are not those of the verdict.
            StoreError: the output failed.
        """
        if verdict.problem:
            self._reject(entry.record, verdict.problem)
        elif self._writing:
            try:
                data = self._source.read(entry.place)
            except UnreadableImageError as exc:
                raise ChangedImageError(entry.record.file_name) from exc
            if self._add(entry.record, verdict.suffix, data) != verdict.digest or len(data) != verdict.size:
                raise ChangedImageError(entry.record.file_name)

    @property
    def _writing(self) -> bool:
        return self._skip_bad or not self.bad

    def _add(self, record: Record, suffix: str, data: memoryview) -> int:
        """Write the sample and return the image's xxh3_64."""
        texts = [caption.encode() for caption in record.captions]
        info = RowInfo(record.width, record.height, record.license, tuple(map(len, texts)))
        parts: dict[str, bytes | memoryview] = {suffix: data, "txt": texts[0], "json": self._to_json(_metadata(record))}
        digests = self._writer.add(record.key, parts, info)
        self.images += 1
        self.captions += len(texts)
        self.image_bytes += len(data)
        return digests[0]

    def _reject(self, record: Record, problem: str) -> None:
        self.bad.append(Rejection(record.image_id, record.file_name, "bad", problem))


def pack_checked(plan: Plan, packer: Packer, crew: Crew, advance: Callable[[int], object]) -> None:
    """Take all images of the plan, checked by the crew; `advance(n)` is told after each n.

    Raises:
        WorkerDiedError: a checking process ended early.
        ChangedImageError, StoreError: as `Packer.take_checked`.
    """
    for run, verdicts in zip(plan.runs(), crew.verdicts(tasks(run) for run in plan.runs()), strict=False):
        for entry, verdict in zip(run, verdicts, strict=False):
            packer.take_checked(entry, verdict)
        advance(len(run))


def pack_unchecked(plan: Plan, packer: Packer, path: str, advance: Callable[[int], object]) -> None:
    """Take all images of the plan from the folder or zip at `path` without decoding them; `advance` as above.

    Raises:
        StoreError: the output failed.
    """
    sources = [open_source(path) for _ in range(SOURCES)]
    with closing(read_ahead(sources, [entry.place for entry in plan.entries])) as images:
        for entry, data in zip(plan.entries, images, strict=True):
            packer.take(entry, data)
            advance(1)


def tasks(run: Sequence[Entry]) -> list[Task]:
    """Return what a checking process needs to know of a run."""
    return [Task(entry.record.file_name, entry.place, entry.record.width, entry.record.height) for entry in run]


def refuse_lost(plan: Plan, packer: Packer, *, skip_bad: bool) -> None:
    """Refuse to publish what was packed.

    Raises:
        LeftOutError: there are bad images and they may not be left out, or nothing was packed.
    """
    total = len(plan.entries)
    if packer.bad and not skip_bad:
        problem = f"{len(packer.bad)} of {total} images are bad"
        raise LeftOutError(packer.bad, problem, "Replace them, or leave them out with --on-bad skip.")
    if not packer.images:
        raise LeftOutError(packer.bad, f"all {total} images are bad", "Check --images and --captions.")


def _metadata(record: Record) -> _Metadata:
    return _Metadata(
        image_id=record.image_id,
        file_name=record.file_name,
        width=record.width,
        height=record.height,
        captions=record.captions,
        caption_ids=record.caption_ids,
        license=record.license,
        urls=_Urls(record.coco_url, record.flickr_url),
    )
