"""Which images are packed, in which order, and which are left out before anything is read or written."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
from xxhash import xxh3_64_intdigest

from coco import Captions, Record
from images import ImageSource, Place
from pack_errors import LeftOutError
from rejections import Rejection

RUN = 32
"""How many images a checking process gets at once: about 50 ms of work on COCO's images."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One image to pack."""

    record: Record
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What may be left out, and the order. Without `shuffle_seed` images are ordered by id."""

    allow_missing: bool = False
    skip_bad: bool = False
    shuffle_seed: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The images to pack, in order, and what was left out so far."""

    entries: Sequence[Entry]
    rejections: Sequence[Rejection]

    def runs(self) -> Iterator[Sequence[Entry]]:
        """Yield the entries in runs."""
        return (self.entries[first : first + RUN] for first in range(0, len(self.entries), RUN))


def make_plan(captions: Captions, source: ImageSource, options: PlanOptions) -> Plan:
    """Find every record's image and put them in order.

    Raises:
        LeftOutError: images are missing, or captions lack their image or images their captions, and the options do
            not allow it; or nothing is left to pack.
    """
    lost = (*captions.uncaptioned, *captions.unknown)
    if lost and not options.skip_bad:
        raise LeftOutError(
            lost, _count_lost(captions), "Correct the captions file, or leave them out with --on-bad skip."
        )
    found = [(record, source.find(record.file_name)) for record in captions.records]
    missing = [_missing(record, source) for record, place in found if place is None]
    if missing and not options.allow_missing:
        problem = f"{len(missing)} of {len(found)} images are missing in {source.path}"
        raise LeftOutError(missing, problem, "Check --images, or leave them out with --allow-missing.")
    entries = [Entry(record, place) for record, place in found if place is not None]
    rejections = [*lost, *missing]
    if not entries:
        problem = f"none of the {len(found)} images of the captions file is in {source.path}"
        raise LeftOutError(rejections, problem, "Check --images and --captions.")
    return Plan(_ordered(entries, options.shuffle_seed), rejections)


def shuffle_key(seed: int, image_id: int) -> int:
    """Return what a shuffled order sorts by: xxh3_64 of the id as 8 bytes, little-endian, seeded by `seed`.

    So the place of an image depends on the seed and the ids alone, and leaving images out moves no others.
    """
    return xxh3_64_intdigest(image_id.to_bytes(8, "little"), seed)


def _ordered(entries: list[Entry], seed: int | None) -> list[Entry]:
    if seed is None:
        return sorted(entries, key=lambda entry: entry.record.image_id)
    return sorted(entries, key=lambda entry: (shuffle_key(seed, entry.record.image_id), entry.record.image_id))


def _missing(record: Record, source: ImageSource) -> Rejection:
    return Rejection(record.image_id, record.file_name, "missing", source.why_missing(record.file_name))


def _count_lost(captions: Captions) -> str:
    counts = [
        f"{len(captions.uncaptioned)} images have no caption" if captions.uncaptioned else "",
        f"{len(captions.unknown)} images have captions and are not in `images`" if captions.unknown else "",
    ]
    return "the captions file would lose samples: " + " and ".join(filter(None, counts))
