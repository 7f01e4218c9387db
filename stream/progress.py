"""Where a loader is: its epoch, its position in it, and where its next iteration begins."""

from stream.errors import OptionError
from stream.point import Bookmark, Point

_MOST = 2**63


class Progress:
    """One loader's. `epoch` is the one that the next iteration delivers.

    Attributes:
        epoch: Counted from 0.
        position: Rows of the epoch that were handed out, over all ranks.
        start: Where the next iteration begins; 0 but for a restored or skipping loader.
        bookmark: What the source said of itself at `position` or before, if it says anything.
        at_end: Whether the batch just handed out was this rank's last of the epoch.
        remainder: Rows of that last step without padding, -1 before it.
    """

    def __init__(self) -> None:
        self.epoch = self.position = self.start = self._running = 0
        self.bookmark: Bookmark | None = None
        self.at_end, self.remainder = False, -1

    @property
    def place(self) -> Point:
        """Where to go on from; behind the last batch of an epoch that is the begin of the next."""
        if self.at_end and self.position:
            return Point(self.epoch + 1, 0)
        return Point(self.epoch, self.position, self.bookmark)

    def begin(self) -> Point:
        """Begin an iteration: return where."""
        self._running = self.epoch
        self.position, self.start = self.start, 0
        self.bookmark = self.bookmark if self.position else None
        self.at_end, self.remainder = False, -1
        return Point(self.epoch, self.position, self.bookmark)

    def hand_out(self, rows: int, *, position: int | None, last: bool, bookmark: Bookmark | None = None) -> None:
        """Note a batch: the rows of its whole step without padding, and what was told of the position behind it."""
        if self._running == self.epoch:  # else another was set meanwhile, of which nothing was handed out
            self.position, self.bookmark = self.position + rows if position is None else position, bookmark
        if last:
            self.at_end, self.remainder = True, rows

    def end(self, epoch: int, *, ended: bool = True) -> None:
        """Note that an iteration is over, and whether it `ended` its epoch."""
        if ended and self.epoch == epoch:  # else another was set meanwhile
            self.epoch, self.position, self.bookmark = epoch + 1, 0, None

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration deliver this epoch, from its beginning if it is another than now.

        Raises:
            OptionError: it is no whole number, or below 0.
        """
        _check("epoch", epoch, "a whole number from 0 up to, not including, 2**63; epochs are counted from 0")
        if epoch != self.epoch:
            self.go_to(epoch, 0)

    def go_to(self, epoch: int, position: int, bookmark: Bookmark | None = None) -> None:
        """Let the next iteration begin there."""
        self.epoch, self.start, self.position, self.bookmark = epoch, position, position, bookmark
        self.at_end, self.remainder = False, -1

    def skip(self, steps: int, *, rows_a_step: int, rows: int | None) -> None:
        """Let the next iteration begin so many steps later, at most at the end of the epoch's `rows`.

        Raises:
            OptionError: it is no whole number, or below 0.
        """
        _check("steps", steps, "a whole number of steps, 0 or more")
        start = self.start + steps * rows_a_step
        self.go_to(self.epoch, start if rows is None else min(start, rows), self.bookmark if self.start else None)


def _check(name: str, value: object, allowed: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MOST:
        raise OptionError(name, value, f"must be {allowed}")
