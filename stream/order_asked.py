"""What `python -m stream order` is asked of: a dataset, and the order that command line and state choose together.

Only the manifest and the state are read, and an index when its keys are asked for; no shard is.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from xxhash import xxh3_128_hexdigest

from shards.dataset import DatasetReader
from shards.errors import MismatchError
from shards.index import ShardIndex
from shards.store import open_store
from stream.errors import OptionError
from stream.keep import EVERYTHING, Subset
from stream.order import Order
from stream.order_report import Dealing
from stream.state import Place, digest_of

_SHUFFLES: dict[str, Literal["window", "full"] | None] = {"none": None, "window": "window", "full": "full"}
_TOGETHER = 16  # indexes that are read at once


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The command line; None: not given. `ranks` and `batch_size` are only None where the quality is asked for."""

    manifest: str
    step: int | None = None
    key: list[str] = []
    row: list[int] = []
    quality: bool = False
    rows: bool = False
    ranks: int | None = None
    batch_size: int | None = None
    split_batches: bool = False
    drop_last: bool = False
    uneven_batches: bool = False
    shuffle: str | None = None
    seed: int | None = None
    epoch: int | None = None
    window_shards: tuple[int, ...] | None = None
    captions: str | None = None
    limit: int | None = None
    state: str | None = None


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """What an order depends on beside the data, with the loader's own defaults; `shuffle` has "none" for None."""

    shuffle: str = "window"
    seed: int = 0
    epoch: int = 0
    window_shards: tuple[int, ...] = (4,)
    captions: str = "first"


class CommandError(Exception):
    """The question has no answer (`status` 1) or makes no sense (2)."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message, status)
        self.message, self.status = message, status

    def __str__(self) -> str:
        return self.message


class Asked:
    """The dataset and its order.

    Attributes:
        options: The command line.
        reader: The dataset.
        chosen: What the order depends on beside the data.
        each: Whether every caption is a row.
        shard_rows: Rows of each shard.
        start: The state's position, 0 without a state.

    Raises:
        CommandError: command line and state contradict each other, or the state is none or of other rows.
        ShardsError, OSError: the manifest cannot be read.
    """

    def __init__(self, options: Options) -> None:
        self.options, self.reader = options, DatasetReader(options.manifest)
        self._infos = self.reader.manifest.shardlist
        place = None if options.state is None else _place(options.state, self._digest)
        self.chosen = _chosen(options, place)
        self.each = self.chosen.captions == "each"
        subset = Subset(self.reader, each_caption=self.each, limit=options.limit)
        self.shard_rows = subset.shard_rows
        self.start = 0 if place is None else place.position
        if place is not None and place.quarantine:
            raise CommandError(
                f"state {options.state} knows {len(place.quarantine)} bad rows, for which others stand in; that is not "
                "told here, ask without --state"
            )
        if place is not None and place.subset != subset.digest:
            raise CommandError(
                f"state {options.state} is of other rows of these data: subset {place.subset}, here {subset.digest}; "
                "give the --limit that its loader had; if that had keep=, nothing tells its rows but the loader itself"
            )

    def order(self, shuffle: str, window_shards: int) -> Order:
        """Return the epoch's order under one shuffle: "none", "window" or "full"."""
        named, chosen = _SHUFFLES[shuffle], self.chosen
        return Order(self.shard_rows, shuffle=named, seed=chosen.seed, epoch=chosen.epoch, window_shards=window_shards)

    def dealt(self) -> tuple[Order, Dealing]:
        """Return the chosen order and how its positions are dealt out.

        Raises:
            CommandError: the ranks do not divide the batch, or the state's position is behind the epoch's end.
        """
        options, order = self.options, self.order(self.chosen.shuffle, self.chosen.window_shards[0])
        if self.start > len(order):
            problem = f"is at position {self.start}, and an epoch of these data has {len(order)} rows"
            raise CommandError(f"state {options.state} {problem}; give the state of a loader of these data")
        batch, ranks = options.batch_size or 0, options.ranks or 0
        dealing = Dealing(
            rows=len(order),
            global_batch=batch if options.split_batches else batch * ranks,
            ranks=ranks,
            drop_last=options.drop_last,
            even_batches=not options.uneven_batches,
            start=self.start,
        )
        try:
            dealing.rest  # noqa: B018 - checks the numbers
        except OptionError as exc:
            raise CommandError(f"--batch-size {batch}: {exc.problem}", 2) from exc
        return order, dealing

    def read(self, shard_nos: Sequence[int]) -> Iterator[ShardIndex]:
        """Yield the indexes of shards, without a look at the shards themselves, and keep none.

        Raises:
            MismatchError, IndexFormatError: an index cannot be trusted.
            FileNotFoundError, StoreError: it cannot be read.
        """
        store = open_store(self.reader.url)
        for at in range(0, len(shard_nos), _TOGETHER):
            infos = [self._infos[shard_no] for shard_no in shard_nos[at : at + _TOGETHER]]
            files = store.read_many([(info.index_url, 0, info.index_filesize) for info in infos])
            for info, data in zip(infos, files, strict=True):
                url, digest = store.url_of(info.index_url), xxh3_128_hexdigest(data)
                if digest != info.index_xxh3_128:
                    problem = f"it is not the index that the manifest lists (digest: {info.index_xxh3_128}, not "
                    raise MismatchError(url, f"{problem}{digest})")
                yield ShardIndex(data, url=url)

    def _digest(self) -> str:
        return digest_of([(info.url, info.nsamples, info.xxh3_128) for info in self._infos])


def _place(path: str, digest: Callable[[], str]) -> Place:
    """Read a state, and refuse that of other data; what else it is compared with depends on the command line."""
    blank = Place(
        digest="", subset=EVERYTHING, shuffle=None, seed=0, window_shards=1, captions="first", epoch=0, position=0
    )
    try:
        place = Place.from_dict(msgspec.json.decode(Path(path).read_bytes()), now=blank, strict=False)
    except (msgspec.DecodeError, RecursionError, OptionError, OSError) as exc:
        hint = "give the JSON of loader.state_dict(), or accelerate's stream_<name>.json"
        raise CommandError(f"state {path} cannot be read ({exc}); {hint}") from exc
    here = digest()
    if place.digest != here:
        problem = f"is of other data: digest {place.digest}, the manifest's data have {here}"
        raise CommandError(f"state {path} {problem}; give the manifest of the dataset that the state is of")
    return place


def _chosen(options: Options, place: Place | None) -> Chosen:
    """Return what the state says, else what the command line says, else the defaults.

    Raises:
        CommandError: both say something and it is not the same.
    """
    named: dict[str, Any] = {name: getattr(options, name) for name in Chosen.__struct_fields__}
    given = {name: value for name, value in named.items() if value is not None}
    if place is None:
        return Chosen(**given)
    saved: dict[str, Any] = {name: getattr(place, name) for name in Chosen.__struct_fields__}
    saved |= {"shuffle": place.shuffle or "none", "window_shards": (place.window_shards,)}
    for name, value in given.items():
        if value != saved[name] and not (options.quality and name == "window_shards"):
            flag, both = f"--{name.replace('_', '-')}", f"{name} {_shown(saved[name])} of state {options.state}"
            problem = f"{flag} {_shown(value)} contradicts {both}"
            raise CommandError(f"{problem}; leave {flag} out, or give a state of that order", 2)
    return Chosen(**saved)


def _shown(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
