"""What a source that is read one item after another says of itself, where it has a `state_dict`: no need to count then.

The convention is that of torchdata and of Hugging Face's datasets: `state_dict()` between two items means "behind the
first of them", and `load_state_dict` holds for the iterator that is made next. Some keep what they were told for later
ones too, so the user's own object is never told anything: a pass that begins elsewhere reads a copy.
"""

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
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

_COUNTS = "resuming counts, and reads the source again from its beginning"

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


def copy_of(source: Any) -> Any:  # noqa: ANN401 - duck-typed
    """Return a deep copy of a source, to be sent elsewhere; None, and a warning, where it cannot be copied."""
    try:
        return deepcopy(source)
    except Exception as exc:  # noqa: BLE001 - counting goes on without it
        _log.warning(
            "%s cannot be copied, so it is not told where to go on (%s: %s): %s",
            type(source).__name__,
            type(exc).__name__,
            exc,
            _COUNTS,
        )
        return None


class Bookmarks:
    """Where one pass over a source begins, and its bookmarks; used by the thread that reads.

    Args:
        start: How many items of the epoch were delivered before.
        every: Items between two bookmarks; 0: the source has none, or they are not wanted.
        begin: What the source said of itself at `start` or before; None: it is read from its beginning.
        reading: What is sent there, a copy of the source: some keep what they were told also for later passes, and a
            source may be read by several loaders.
    """

    def __init__(
        self,
        start: int = 0,
        *,
        every: int = 0,
        begin: Bookmark | None = None,
        reading: Any = None,  # noqa: ANN401 - duck-typed
    ) -> None:
        self._start, self._every = start, every
        self._begin, self._reading = None if reading is None else begin, reading
        self._is_shared = False
        self._kept: deque[Bookmark] = deque([] if self._begin is None else [self._begin])

    @property
    def base(self) -> int:
        """Items of the epoch before the first one that is read."""
        return 0 if self._begin is None else self._begin.position

    @property
    def rest(self) -> int:
        """Items to be read that were delivered before."""
        return self._start - self.base

    @contextmanager
    def open(self, source: Any) -> Iterator[Any]:  # noqa: ANN401 - duck-typed
        """Give what is to be read, for as long as the pass lasts; `send` sends it to where the pass begins."""
        reading = source if self._reading is None else self._reading
        is_here = isinstance(reading, DataLoader) and reading.num_workers == 0
        iterated = id(reading.dataset if is_here else reading)
        live = _live.setdefault(iterated, [])
        live.append(self)
        if self._every and len(live) > 1:
            for one in live:
                one.share(reading)
        try:
            yield reading
        finally:
            live.remove(self)
            if not live and _live.get(iterated) is live:
                del _live[iterated]

    def send(self, reading: Any) -> None:  # noqa: ANN401 - duck-typed
        """Send what is read to where the pass begins; be called right before it is iterated."""
        if self._begin is not None:
            reading.load_state_dict(from_bytes(self._begin.state))

    def passed(self, reading: Any, items: int) -> None:  # noqa: ANN401 - duck-typed
        """Note that so many items were read in this pass."""
        if not self._every or self._is_shared or items % self._every:
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
        if self._is_shared:
            return None
        while len(self._kept) > 1 and self._kept[1].position <= position:
            self._kept.popleft()
        return self._kept[0] if self._kept and self._kept[0].position <= position else None

    def share(self, reading: Any) -> None:  # noqa: ANN401 - duck-typed
        """Do without bookmarks from now on: two iterators of one object may both change what it says of itself."""
        if self._every and not self._is_shared:
            name = type(reading).__name__
            _log.warning("two passes go on over one %s: what it says of itself is not saved; %s", name, _COUNTS)
        self._is_shared = True

    def _do_without(self, problem: str) -> None:
        self._every = 0
        self._kept.clear()
        _log.warning("%s: it is not saved; %s", problem, _COUNTS)


_live: dict[int, list[Bookmarks]] = {}
"""The passes that go on over each object, by its id."""


def bookmarked(steps: Iterator[CutStep[T]], bookmarks: Bookmarks) -> Iterator[CutStep[T]]:
    """Yield the steps of a pass with their positions in the epoch, and what the source said of itself up to there."""
    for step in steps:
        position = step.position_after + bookmarks.base
        yield step._replace(position_after=position, bookmark=bookmarks.at(position))
