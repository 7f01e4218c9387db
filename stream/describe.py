"""What a loader is, in words: the answer to "why do I get these batches?".

What each field of `accelerate.DataLoaderConfiguration` does to a StreamLoader; the last three, where set, are named:

    split_batches            True: `batch_size` counts the rows of a whole step; False: those of one rank
    dispatch_batches         False: shard mode, each rank reads its own rows; True or None: dispatch mode, rank 0 reads
    even_batches             True: the last step is padded until all ranks get as many rows; False: it is shared out as
                             it is. `accelerator.join_uneven_inputs` overrides it for the iterations that begin in it
    non_blocking             True: copies to an accelerator are not waited for, where memory is pinned
    use_seedable_sampler     without effect: the order is a function of the loader's own `seed` and the epoch
    data_seed                without effect, for the same reason
    use_stateful_dataloader  without effect: a StreamLoader has `state_dict` and `load_state_dict` itself
"""

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
    portions: int
    global_batch: int | None
    split_batches: bool
    rows: int | None
    steps: int | None
    even_batches: bool
    pinned: bool
    decode_threads: int
    decodes_on: Literal["ranks", "reader"]
    linked: bool
    on_device: bool
    reached: dict[int, str]
    bookmarks: bool = False
    without_effect: tuple[str, ...] = ()


_WITHOUT_EFFECT = {
    "use_seedable_sampler": "the order comes from seed",
    "data_seed": "the order comes from seed",
    "use_stateful_dataloader": "the loader has state_dict() itself",
}


def describe(facts: Facts, spec: BatchSpec, options: StreamOptions) -> str:
    """Return one fact a line, the number of ranks first."""
    lines = [
        f"ranks: {facts.ranks} (this is rank {facts.rank})",
        f"loader: {facts.name!r} over {facts.source}, {_prepared(facts)}",
        f"mode: {facts.mode}{' (by default)' if facts.mode_by_default else ''}; {_path(facts, options)}",
        f"batch: {_batch(facts, spec)}",
        f"epoch: {_epoch(facts)}{_chosen(spec)}; {_tail(facts, spec)}",
        f"order: {_order(facts, spec, options)}",
        f"resume: {_resume(facts)}",
        f"caption: {spec.captions}; image: {_image(spec, options)}{_parts(spec)}",
        f"loading: {_loading(facts, options)}",
        f"pinned memory: {_pinned(facts, options)}",
        *(f"rank {rank}: {how}" for rank, how in sorted(facts.reached.items())),
        *(f"{name}: without effect, {_WITHOUT_EFFECT[name]}" for name in facts.without_effect),
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
    if not facts.linked:
        return 'rank 0 reads in order, transport "stock" carries each whole step to all ranks'
    groups = "" if facts.portions == facts.ranks else f"; {facts.ranks // facts.portions} ranks share each portion"
    return f'rank 0 reads in order, transport "{options.transport}" brings each rank its own portion{groups}'


def _batch(facts: Facts, spec: BatchSpec) -> str:
    if facts.global_batch is None:
        whole = "each is a whole step" if facts.split_batches else "each is one rank's portion"
        return f"as the source gives them, {whole}"
    each = facts.global_batch // facts.portions
    grown = f", {facts.portions} times batch_size={spec.batch_size}" if facts.global_batch != spec.batch_size else ""
    return f"{_count(facts.global_batch, 'row')} a step over all ranks{grown}, {each} on each"


def _epoch(facts: Facts) -> str:
    if facts.rows is None:
        return "as long as the source lasts"
    return f"{_count(facts.rows, 'row')} in {_count(facts.steps or 0, 'step')}"


def _chosen(spec: BatchSpec) -> str:
    asked = (("keep", spec.keep is not None), ("limit", spec.limit is not None))
    named = " and ".join(f"{name}=" for name, is_set in asked if is_set)
    return f", chosen by {named}" if named else ""


def _parts(spec: BatchSpec) -> str:
    return "" if spec.parts is None else f"; only {', '.join(f'.{part}' for part in spec.parts)} is read"


def _tail(facts: Facts, spec: BatchSpec) -> str:
    left = None if facts.rows is None or facts.global_batch is None else facts.rows % facts.global_batch
    if left == 0:
        return "nothing is left over"
    rest = "what is left over" if left is None else f"the rest ({_count(left, 'row')})"
    if spec.drop_last:
        return f"{rest} is dropped"
    if facts.portions == 1:
        return f"{rest} makes a shorter last step"
    if not facts.even_batches:
        return f"{rest} is shared out unevenly, so the last batches must not be gathered as tensors"
    return f"{rest} is padded with the epoch's first rows to a multiple of {facts.portions}"


def _order(facts: Facts, spec: BatchSpec, options: StreamOptions) -> str:
    if facts.rows is None:
        return "the source's own"
    if spec.shuffle is None:
        return "as stored"
    window = f" over windows of {options.window_shards} shards" if spec.shuffle == "window" else ""
    return f'shuffle="{spec.shuffle}"{window}, seed {spec.seed}, another order each epoch'


def _resume(facts: Facts) -> str:
    if facts.rows is not None:
        return "seeks; no row that was consumed is read again"
    if facts.bookmarks:
        return "by the source's own state_dict(), as exact as that is; counts where it has nothing to say"
    return "counts; rank 0 reads the source again, which must give the same order, and drops what was consumed"


def _image(spec: BatchSpec, options: StreamOptions) -> str:
    if spec.height_width is None:
        return "full size, a list"
    height, width = spec.height_width
    return f"{height} x {width} (height x width), {options.resize}, {options.interpolation}, uint8"


def _loading(facts: Facts, options: StreamOptions) -> str:
    ahead = f"{_count(options.prefetch_steps, 'step')} ahead"
    if facts.linked and facts.decodes_on == "ranks":
        where = "in a process of its own" if options.decode_in == "process" else "beside the training loop"
        threads = _count(facts.decode_threads, "thread")
        return f"each rank decodes its portion in {threads} {where}, {ahead} within {options.read_ahead_bytes} bytes"
    if options.workers:
        return f"worker processes: {options.workers}, {ahead} each"
    return f"{_count(facts.decode_threads, 'decoding thread')}, {ahead} within {options.read_ahead_bytes} bytes"


def _pinned(facts: Facts, options: StreamOptions) -> str:
    if not options.pin_memory:
        return "off"
    return "on" if facts.pinned else "no accelerator to pin for"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
