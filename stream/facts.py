"""What `describe` speaks of, gathered from a plan."""

from collections.abc import Mapping
from typing import Any

from xxhash import xxh3_64_hexdigest

from stream.describe import Facts
from stream.mixed import MixedSource
from stream.packed import PackedSource
from stream.plan import Plan
from stream.point import Point
from stream.sources import SequenceSource


def facts_of(plan: Plan, name: str, *, registered: bool, reached: Mapping[int, str]) -> Facts:
    """Return the facts of a loader; `reached` is how each rank is reached, once they have met."""
    return Facts(
        name=name,
        source=_source_name(plan.source),
        ranks=plan.job.ranks,
        rank=plan.job.rank,
        mode=plan.mode,
        mode_by_default=plan.job.dispatch_batches is None,
        accelerator=plan.with_accelerator,
        prepared=registered,
        portions=plan.job.portions,
        global_batch=None if plan.spec.batch_size is None else plan.global_batch,
        split_batches=plan.job.split_batches,
        rows=plan.rows,
        steps=None if plan.schedule is None else plan.schedule.steps,
        even_batches=plan.job.even_batches,
        pinned=plan.pinned,
        decode_threads=plan.decode_threads,
        decodes_on=plan.decodes_on,
        linked=plan.is_linked,
        on_device=plan.job.on_device and plan.job.device.type != "cpu",
        reached=dict(reached),
        bookmarks=plan.has_bookmarks,
        without_effect=plan.job.without_effect,
    )


def agreed(plan: Plan, start: Point) -> dict[str, str]:
    """Return what must be equal on all ranks before a step is sent, in words."""
    spec, options, bookmark = plan.spec, plan.options, start.bookmark
    facts: dict[str, object] = {
        "epoch": start.epoch,
        "position": start.position,
        "data": plan.digest,
        "bookmark": None if bookmark is None else (bookmark.position, xxh3_64_hexdigest(bookmark.state)),
        "subset": plan.subset,
        "rows": plan.rows,
        "batch_size": spec.batch_size,
        "split_batches": plan.job.split_batches,
        "even_batches": plan.job.even_batches,
        "drop_last": spec.drop_last,
        "image_size": spec.image_size,
        "captions": spec.captions,
        "shuffle": spec.shuffle,
        "seed": spec.seed,
        "window_shards": options.window_shards,
        "parts": spec.parts,
        "transform": plan.transform is not None,
        "collate": plan.collate is not None,
        "on_error": options.on_error,
        "quarantine": plan.quarantine,
        "decode_on": plan.decodes_on,
        "prefetch_steps": options.prefetch_steps,
    }
    return {name: repr(value) for name, value in facts.items()}


def _source_name(source: Any) -> str:  # noqa: ANN401 - a source of any kind
    if isinstance(source, PackedSource | MixedSource):
        return source.name
    inner = source.iterable if isinstance(source, SequenceSource) else source
    return f"a {type(getattr(inner, 'dataset', inner)).__name__}"
