"""Which of several sources each position of an endless sequence is given to, by weight and even in every prefix.

After n positions, for every n, a source of weight w has been given n * w of them within less than one: for k sources
at most 1 - d away, d = 1 / (2k - 2). The rule is R. Tijdeman's ("The chairman assignment problem", Discrete
Mathematics 32 (1980), 323-330), where draw j = 0, 1, 2, ... is the one that a source gets after j others:

    open       draw j of a source of weight w may be given position n if (n + 1) * w - j >= d
    next       of the open draws position n is given to the one with the smallest (j + 1 - d) / w, of equal ones to
               that of the source with the lowest number

The weights are first made whole: a *period* of q positions, of which each source gets a whole number, its *count*.
Of the q up to 100,000 for which the weights times q, rounded half to even, add up to q, it is the one with the
smallest relative error over all sources (errors below 10**-12 count as equal), of equal ones the smallest. So weights
with a common denominator up to 100,000 are met exactly, others within 1/10,000 of themselves or not at all; then w
above is count / q, and n times the weight asked for is off by up to n * w / 10,000 more. As the rule gives each source
its count in a period and begins anew, one period as a table tells all positions.

Part of the order of every epoch of a mixture, so none of these numbers ever changes; tests pin them.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from heapq import heappop, heappush
from numbers import Rational, Real
from typing import Final

import numpy as np

from stream.errors import OptionError
from stream.permutation import Integers

LONGEST_PERIOD: Final = 100_000
"""Positions of a period at most; its table has 24 bytes for each and takes about 3 microseconds for each to make."""
_TOLERANCE: Final = 1e-4
_EXACT: Final = 1e-12  # fractions up to the longest period differ by 1e-10 at least, floats err by 1e-15
_SUGGESTED: Final = 10_000


class Shares:
    """The sequence of positions 0, 1, 2, ..., each given to one of k sources. Immutable; any position at once.

    Args:
        weights: One positive number for each source; they count relative to their sum.

    Attributes:
        counts: Positions that each source has in a period.
        period: Positions of a period, 1 to `LONGEST_PERIOD`.

    Raises:
        OptionError: There is no weight, one is no positive finite number, or the weights cannot be met within 1/10,000
            of each.
    """

    __slots__ = ("_begins", "_earlier", "_places", "_sizes", "_table", "counts", "period")

    def __init__(self, weights: Sequence[float | Fraction]) -> None:
        self.counts = _whole(weights)
        self.period = sum(self.counts)
        self._table = _table(self.counts)
        self._sizes = np.array(self.counts, dtype=np.int64)
        self._begins = np.cumsum(self._sizes) - self._sizes
        self._places = np.argsort(self._table, kind="stable").astype(np.int64)  # those of source 0, of source 1, ...
        self._earlier = np.empty(self.period, dtype=np.int64)
        self._earlier[self._places] = np.arange(self.period) - np.repeat(self._begins, self._sizes)
        for array in (self._table, self._sizes, self._begins, self._places, self._earlier):
            array.setflags(write=False)

    @property
    def weights(self) -> tuple[Fraction, ...]:
        """The weights that are kept to, which add up to 1."""
        return tuple(Fraction(count, self.period) for count in self.counts)

    def source_of(self, position: int) -> int:
        """The source that a position is given to.

        Raises:
            IndexError: ``position`` is negative.
        """
        _check_natural("position", position)
        return int(self._table[position % self.period])

    def count_before(self, source: int, position: int) -> int:
        """How many of the positions ``[0, position)`` are given to a source.

        Raises:
            IndexError: There is no such source, or ``position`` is negative.
        """
        self._check_source(source)
        _check_natural("position", position)
        whole, within = divmod(position, self.period)
        begin = int(self._begins[source])
        places = self._places[begin : begin + self.counts[source]]
        return whole * self.counts[source] + int(np.searchsorted(places, within))

    def of(self, positions: Integers) -> tuple[Integers, Integers]:
        """The source of each position, and how many positions before it the same source was given.

        Args:
            positions: int64, one dimension, in any order; they may repeat.

        Returns:
            Two new arrays, int64, of equal length.

        Raises:
            IndexError: A position is negative.
        """
        if positions.size:
            _check_natural("position", int(positions.min()))
        whole, within = np.divmod(positions.astype(np.int64), self.period)
        source = self._table[within]
        return source, whole * self._sizes[source] + self._earlier[within]

    def position(self, source: int, nth: int) -> int:
        """The position of draw ``nth`` of a source, counted from 0: the inverse of :meth:`of`.

        Raises:
            IndexError: There is no such source, or ``nth`` is negative.
        """
        self._check_source(source)
        _check_natural("nth", nth)
        whole, within = divmod(nth, self.counts[source])
        return whole * self.period + int(self._places[self._begins[source] + within])

    def _check_source(self, source: int) -> None:
        if not 0 <= source < len(self.counts):
            raise IndexError(f"source {source} of {len(self.counts)} sources")


def _check_natural(name: str, value: int) -> None:
    if value < 0:
        raise IndexError(f"{name} {value} is below 0")


def _whole(weights: Sequence[float | Fraction]) -> tuple[int, ...]:
    """The count of each source in a period, see the module."""
    exact = [_fraction(weights, number) for number in range(len(weights))]
    if not exact:
        raise OptionError("weights", weights, "give one positive number for each source")
    whole = sum(exact)
    parts = [float(weight / whole) for weight in exact]
    periods = np.arange(1, LONGEST_PERIOD + 1, dtype=np.float64)
    error, total = np.full(LONGEST_PERIOD, _EXACT), np.zeros(LONGEST_PERIOD)
    for part in parts:
        ideal = periods * part
        count = np.rint(ideal)
        # A weight may be so small that its ideal is 0 as a float; without a position it is off by all of itself
        error = np.maximum(error, np.where(count > 0, np.abs(count - ideal) / np.maximum(ideal, 0.5), 1.0))
        total += count
    error[total != periods] = np.inf
    best = int(error.argmin())
    if error[best] > _TOLERANCE:
        near = tuple(max(1, round(part * _SUGGESTED)) for part in parts)
        problem = (
            f"cannot be met within 1/10,000 of each by whole counts of at most {LONGEST_PERIOD:,} positions; "
            f"round them, e.g. to {near}"
        )
        raise OptionError("weights", weights, problem)
    counts = [round((best + 1) * part) for part in parts]
    divisor = math.gcd(*counts)
    return tuple(count // divisor for count in counts)


def _fraction(weights: Sequence[float | Fraction], number: int) -> Fraction:
    weight: object = weights[number]
    is_number, exact = not isinstance(weight, bool), Fraction(0)
    if isinstance(weight, Rational):
        exact = Fraction(weight)
    elif isinstance(weight, Real) and math.isfinite(float(weight)):
        exact = Fraction(float(weight))
    if not is_number or exact <= 0:
        raise OptionError(f"weights[{number}]", weight, "must be a positive finite number; leave out a source of none")
    return exact


def _table(counts: Sequence[int]) -> Integers:
    """The source of each position of one period, int64."""
    if len(counts) == 1:
        return np.zeros(counts[0], dtype=np.int64)
    period, twice = sum(counts), 2 * len(counts) - 2  # d = 1 / twice
    # Draws as (first position where it is open, its place in the order of next, source). Two values of that order
    # differ by 1 / period**2 or more if they differ, so times period**2 their whole parts do.
    draws = sorted(
        (
            -(-period * (twice * draw + 1) // (twice * count)) - 1,
            (twice * (draw + 1) - 1) * period**2 // count,
            source,
        )
        for source, count in enumerate(counts)
        for draw in range(count)
    )
    table = np.empty(period, dtype=np.int64)
    ready: list[tuple[int, int]] = []
    opened = 0
    for position in range(period):
        while opened < period and draws[opened][0] <= position:
            heappush(ready, draws[opened][1:])
            opened += 1
        table[position] = heappop(ready)[1]
    return table
