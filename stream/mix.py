"""The order of one epoch of several sources, mixed by weight: a pure function of (their shards, weights, seed, epoch).

Each position is given to a source as stream/shares.py says. A source's draw number n (its n-th position, counted
from 0) is the row at place n of that source's own order (stream/order.py). A *row* of the mixture is global: the
rows of all earlier sources, plus the row in its source.

An epoch begins with position 0 of the shares and ends

    until="first"   before the first position whose source has no row left: the smallest of the positions of draw
                    number len(source). Each row is given at most once, those of the source that ended it exactly once.
    until="all"     behind the last position that a source needs to be given whole: one more than the largest of the
                    positions of draw number len(source) - 1. That source is given exactly once, every other one in
                    passes: draw n is place n mod len of pass n // len, and each pass has another order.

    seed of source i's order    derive_key(4, seed, i), so that sources of equal shards are not permuted alike
    epoch of pass p's order     epoch + p * 2**32, one number for each (epoch, p), both in [0, 2**32)

Weights, lengths and `until` alone decide which source has a position, so every epoch has the same length. These rules
never change: a saved position means the same rows for ever.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, TypeAlias, get_args

import numpy as np

from stream.errors import OptionError
from stream.order import Order
from stream.permutation import Integers, derive_key
from stream.shares import Shares

Until: TypeAlias = Literal["first", "all"]

_SOURCE = 4  # purpose of a key, beside those of stream/order.py
_PASS = 2**32


@dataclass(frozen=True)
class Mix:
    """How sources are mixed: by which shares, and when an epoch ends. Immutable; made once for all epochs.

    Attributes:
        shares: Which source has a position.
        until: See the module.

    Raises:
        OptionError: ``until`` has no meaning.
    """

    shares: Shares
    until: Until

    def __post_init__(self) -> None:
        if self.until not in get_args(Until):
            raise OptionError("until", self.until, 'must be "first" or "all": which source\'s end ends the epoch')

    def length(self, source_rows: Sequence[int]) -> int:
        """The rows of an epoch of sources that have so many rows; O(k).

        Raises:
            OptionError: There is not one source for each weight, or one has no rows.
        """
        if len(source_rows) != len(self.shares.counts):
            problem = f"are {len(self.shares.counts)}, but there are {len(source_rows)} sources; give one for each"
            raise OptionError("weights", [float(weight) for weight in self.shares.weights], problem)
        for source, rows in enumerate(source_rows):
            if rows < 1:
                raise OptionError(f"sources[{source}]", f"{rows} rows", "nothing can be drawn of it; leave it out")
        if self.until == "first":
            return min(self.shares.position(source, rows) for source, rows in enumerate(source_rows))
        return max(self.shares.position(source, rows - 1) + 1 for source, rows in enumerate(source_rows))

    def draws(self, source_rows: Sequence[int]) -> tuple[int, ...]:
        """The rows of an epoch that each source gives, repeated ones counted again; their sum is :meth:`length`.

        Raises:
            OptionError: As for :meth:`length`.
        """
        rows = self.length(source_rows)
        return tuple(self.shares.count_before(source, rows) for source in range(len(source_rows)))


class MixOrder:
    """Which row stands at which position of one epoch of a mixture, and where a row stands.

    It answers as ``Order`` does: any position is reached at once; memory is O(shards). Immutable; thread-safe.

    Args:
        mix: How the sources are mixed.
        shard_rows: For each source the rows of its shards in storage order.
        shuffle: As for ``Order``, for each source by itself.
        seed: Any whole number; it counts modulo 2**64.
        epoch: Whole number in ``[0, 2**32)``.
        window_shards: As for ``Order``.

    Attributes:
        draws: As ``Mix.draws`` gives them.

    Raises:
        OptionError: An option has no meaning, there is not one source for each weight, a source has no rows, or one
            would be repeated 2**32 times.
        ValueError: A shard has a negative number of rows.
    """

    __slots__ = ("_epoch", "_latest", "_mix", "_options", "_rows", "_seed", "_shard_rows", "_starts", "draws")

    def __init__(
        self,
        mix: Mix,
        shard_rows: Sequence[Sequence[int]],
        *,
        shuffle: Literal["window", "full"] | None,
        seed: int,
        epoch: int,
        window_shards: int,
    ) -> None:
        if not 0 <= epoch < _PASS:
            raise OptionError("epoch", epoch, "must be from 0 up to, not including, 2**32")
        self._mix, self._shard_rows = mix, tuple(map(tuple, shard_rows))
        self._options, self._seed, self._epoch = (shuffle, window_shards), seed, epoch
        self._rows = [sum(rows) for rows in self._shard_rows]
        self._starts = [0, *accumulate(self._rows)]
        self.draws = mix.draws(self._rows)
        for source, (draws, rows) in enumerate(zip(self.draws, self._rows, strict=True)):
            if draws > rows * _PASS:
                problem = f'is repeated 2**32 times and more in an epoch of {sum(self.draws)} rows; use until="first"'
                raise OptionError(f"sources[{source}]", f"{rows} rows", problem)
        # For each source the pass that was asked for last and its order, as readers go on where they were
        self._latest = [(0, self._new_pass(source, 0)) for source in range(len(self._rows))]

    def __len__(self) -> int:
        return sum(self.draws)

    def row(self, position: int) -> int:
        """The row at one position.

        Raises:
            IndexError: ``position`` is not in ``[0, len)``.
        """
        return int(self.rows(position, position + 1)[0])

    def position(self, row: int) -> int:
        """The first position at which a row stands: the inverse of :meth:`row` where no source is repeated.

        Raises:
            IndexError: There is no such row, or with ``until="first"`` the epoch ends before it.
        """
        source, place = self._place(row, 0)
        position = self._mix.shares.position(source, place)
        if position >= len(self):
            raise IndexError(f"row {row} of the mixture is not among the {len(self)} rows of this epoch")
        return position

    def positions(self, row: int) -> Integers:
        """All positions at which a row stands, int64, ascending; none where the epoch ends before it.

        It takes time for each pass of the row's source.

        Raises:
            IndexError: There is no such row.
        """
        source, _ = self._place(row, 0)
        passes = -(-self.draws[source] // self._rows[source])
        nths = (number * self._rows[source] + self._place(row, number)[1] for number in range(passes))
        given = [self._mix.shares.position(source, nth) for nth in nths if nth < self.draws[source]]
        return np.array(given, dtype=np.int64)

    def rows(self, start: int, stop: int) -> Integers:
        """The rows at positions ``[start, stop)``: int64, in the order of the positions.

        Raises:
            IndexError: The range is not within ``[0, len]``.
        """
        self._check(start, stop)
        return self.rows_at(np.arange(start, stop, dtype=np.int64))

    def rows_at(self, positions: Integers) -> Integers:
        """The rows at any positions, which may repeat: int64, a new array of equal length.

        Raises:
            IndexError: A position is not in ``[0, len)``.
        """
        if positions.size:
            self._check(int(positions.min()), int(positions.max()) + 1)
        of_source, nth = self._mix.shares.of(positions)
        found = np.empty(len(positions), dtype=np.int64)
        for source in np.unique(of_source).tolist():
            mine = np.flatnonzero(of_source == source)
            of_pass, place = np.divmod(nth[mine], self._rows[source])
            for number in np.unique(of_pass).tolist():
                now = of_pass == number
                found[mine[now]] = self._starts[source] + self._pass(source, number).rows_at(place[now])
        return found

    def _place(self, row: int, number: int) -> tuple[int, int]:
        """The source of a row, and where the row stands in the order of one pass of it."""
        if not 0 <= row < self._starts[-1]:
            raise IndexError(f"row {row} is not among the {self._starts[-1]} rows of the mixture's sources")
        source = bisect_right(self._starts, row) - 1
        return source, self._pass(source, number).position(row - self._starts[source])

    def _pass(self, source: int, number: int) -> Order:
        latest, order = self._latest[source]
        if latest != number:
            order = self._new_pass(source, number)
            self._latest[source] = (number, order)
        return order

    def _new_pass(self, source: int, number: int) -> Order:
        shuffle, window_shards = self._options
        return Order(
            self._shard_rows[source],
            shuffle=shuffle,
            seed=derive_key(_SOURCE, self._seed, source),
            epoch=self._epoch + number * _PASS,
            window_shards=window_shards,
        )

    def _check(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"positions [{start}, {stop}) are not within the {len(self)} rows of the epoch")
