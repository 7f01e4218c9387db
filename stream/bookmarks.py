"""What a source that is read one item after another says of itself, where it has a `state_dict`: no need to count then.

The convention is that of torchdata and of Hugging Face's datasets: `state_dict()` between two items means "behind the
first of them", and `load_state_dict` holds for the iterator that is made next. Some keep what they were told also for
later ones, so a source that was sent somewhere is sent back to where it was at first before it begins at its beginning.
"""

import logging
from collections import deque
from collections.abc import Iterator
from typing import Any, TypeVar

from torch.utils.data import DataLoader, IterableDataset

from stream.cuts import CutStep
from stream.errors import SourceError
from stream.point import Bookmark
from stream.whole import from_bytes, to_bytes

_MOST_BYTES = 1 << 20
"""Of a state: it travels to every rank with every step."""
_TORCHDATAS = ("dataset_state", "dataset_iter_state")
"""Where torchdata keeps the state of a dataset and of its iterator; None where they have none."""

_log = logging.getLogger("stream")
T = TypeVar("T")


def has_state(source: object) -> bool:
    """Tell whether a source has `state_dict` and `load_state_dict`."""
    return callable(getattr(source, "state_dict", None)) and callable(getattr(source, "load_state_dict", None))


def says_something(state: object) -> bool:
    """Tell whether a torchdata loader's state holds one of its dataset or of the dataset's iterator, also in a worker.

    Without it torchdata reads again from the beginning, but counts what it passes over twice [0.11].
    """
    if not isinstance(state, dict):
        return False
    return any(value is not None if name in _TORCHDATAS else says_something(value) for name, value in state.items())


class Beginning:
    """Where a source was before its first pass. One for each source of a process."""

    def __init__(self) -> None:
        self._state: bytes | None = None
        self._is_known = self._was_sent = False

    def note(self, source: Any) -> None:  # noqa: ANN401 - duck-typed
        """Ask the source before its first pass where it is; one that cannot tell yet cannot be sent back."""
        holder, known = _holder(source), self._is_known
        self._is_known = True
        if known or holder is None:
            return
        try:
            self._state = to_bytes(holder.state_dict())
        except Exception as exc:  # noqa: BLE001 - what it raises later, between two items, is raised
            _log.info("%s.state_dict() says nothing before the first item: %r", type(holder).__name__, exc)

    def leave(self) -> None:
        """Note that the source is sent elsewhere."""
        self._was_sent = True

    def return_to(self, source: Any) -> None:  # noqa: ANN401 - duck-typed
        """Send the source back, if it ever was sent elsewhere."""
        holder = _holder(source)
        if self._was_sent and holder is not None and self._state is not None:
            holder.load_state_dict(from_bytes(self._state))


def _holder(source: Any) -> Any:  # noqa: ANN401 - duck-typed
    """Return what keeps, in this process, what it was told: a loader forgets it, its dataset need not."""
    if isinstance(source, DataLoader):
        return source.dataset if source.num_workers == 0 and has_state(source.dataset) else None
    return source


class Bookmarks:
    """Where one pass over a source begins, and its bookmarks; used by the thread that reads.

    Args:
        start: How many items of the epoch were delivered before.
        every: Items between two bookmarks; 0: the source has none, or they are not wanted.
        begin: What the source said of itself at `start` or before; None: it is read from its beginning.
        beginning: The source's.
    """

    def __init__(
        self, start: int = 0, *, every: int = 0, begin: Bookmark | None = None, beginning: Beginning | None = None
    ) -> None:
        self._start, self._every, self._beginning = start, every, beginning or Beginning()
        self._begin = begin if every else None
        self._kept: deque[Bookmark] = deque([] if self._begin is None else [self._begin])

    @property
    def base(self) -> int:
        """Items of the epoch before the first one that is read."""
        return 0 if self._begin is None else self._begin.position

    @property
    def rest(self) -> int:
        """Items to be read that were delivered before."""
        return self._start - self.base

    def prepare(self, source: Any) -> None:  # noqa: ANN401 - duck-typed
        """Be called before the source hears of its epoch."""
        if not self._every:
            return
        self._beginning.note(source)
        if self._begin is None:
            self._beginning.return_to(source)
        else:
            self._beginning.leave()

    def open(self, reading: Any) -> None:  # noqa: ANN401 - duck-typed
        """Send what is read to where the pass begins; be called before it is iterated."""
        if self._begin is not None:
            reading.load_state_dict(from_bytes(self._begin.state))

    def passed(self, reading: Any, items: int) -> None:  # noqa: ANN401 - duck-typed
        """Note that so many items were read in this pass."""
        if not self._every or items % self._every:
            return
        state = reading.state_dict()
        is_iterated = isinstance(reading, DataLoader) and isinstance(reading.dataset, IterableDataset)
        if is_iterated and not says_something(state):
            return
        try:
            packed = to_bytes(state)
        except SourceError as exc:
            where = exc.where.replace("batch", f"{type(reading).__name__}.state_dict()", 1)
            self._do_without(f"{where} {exc.problem}")
            return
        if len(packed) > _MOST_BYTES:
            self._do_without(f"{type(reading).__name__}.state_dict() has {len(packed)} bytes, more than {_MOST_BYTES}")
            return
        self._kept.append(Bookmark(self.base + items, packed))

    def at(self, position: int) -> Bookmark | None:
        """Return the last bookmark up to a position, and forget those before it."""
        while len(self._kept) > 1 and self._kept[1].position <= position:
            self._kept.popleft()
        return self._kept[0] if self._kept and self._kept[0].position <= position else None

    def _do_without(self, problem: str) -> None:
        self._every = 0
        self._kept.clear()
        _log.warning("%s: it is not saved, so resuming counts and reads the source again from its beginning", problem)


def bookmarked(steps: Iterator[CutStep[T]], bookmarks: Bookmarks) -> Iterator[CutStep[T]]:
    """Yield the steps of a pass with their positions in the epoch, and what the source said of itself up to there."""
    for step in steps:
        position = step.position_after + bookmarks.base
        yield step._replace(position_after=position, bookmark=bookmarks.at(position))
