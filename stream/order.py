"""The order of all rows of an epoch: a pure function of (rows of each shard, shuffle, seed, epoch, window_shards).

    None        storage order
    "window"    the shards are permuted; each run of ``window_shards`` shards of that permutation is one window, its
                rows are merged and permuted among themselves. Who reads in order reads each shard once.
    "full"      all rows are permuted; no place of the order tells where its neighbour is stored

The permutations and their keys are those of stream/permutation.py; the words of a key are (purpose, seed, epoch,
window), with the purposes below. They never change: a saved position means the same rows for ever.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal

import numpy as np

from stream.errors import OptionError
from stream.permutation import Integers, Permutation, derive_key

_SHARDS, _WINDOW, _FULL = 1, 2, 3  # purposes


class Order:
    """Which row stands at which position of one epoch, and where a row stands.

    A *row* is global: the rows of all earlier shards in storage order, plus the row in its shard. Any position
    is reached at once; memory is O(shards). Immutable.

    Args:
        shard_rows: Rows of each shard in storage order; empty shards and no shards at all are fine.
        shuffle: See the module.
        seed: Any whole number; it counts modulo 2**64.
        epoch: As ``seed``; another epoch is another permutation.
        window_shards: Shards that are merged into one window, at least 1; only "window" looks at it.

    Raises:
        OptionError: ``shuffle`` or ``window_shards`` has no meaning.
        ValueError: A shard has a negative number of rows.
    """

    __slots__ = ("_full", "_merged", "_place", "_seed_epoch", "_shard", "_starts", "_window_shards", "_windows")

    def __init__(
        self,
        shard_rows: Sequence[int],
        *,
        shuffle: Literal["window", "full"] | None,
        seed: int,
        epoch: int,
        window_shards: int,
    ) -> None:
        if shuffle not in (None, "window", "full"):
            raise OptionError("shuffle", shuffle, 'must be None, "window" or "full"')
        if window_shards < 1:
            raise OptionError("window_shards", window_shards, "must be at least 1")
        sizes = np.asarray(shard_rows, dtype=np.int64)
        if sizes.size and int(sizes.min()) < 0:
            raise ValueError(f"shard {int(sizes.argmin())} has {int(sizes.min())} rows; 0 is the least")
        self._seed_epoch = (seed, epoch)
        self._starts = _starts(sizes)
        self._full: Permutation | None = None
        self._windows: Integers | None = None
        self._window_shards = window_shards
        if shuffle == "full":
            self._full = Permutation(len(self), key=derive_key(_FULL, seed, epoch, 0))
        elif shuffle == "window":
            self._merge(sizes)

    def _merge(self, sizes: Integers) -> None:
        """Permute the shards: place in the permutation <-> shard, and where each place and each window starts."""
        count = len(sizes)
        permutation = Permutation(count, key=derive_key(_SHARDS, *self._seed_epoch, 0))
        self._shard = permutation.forward(np.arange(count, dtype=np.int64))
        self._place = np.empty(count, dtype=np.int64)
        self._place[self._shard] = np.arange(count, dtype=np.int64)
        self._merged = _starts(sizes[self._shard])
        self._windows = np.append(self._merged[: -1 : self._window_shards], self._merged[-1])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def row(self, position: int) -> int:
        """The row at one position.

        Raises:
            IndexError: ``position`` is not in ``[0, len)``.
        """
        self._check(position, position + 1)
        if self._full is not None:
            return self._full.forward_one(position)
        if self._windows is None:
            return position
        window = _piece(self._windows, position)
        start = int(self._windows[window])
        merged = start + self._window(window, self._windows).forward_one(position - start)
        place = _piece(self._merged, merged)
        return merged - int(self._merged[place]) + int(self._starts[self._shard[place]])

    def position(self, row: int) -> int:
        """The position at which a row stands: the inverse of :meth:`row`.

        Raises:
            IndexError: ``row`` is not in ``[0, len)``.
        """
        self._check(row, row + 1)
        if self._full is not None:
            return self._full.inverse_one(row)
        if self._windows is None:
            return row
        shard = _piece(self._starts, row)
        place = int(self._place[shard])
        merged = int(self._merged[place]) + row - int(self._starts[shard])
        window = place // self._window_shards
        start = int(self._windows[window])
        return start + self._window(window, self._windows).inverse_one(merged - start)

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
        if self._full is not None:
            return self._full.forward(positions)
        if self._windows is None:
            return positions.astype(np.int64)
        merged = self._shuffled(positions, self._windows)
        place = np.searchsorted(self._merged, merged, side="right") - 1
        found: Integers = merged - self._merged[place] + self._starts[self._shard[place]]
        return found

    def _shuffled(self, positions: Integers, windows: Integers) -> Integers:
        """Where in the sequence of permuted shards the rows of these positions are."""
        of_window = np.searchsorted(windows, positions, side="right") - 1
        merged = np.empty(len(positions), dtype=np.int64)
        for number in np.unique(of_window).tolist():
            mine = of_window == number
            start = windows[number]
            merged[mine] = start + self._window(number, windows).forward(positions[mine] - start)
        return merged

    def _window(self, number: int, windows: Integers) -> Permutation:
        size = int(windows[number + 1] - windows[number])
        return Permutation(size, key=derive_key(_WINDOW, *self._seed_epoch, number))

    def _check(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"positions or rows [{start}, {stop}) are not within the {len(self)} rows of the epoch")


def _starts(sizes: Integers) -> Integers:
    """Where each piece starts when they stand one after another, and where the last one ends."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes, dtype=np.int64)])


def _piece(starts: Integers, value: int) -> int:
    """The piece that holds a value; of pieces with the same start that is the last, for the others are empty."""
    return bisect_right(starts, value) - 1
