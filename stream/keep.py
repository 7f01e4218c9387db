"""Which rows of a packed dataset a loader has: planned from the indexes, before any shard is read. Pure but for them.

A subset keeps the storage order: row i of it is the i-th row of the dataset that is kept. So the order of an epoch is a
permutation of the subset, its length is exact, and a position means the same row whenever the same rows are kept; the
subset's digest says so.

Reference: XXH3 (https://xxhash.com) for the draws of `key_split` and for digests.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from shards.dataset import DatasetReader
from shards.index import ShardIndex
from stream.errors import OptionError

EVERYTHING: Final = "all"
"""The digest of a subset that keeps every row."""
_FULL = 2**64
_SHOWN = 3
_log = logging.getLogger("stream")

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]


class IndexRows:
    """The samples of one shard as the index knows them; each attribute is an array with one value for a sample.

    Attributes:
        width, height: int64, pixels as stored (EXIF orientation not applied), 0 where they are not known.
        license: int64, the licence's id, 0 for none.
    """

    def __init__(self, index: ShardIndex) -> None:
        self._index = index
        self.width, self.height, self.license = (_int64(index.column(name)) for name in ("width", "height", "license"))

    def __len__(self) -> int:
        return len(self._index)

    @cached_property
    def key(self) -> npt.NDArray[np.str_]:
        """The keys, str."""
        return np.array(list(self._index.keys()), dtype=np.str_)

    @cached_property
    def aspect(self) -> npt.NDArray[np.float64]:
        """Width over height, float64; NaN where they are not known, which every comparison leaves out."""
        known = np.where((self.width > 0) & (self.height > 0), self.height, np.nan)
        return np.asarray(self.width / known, dtype=np.float64)

    @cached_property
    def captions(self) -> Numbers:
        """The number of captions, int64."""
        return np.diff(_int64(self._index.caption_ends), prepend=0)

    @cached_property
    def caption_bytes(self) -> Numbers:
        """The length of the first caption in UTF-8 bytes, int64; 0 where there is none."""
        return self._of_captions(lambda lengths, first: lengths[first])

    @cached_property
    def shortest_caption_bytes(self) -> Numbers:
        """The length of the shortest caption in UTF-8 bytes, int64; 0 where there is none."""
        return self._of_captions(np.minimum.reduceat)

    @cached_property
    def longest_caption_bytes(self) -> Numbers:
        """The length of the longest caption in UTF-8 bytes, int64; 0 where there is none."""
        return self._of_captions(np.maximum.reduceat)

    def _of_captions(self, of: Callable[[Numbers, Numbers], Numbers]) -> Numbers:
        lengths, count = _int64(self._index.column("caption.bytes")), self.captions
        found, some = np.zeros(len(self), dtype=np.int64), count > 0
        first = (np.cumsum(count) - count)[some]
        if first.size:
            found[some] = of(lengths, first)
        return found


Predicate: TypeAlias = Callable[[IndexRows], Flags]
Keep: TypeAlias = Predicate | Collection[str]


def key_split(part: Literal["train", "val"], fraction: float, *, seed: int = 0) -> Predicate:
    """Return a `keep` that shares all samples out by their keys: a `fraction` of them is "val", the rest "train".

    A sample stays on its side whatever else the dataset holds: it is "val" if h < fraction * 2**64, with h = xxh3_64 of
    its key in UTF-8 under `seed`.

    Args:
        part: Which side is kept.
        fraction: Above 0 and below 1.
        seed: In [0, 2**64).

    Raises:
        OptionError: a value cannot be.
    """
    if part not in ("train", "val"):
        raise OptionError("part", part, 'must be "train" or "val"')
    if not isinstance(fraction, float) or not 0 < fraction < 1:
        raise OptionError("fraction", fraction, "must be above 0 and below 1: the share of samples that is val")
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < _FULL:
        raise OptionError("seed", seed, "must be a whole number from 0 up to, not including, 2**64")
    below = int(fraction * _FULL)

    def keep(rows: IndexRows) -> Flags:
        is_val = [xxhash.xxh3_64_intdigest(str(key).encode(), seed) < below for key in rows.key]
        return np.array([one == (part == "val") for one in is_val], dtype=np.bool_)

    return keep


class Place(NamedTuple):
    """Where a row is: the number of its sample over the whole dataset, and which of its captions it is, if any."""

    sample: int
    caption: int | None


class Subset:
    """The rows of a dataset that a loader has. What it needs is read at the first use. Thread-safe, picklable.

    Args:
        reader: The dataset.
        each_caption: Whether every caption of a sample is a row, else every sample.
        keep: Which samples: a predicate over `IndexRows`, or their keys; None: all.
        limit: How many rows at most, the first ones of what is kept; None: all.
        among_others: Keys that the dataset lacks may be those of another one.

    Attributes:
        missing: Keys of `keep` that the dataset lacks, once its rows are known.

    Raises:
        OptionError: at the first use: `keep` gives no flags, or names keys that the dataset lacks.
        ShardsError, FileNotFoundError: at the first use: manifest or indexes cannot be read.
    """

    def __init__(
        self,
        reader: DatasetReader,
        *,
        each_caption: bool,
        keep: Keep | None = None,
        limit: int | None = None,
        among_others: bool = False,
    ) -> None:
        self.missing: set[str] = set()
        self._among_others = among_others
        self._reader, self._each, self._limit = reader, each_caption, limit
        self._keep = keep if keep is None or callable(keep) else frozenset(keep)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getstate__(self) -> dict[str, Any]:
        """A copy keeps the rows; few predicates can be pickled, and none needs to be asked twice."""
        if callable(self._keep):
            self._kept  # noqa: B018 - chosen now
        return {**self.__dict__, "_keep": None} if "_kept" in self.__dict__ else self.__dict__

    @cached_property
    def shard_rows(self) -> list[int]:
        """The number of rows of each shard, in storage order."""
        infos = self._reader.manifest.shardlist
        if self._kept is not None:
            sizes = [int(kept.ends[-1]) if len(kept.ends) else 0 for kept in self._kept]
        else:
            sizes = [info.captions if self._each else info.nsamples for info in infos]
        if self._limit is None:
            return sizes
        ends = [min(end, self._limit) for end in accumulate(sizes)]
        return [end - before for before, end in pairwise([0, *ends])]

    @cached_property
    def digest(self) -> str:
        """`EVERYTHING`, or what tells this subset from others: xxh3_128, in hex, of the rows that are kept."""
        if sum(self.shard_rows) == self._everything:
            return EVERYTHING
        hashed = xxhash.xxh3_128(np.array(self.shard_rows, dtype="<i8").tobytes())
        for kept, rows in zip(self._kept or (), self.shard_rows, strict=False):
            samples = kept.samples[: int(np.searchsorted(kept.ends, rows)) + 1] if rows else kept.samples[:0]
            hashed.update(samples.astype("<i8").tobytes())  # without those behind the limit
        return str(hashed.hexdigest())

    def place(self, row: int) -> Place:
        """Return where a row is.

        Raises:
            IndexError: there is no such row.
        """
        if not 0 <= row < len(self):
            raise IndexError(f"dataset {self._reader.url} has {len(self)} rows here, not one numbered {row}")
        manifest = self._reader.manifest
        if self._kept is None:  # a limit alone cuts the end off
            if not self._each:
                return Place(row, None)
            shard_no, number = manifest.locate_caption(row)
            in_shard, caption = self._reader.index(shard_no).caption_row(number)
            return Place(manifest.first_row(shard_no) + in_shard, caption)
        shard_no = bisect_right(self._ends, row)
        within = row - (self._ends[shard_no - 1] if shard_no else 0)
        kept = self._kept[shard_no]
        if not self._each:
            return Place(manifest.first_row(shard_no) + int(kept.samples[within]), None)
        at = int(np.searchsorted(kept.ends, within, side="right"))
        first = int(kept.ends[at - 1]) if at else 0
        return Place(manifest.first_row(shard_no) + int(kept.samples[at]), within - first)

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(self.shard_rows))

    @property
    def _everything(self) -> int:
        return self._reader.manifest.captions if self._each else self._reader.manifest.samples

    @cached_property
    def _kept(self) -> "list[_Kept] | None":
        if self._keep is None:
            return None
        found, missing = list[_Kept](), set[str]() if callable(self._keep) else set(self._keep)
        for shard_no in range(len(self._reader.manifest.shardlist)):
            rows = IndexRows(self._reader.lone_index(shard_no))
            if callable(self._keep):
                flags = _checked(self._keep(rows), len(rows))
            else:
                flags = np.array([key in self._keep for key in rows.key.tolist()], dtype=np.bool_)
                missing.difference_update(rows.key[flags].tolist())
            samples = np.flatnonzero(flags)
            ends = np.cumsum(rows.captions[samples]) if self._each else np.arange(1, len(samples) + 1)
            found.append(_Kept(samples, ends))
        if not self._among_others:
            refuse_missing(missing)
        if not any(len(kept.samples) for kept in found):
            _log.warning("keep= chose none of the %d samples of %s", len(self._reader), self._reader.url)
        self.missing = missing
        return found


class _Kept(NamedTuple):
    """What is kept of one shard: its samples, and for each how many rows it and all before it have."""

    samples: Numbers
    ends: Numbers


def refuse_missing(keys: set[str]) -> None:
    """Raise if keys to keep are in no dataset.

    Raises:
        OptionError: there are some.
    """
    if keys:
        shown = sorted(keys)[:_SHOWN]
        problem = f"{len(keys)} of its keys are not in the dataset; leave them out, or give the dataset that has them"
        raise OptionError("keep", shown if len(keys) <= _SHOWN else [*shown, "..."], problem)


def _checked(flags: object, rows: int) -> Flags:
    if isinstance(flags, np.ma.MaskedArray):
        problem = "must say of each sample whether it is a row, and some are masked; end it with .filled(False)"
        raise OptionError("keep", "a masked array", problem)
    if isinstance(flags, np.ndarray) and flags.dtype == np.bool_ and flags.shape == (rows,):
        return flags
    got = f"{flags.dtype} {list(flags.shape)}" if isinstance(flags, np.ndarray) else type(flags).__name__
    problem = f"must return a numpy array of bool [{rows}], one value for each sample of the shard; compare its arrays"
    raise OptionError("keep", got, problem)


def _int64(column: "Sequence[int] | memoryview[int]") -> Numbers:
    return np.asarray(column).astype(np.int64)
