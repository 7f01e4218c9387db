"""Several packed datasets as one source, mixed by weight."""

import os
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

from shards.joined import JoinedReader
from stream.errors import OptionError
from stream.keep import refuse_missing
from stream.mix import Mix, MixOrder, Until
from stream.options import BatchSpec, Shuffle
from stream.packed import PackedSource, Samples
from stream.shares import Shares
from stream.state import digest_of


class StreamMix:
    """Several packed datasets to be read as one, each with a share of the rows: a source for `StreamLoader`.

    After every row each dataset has had its share of them within one row. Each has a shuffled order of its own; `keep`
    and `limit` of the loader apply to each dataset by itself.

    Args:
        sources: URL or path of each dataset.
        weights: The share of each, above 0: any numbers, they are taken relative to their sum.
        until: When an epoch ends. "first": when a dataset has no row left, so that no row comes twice. "all": when
            every dataset was given whole; one that ends earlier is begun again, in another order.

    Raises:
        OptionError: a value cannot be.
    """

    def __init__(self, sources: Sequence[str], weights: Sequence[float], *, until: Until = "first") -> None:
        if isinstance(sources, str) or not sources:
            raise OptionError("sources", sources, "must be a list of URLs of packed datasets, one or more")
        if wrong := [source for source in sources if not isinstance(source, str | os.PathLike)]:
            raise OptionError("sources", wrong[0], "must be the URL or path of a packed dataset: only those are mixed")
        self.sources, self.mix = tuple(map(os.fspath, sources)), Mix(Shares(weights), until)
        if len(self.sources) != len(self.mix.shares.counts):
            problem = f"are {len(self.mix.shares.counts)}, the sources {len(self.sources)}; give one for each"
            raise OptionError("weights", list(weights), problem)

    def __repr__(self) -> str:
        shares = [f"{float(weight):.4g}" for weight in self.mix.shares.weights]
        return f"StreamMix({list(self.sources)}, [{', '.join(shares)}], until={self.mix.until!r})"


class MixedSource(Samples):
    """Packed datasets that are mixed. A row is a row of one of them; they stand one after another."""

    def __init__(self, sources: Sequence[PackedSource], mix: Mix, *, spec: BatchSpec, blames: bool = False) -> None:
        super().__init__(JoinedReader([source.reader for source in sources]), spec=spec, blames=blames)
        self._sources, self._mix = tuple(sources), mix

    def __len__(self) -> int:
        return self._length

    @cached_property
    def _length(self) -> int:
        refuse_missing(set.intersection(*(source.missing for source in self._sources)))
        return self._mix.length([len(source) for source in self._sources])

    @cached_property
    def digest(self) -> str:
        """What tells these data, and how they are mixed, from others."""
        counts = self._mix.shares.counts
        each = [(source.digest, count, self._mix.until) for source, count in zip(self._sources, counts, strict=True)]
        return digest_of(each)

    @property
    def subset(self) -> str:
        """What tells the rows from those of another choice of the same data."""
        return " ".join(source.subset for source in self._sources)

    @property
    def name(self) -> str:
        """What it is, for people."""
        weights = self._mix.shares.weights
        each = [f"{source.name} ({float(weight):.3g})" for source, weight in zip(self._sources, weights, strict=True)]
        return f"a mixture of {', '.join(each)}, until {self._mix.until}"

    def shard_rows(self) -> list[int]:
        """Return the number of rows of each shard of all datasets, which an epoch need not give once each."""
        return [rows for source in self._sources for rows in source.shard_rows()]

    def order(self, *, shuffle: Shuffle | None, seed: int, epoch: int, window_shards: int) -> MixOrder:
        """Return the order of an epoch."""
        shard_rows = [source.shard_rows() for source in self._sources]
        return MixOrder(self._mix, shard_rows, shuffle=shuffle, seed=seed, epoch=epoch, window_shards=window_shards)

    def sample_of(self, row: int) -> tuple[int, int | None]:
        """Return the sample behind a row, numbered over all datasets, and which of its captions the row is."""
        number = bisect_right(self._starts, row) - 1
        sample, caption = self._sources[number].sample_of(row - self._starts[number])
        return self._joined.first_row(number) + sample, caption

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(len(source) for source in self._sources)]

    @property
    def _joined(self) -> JoinedReader:
        if not isinstance(self.reader, JoinedReader):
            raise TypeError("a mixture reads joined datasets")
        return self.reader
