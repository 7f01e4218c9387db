"""What a StreamLoader can be told: what a batch is, and how it is made. Each value is checked once, before all else."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, get_args

from stream.errors import OptionError
from stream.keep import Keep

Resize = Literal["cover_crop", "contain_pad", "squash"]
Interpolation = Literal["bilinear", "bicubic"]
CaptionPolicy = Literal["first", "random", "all", "each"]
Shuffle = Literal["window", "full"]
Transport = Literal["ours", "stock"]
DecodeOn = Literal["ranks", "reader"]
DecodeIn = Literal["thread", "process"]
Mode = Literal["dispatch", "shard"]
OnError = Literal["raise", "substitute"]

_LEAST_PREFETCH = 2


@dataclass(frozen=True, kw_only=True)
class BatchSpec:
    """What a batch is. Values are checked, never converted, but for ``image_size``.

    Attributes:
        batch_size: Rows of a batch; of a whole step when accelerate splits batches (``split_batches=True``), else of
            one rank. None: the source gives finished batches, each of which is a whole step or one rank's portion.
        image_size: Height and width of the images of a batch, in pixels; one number means a square and is kept as the
            pair. None (default): images stay as large as they are, and a batch holds a list of them, since what size
            a model wants cannot be guessed.
        captions: "first" (default: reads the least), "random" (one per image and epoch), "all" (a list per image)
            or "each" (one row per image-caption pair).
        shuffle: "window" (default: well mixed, each shard read once), "full" (all rows permuted, for local disks) or
            None (storage order). A source that only gives its rows one after another keeps its own order and refuses
            "full".
        seed: Whole number in [0, 2**63), the source of all randomness. 0 (default): two runs see the same order.
        drop_last: Whether the rows left at the end of an epoch, less than one step, are left out. Off by default:
            every row is seen.
        keep: Which samples of packed shards are rows, planned from their index: a predicate over ``keep.IndexRows``,
            or a collection of keys. None (default): all.
        limit: Number of rows at most: the first ones in storage order, of what is kept. None (default): all.
        parts: Members of packed samples that are read, by their suffixes: ``("txt",)`` gives captions without images.
            None (default): the image and what ``captions`` needs.

    Raises:
        OptionError: A value has the wrong type or is out of its bounds.
    """

    batch_size: int | None
    image_size: int | tuple[int, int] | None = None
    captions: CaptionPolicy = "first"
    shuffle: Shuffle | None = "window"
    seed: int = 0
    drop_last: bool = False
    keep: Keep | None = None
    limit: int | None = None
    parts: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        _check_fields(self)
        if isinstance(self.image_size, int):
            object.__setattr__(self, "image_size", (self.image_size, self.image_size))

    @property
    def height_width(self) -> tuple[int, int] | None:
        """Height and width of the images of a batch in pixels, or None for images as large as they are."""
        size = self.image_size
        return (size, size) if isinstance(size, int) else size


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """How batches are made; the defaults suit most jobs. Values are checked, never converted.

    Attributes:
        resize: How an image becomes ``image_size``: "cover_crop" (default, the usual choice of image-text training)
            scales its short side and cuts the centre out, "contain_pad" scales its long side and pads, "squash"
            ignores the aspect ratio. Without meaning when ``image_size`` is None.
        interpolation: "bilinear" (default: fastest) or "bicubic" (sharper); both antialiased.
        window_shards: Number of shards that the window shuffle merges. 4 (default) mixes well at about half a
            gigabyte of shards of the default size. It is part of the order.
        workers: Number of worker processes: beside the reader in dispatch mode, of each rank in shard mode. They are
            parallelism inside one process's work, not sharding. 0 (default): threads only.
        prefetch_steps: Number of steps made ahead of the training loop, 1 or more; transport "ours" needs 2, since it
            counts the step that is not yet confirmed by all ranks. 2 (default): one is being made while one waits.
        pin_memory: Whether batches for an accelerator are staged in page-locked memory. On by default; without an
            accelerator it does nothing.
        decode_threads: Number of threads of a process that decode. None (default): the cores that it may use,
            divided by the ranks of its host that decode.
        read_ahead_bytes: Bytes of encoded samples that the reader may hold ahead of decoding. Default 256 MiB. In
            dispatch mode it is divided over the ranks, and each rank of the reader's host may be lent as much again
            for finished batches.
        max_pixels: Pixels (height times width) above which an image is refused before memory is taken for it.
            None (default): the limit of stream.decode.
        transport: How dispatch mode carries a step to the ranks: "ours" (default) sends each rank its own portion, over
            shared memory on one host and TCP between hosts; "stock" is accelerate's own dispatcher, for comparison.
        decode_on: Where dispatch mode decodes: "ranks" (each its own portion; packed shards only) or "reader" (rank 0
            for all). None (default): on the ranks where the source allows it and no ``workers`` are asked for. A user's
            ``collate`` runs there too.
        decode_in: "thread" (default) decodes beside the training loop. "process" decodes in a helper process of each
            rank, which in dispatch mode also reads packed shards on a local disk for rank 0: for training loops that
            run much pure Python, which starves decoding and reading threads.
        same_rows: Whether a user's ``collate`` must return as many rows as it gets. On by default: ranks whose batches
            differ hang in a gather. Off for what makes one row of many, such as packed sequences.
        warn_after_s: Seconds that a rank waits for a step before the main process logs who waits for whom. 30.
        timeout_s: Seconds that a rank waits for a step before it raises, with the stacks of all its threads. None
            (default): for ever, since a slow source is no fault.
        port: TCP port on which rank 0 is reached from other hosts. 0 (default): any free one.
        same_host: Whether ranks on one host get portions through shared memory. On by default; off sends them all
            by TCP.
        on_error: What a bad row does, one whose image cannot be decoded, whose bytes differ from their checksum, or
            that lacks a part: "raise" (default) ends the epoch with an error that names it; "substitute" gives the
            next good row of the order in its place, from then on in every epoch. Packed shards only.
        bad_rows_limit: How many rows may be bad before "substitute" raises after all: a count, or a fraction of the
            rows as a float. 0.01 (default): more is no accident.
        retry_s: Seconds for which a failed read of a remote store is tried again where that may help (no answer, a
            broken one, a server that is overloaded or restarts) before it is an error. 60 (default); 0: never.
        verify: Whether checksums of what is read are compared. On by default: it costs little, and a flipped bit is
            found where it happened.

    Raises:
        OptionError: A value has the wrong type or is out of its bounds.
    """

    resize: Resize = "cover_crop"
    interpolation: Interpolation = "bilinear"
    window_shards: int = 4
    workers: int = 0
    prefetch_steps: int = 2
    pin_memory: bool = True
    decode_threads: int | None = None
    read_ahead_bytes: int = 256 * 2**20
    max_pixels: int | None = None
    transport: Transport = "ours"
    decode_on: DecodeOn | None = None
    decode_in: DecodeIn = "thread"
    same_rows: bool = True
    warn_after_s: float = 30.0
    timeout_s: float | None = None
    port: int = 0
    same_host: bool = True
    on_error: OnError = "raise"
    bad_rows_limit: int | float = 0.01
    retry_s: float = 60.0
    verify: bool = True

    def __post_init__(self) -> None:
        _check_fields(self)
        if self.transport == "ours" and self.prefetch_steps < _LEAST_PREFETCH:
            problem = f'transport "ours" counts a step until all ranks have it; use {_LEAST_PREFETCH} or more'
            raise OptionError("prefetch_steps", self.prefetch_steps, problem)


def _check_fields(options: BatchSpec | StreamOptions) -> None:
    for field in fields(options):
        check = _CHECKS[field.name]
        got = getattr(options, field.name)
        if not check.holds(got):
            raise OptionError(field.name, got, f"must be {check.allowed}")


class _Check(NamedTuple):
    holds: Callable[[object], bool]
    allowed: str


def _is_int(value: object, least: int, below: float = float("inf")) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < below


def _at_least(least: int, what: str) -> _Check:
    return _Check(lambda value: _is_int(value, least), f"a whole number of {what}, {least} or more")


def _optional(check: _Check, meaning: str) -> _Check:
    return _Check(lambda value: value is None or check.holds(value), f"{check.allowed}, or None for {meaning}")


def _one_of(literal: object) -> _Check:
    values = get_args(literal)
    words = ", ".join(f'"{value}"' for value in values)
    # The type first: an array would be compared item by item.
    return _Check(
        lambda value: isinstance(value, str) and value in values, words if len(values) == 1 else f"one of {words}"
    )


def _is_size(value: object) -> bool:
    if isinstance(value, tuple):
        return len(value) == 2 and all(_is_int(side, 1) for side in value)  # noqa: PLR2004 - height and width
    return value is None or _is_int(value, 1)


def _is_keep(value: object) -> bool:
    if value is None or callable(value):
        return True
    if not isinstance(value, Collection) or isinstance(value, str | bytes):
        return False
    return all(isinstance(key, str) for key in value)


def _is_parts(value: object) -> bool:
    return value is None or (isinstance(value, tuple) and bool(value) and all(isinstance(one, str) for one in value))


def _is_limit(value: object) -> bool:
    return _is_int(value, 1) or (isinstance(value, float) and 0 < value <= 1)


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


_SECONDS = _Check(_is_seconds, "a number of seconds above 0")
_BOOL = _Check(lambda value: isinstance(value, bool), "True or False")

_CHECKS = {
    "batch_size": _optional(_at_least(1, "rows"), "a source that gives finished batches"),
    "image_size": _Check(
        _is_size, "a whole number of pixels, a tuple (height, width) of two, or None for images of their own size"
    ),
    "resize": _one_of(Resize),
    "interpolation": _one_of(Interpolation),
    "captions": _one_of(CaptionPolicy),
    "shuffle": _optional(_one_of(Shuffle), "storage order"),
    "window_shards": _at_least(1, "shards"),
    "seed": _Check(lambda value: _is_int(value, 0, 2**63), "a whole number from 0 up to, not including, 2**63"),
    "drop_last": _BOOL,
    "keep": _Check(_is_keep, "a function of IndexRows, a collection of keys (str), or None for all samples"),
    "limit": _optional(_at_least(1, "rows"), "all rows"),
    "parts": _Check(_is_parts, 'a tuple of suffixes such as ("txt",), or None for what a batch needs'),
    "workers": _at_least(0, "processes"),
    "prefetch_steps": _at_least(1, "steps"),
    "pin_memory": _BOOL,
    "decode_threads": _optional(_at_least(1, "threads"), "the cores of this process"),
    "read_ahead_bytes": _at_least(1, "bytes"),
    "max_pixels": _optional(_at_least(1, "pixels"), "the decoder's own limit"),
    "transport": _one_of(Transport),
    "decode_on": _optional(_one_of(DecodeOn), "the ranks where the source allows it"),
    "decode_in": _one_of(DecodeIn),
    "same_rows": _BOOL,
    "warn_after_s": _SECONDS,
    "timeout_s": _optional(_SECONDS, "no limit"),
    "port": _Check(lambda value: _is_int(value, 0, 2**16), "a TCP port from 0 (any free one) to 65535"),
    "same_host": _BOOL,
    "on_error": _one_of(OnError),
    "bad_rows_limit": _Check(_is_limit, "a count of 1 or more, or a fraction above 0.0 and up to 1.0"),
    "retry_s": _Check(lambda value: _is_seconds(value) or _is_int(value, 0, 1), "a number of seconds, 0 or more"),
    "verify": _BOOL,
}
