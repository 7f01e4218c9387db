"""The bad rows that a loader knows: others stand in for them, in this epoch and all later ones, see substitute.py."""

import logging
import math
from collections.abc import Sequence

from stream.errors import SourceError

_log = logging.getLogger("stream")
_SHOWN = 10


class Quarantine:
    """One loader's.

    Args:
        name: Of the loader, for messages.
        limit: How many rows may be bad: a count, or a fraction of the rows as a float.
    """

    def __init__(self, name: str, limit: float) -> None:
        self._name, self._limit = name, limit
        self._problems: dict[int, str] = {}

    @property
    def rows(self) -> tuple[int, ...]:
        """The bad rows, ascending."""
        return tuple(sorted(self._problems))

    def replace(self, rows: Sequence[int]) -> None:
        """Know these rows and no others, as a saved state says."""
        self._problems = {row: self._problems.get(row, "it was bad when the state was saved") for row in rows}

    def add(self, row: int, problem: str, *, of: int, tells: bool) -> None:
        """Put a row aside, `of` being all rows of an epoch; warns of it if this process `tells`.

        Raises:
            SourceError: there are more bad rows than are allowed.
        """
        self._problems[row] = problem
        most = math.ceil(self._limit * of) if isinstance(self._limit, float) else self._limit
        if len(self._problems) > min(most, of - 1):
            first = "; ".join(f"row {row}: {self._problems[row]}" for row in self.rows[:_SHOWN])
            problem = (
                f"has {len(self._problems)} bad rows of {of}, more than bad_rows_limit={self._limit} allows; pack the "
                f"data again, or raise the limit. The first ones: {first}"
            )
            raise SourceError(f"the data of loader {self._name!r}", problem)
        if tells:
            _log.warning(
                "loader %r: row %d is bad, and the next good one of the order stands in for it from now on: %s",
                self._name,
                row,
                problem,
            )
