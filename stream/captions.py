"""Which caption of a sample a row carries.

A packed COCO sample has ``.txt``, its first caption, and ``.json`` with all of them in ``captions``, ordered by
annotation id (shards/FORMAT.md). Captions are kept byte-true, trailing blanks included.
"""

import msgspec

from shards.sample import Sample
from stream.draws import draw
from stream.errors import SourceError
from stream.options import CaptionPolicy


class _Captions(msgspec.Struct):
    """The one field of ``.json`` that is read; the decoder passes over all others without making objects."""

    captions: list[str]


_DECODER = msgspec.json.Decoder(_Captions)


def suffixes_for(policy: CaptionPolicy) -> tuple[str, ...]:
    """The parts of a sample that must be read for its captions."""
    return ("txt",) if policy == "first" else ("json",)


def pick(
    sample: Sample, policy: CaptionPolicy, *, seed: int, epoch: int, position: int, caption: int | None = None
) -> str | list[str]:
    """The caption of a sample, or with ``policy="all"`` the list of all.

    Args:
        sample: Must hold the parts of :func:`suffixes_for`.
        policy: "first": the text of ``.txt``; "random": see ``stream.draws.draw``; "all"; "each": the caption numbered
            ``caption``.
        seed: In [0, 2**64); used by "random" alone, as are ``epoch`` and ``position``.
        epoch: In [0, 2**64).
        position: Place of the row in the epoch's order, hence the same choice for any number of ranks.
        caption: Number of the caption in ``.json``, counted from 0; used by "each" alone.

    Raises:
        SourceError: The part is missing, is no text or JSON with captions, or has no such caption.
    """
    if policy == "first":
        return _text(sample)
    captions = _captions(sample)
    if policy == "all":
        return captions
    if not captions:
        raise SourceError(f"sample {sample.key}.json", 'has an empty "captions"; leave the sample out')
    if policy == "random":
        return captions[draw(len(captions), seed=seed, epoch=epoch, position=position)]
    if caption is None or not 0 <= caption < len(captions):
        raise SourceError(
            f"sample {sample.key}.json",
            f"has {len(captions)} captions, number {caption} (from 0) was asked for; index and shard do not belong "
            "together, pack the data again",
        )
    return captions[caption]


def _part(sample: Sample, suffix: str) -> memoryview:
    part = sample.parts.get(suffix)
    if part is None:
        found = ", ".join(f".{name}" for name in sample.parts) or "nothing"
        raise SourceError(
            f"sample {sample.key}", f"has no .{suffix}, which its caption is read from (it has {found}); pack it again"
        )
    return part


def _text(sample: Sample) -> str:
    part = _part(sample, "txt")
    try:
        return str(part, "utf-8")
    except UnicodeDecodeError as exc:
        problem = f"is not UTF-8 at byte {exc.start}; write the caption as UTF-8 and pack it again"
        raise SourceError(f"sample {sample.key}.txt", problem) from exc


def _captions(sample: Sample) -> list[str]:
    part = _part(sample, "json")
    try:
        return _DECODER.decode(part).captions
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        problem = f'is not JSON with a list of texts in "captions" ({exc}); pack it again'
        raise SourceError(f"sample {sample.key}.json", problem) from exc
