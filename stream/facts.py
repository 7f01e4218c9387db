"""What `describe` speaks of, gathered from a plan."""

from collections.abc import Mapping
from typing import Any

from stream.describe import Facts
from stream.mixed import MixedSource
from stream.packed import PackedSource
from stream.plan import Plan
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
        without_effect=plan.job.without_effect,
    )


def _source_name(source: Any) -> str:  # noqa: ANN401 - a source of any kind
    if isinstance(source, PackedSource | MixedSource):
        return source.name
    inner = source.iterable if isinstance(source, SequenceSource) else source
    return f"a {type(getattr(inner, 'dataset', inner)).__name__}"
