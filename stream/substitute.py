"""Rows that are known to be bad, and who stands in for them. Pure.

The row at position p stands in for itself unless it is bad; then the first good one does of those at p + 1, p + 2, ...,
behind the last position from the first on. What is random about it is still drawn from p. So an epoch keeps its length,
and whoever knows the same bad rows gets the same rows.
"""

from collections.abc import Collection
from typing import TypeAlias

import numpy as np

from stream.mix import MixOrder
from stream.order import Order
from stream.permutation import Integers


class Substituted:
    """The order of an epoch without its bad rows. It answers as `Order` does. Immutable.

    Args:
        order: Of all rows.
        bad: Rows that are left out; those that the order does not have do not matter.

    Raises:
        ValueError: from asking: every row is bad.
    """

    __slots__ = ("_bad", "_order")

    def __init__(self, order: Order | MixOrder, bad: Collection[int]) -> None:
        self._order, self._bad = order, np.array(sorted(bad), dtype=np.int64)

    def __len__(self) -> int:
        return len(self._order)

    def row(self, position: int) -> int:
        """The row that is given at one position.

        Raises:
            IndexError: ``position`` is not in ``[0, len)``.
        """
        return int(self.rows_at(np.array([position], dtype=np.int64))[0])

    def rows_at(self, positions: Integers) -> Integers:
        """The rows that are given at any positions, which may repeat: int64, a new array of equal length.

        Raises:
            IndexError: A position is not in ``[0, len)``.
        """
        found = self._order.rows_at(positions)
        places = np.flatnonzero(np.isin(found, self._bad))
        later = 0
        while places.size:
            later += 1
            if later == len(self):
                raise ValueError(f"all {len(self)} rows of the epoch are bad")
            found[places] = self._order.rows_at((positions[places] + later) % len(self))
            places = places[np.isin(found[places], self._bad)]
        return found


RowOrder: TypeAlias = Order | MixOrder | Substituted
"""Which row stands at which position of an epoch, of one source or of several, bad rows left out or not."""
