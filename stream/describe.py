"""What a loader is, in words: the answer to "why do I get these batches?"."""

from dataclasses import dataclass
from typing import Literal

from stream.options import BatchSpec, StreamOptions


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What `describe` speaks of; numbers that are not known yet are None."""

    name: str
    source: str
    ranks: int
    rank: int
    mode: Literal["dispatch", "shard"]
    mode_by_default: bool
    accelerator: bool
    prepared: bool
    global_batch: int
    rows: int | None
    steps: int | None
    even_batches: bool
    pinned: bool
    decode_threads: int


def describe(facts: Facts, spec: BatchSpec, options: StreamOptions) -> str:
    """Return one fact a line, the number of ranks first."""
    lines = [
        f"ranks: {facts.ranks} (this is rank {facts.rank})",
        f"loader: {facts.name!r} over {facts.source}, {_prepared(facts)}",
        f"mode: {facts.mode}{' (by default)' if facts.mode_by_default else ''}; {_path(facts, options)}",
        f"batch: {facts.global_batch} rows a step over all ranks, {facts.global_batch // facts.ranks} on each",
        f"epoch: {_epoch(facts)}; {_tail(facts, spec)}",
        f"order: {_order(facts, spec, options)}",
        f"caption: {spec.captions}; image: {_image(spec, options)}",
        f"loading: {_loading(facts, options)}",
        f"pinned memory: {_pinned(facts, options)}",
    ]
    return "\n".join(lines)


def _prepared(facts: Facts) -> str:
    if not facts.accelerator:
        return "without an accelerator"
    return "prepared" if facts.prepared else "not prepared yet: pass it through accelerator.prepare()"


def _path(facts: Facts, options: StreamOptions) -> str:
    if facts.mode == "shard":
        return "each rank reads its own rows through the index"
    if facts.ranks == 1:
        return "this process reads and keeps everything"
    return f'rank 0 reads in order, transport "{options.transport}" carries the steps to the others'


def _epoch(facts: Facts) -> str:
    if facts.rows is None:
        return "as long as the source lasts"
    return f"{_count(facts.rows, 'row')} in {_count(facts.steps or 0, 'step')}"


def _tail(facts: Facts, spec: BatchSpec) -> str:
    left = None if facts.rows is None else facts.rows % facts.global_batch
    if left == 0:
        return "nothing is left over"
    rest = "what is left over" if left is None else f"the rest ({_count(left, 'row')})"
    if spec.drop_last:
        return f"{rest} is dropped"
    if facts.ranks == 1:
        return f"{rest} makes a shorter last step"
    if not facts.even_batches:
        return f"{rest} is shared out unevenly, so the last batches must not be gathered as tensors"
    return f"{rest} is padded with the epoch's first rows to a multiple of {facts.ranks}"


def _order(facts: Facts, spec: BatchSpec, options: StreamOptions) -> str:
    if facts.rows is None:
        return "the source's own"
    if spec.shuffle is None:
        return "as stored"
    window = f" over windows of {options.window_shards} shards" if spec.shuffle == "window" else ""
    return f'shuffle="{spec.shuffle}"{window}, seed {spec.seed}, another order each epoch'


def _image(spec: BatchSpec, options: StreamOptions) -> str:
    if spec.height_width is None:
        return "full size, a list"
    height, width = spec.height_width
    return f"{height} x {width} (height x width), {options.resize}, {options.interpolation}, uint8"


def _loading(facts: Facts, options: StreamOptions) -> str:
    ahead = f"{_count(options.prefetch_steps, 'step')} ahead"
    if options.workers:
        return f"worker processes: {options.workers}, {ahead} each"
    return f"{_count(facts.decode_threads, 'decoding thread')}, {ahead} within {options.read_ahead_bytes} bytes"


def _pinned(facts: Facts, options: StreamOptions) -> str:
    if not options.pin_memory:
        return "off"
    return "on" if facts.pinned else "no accelerator to pin for"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
