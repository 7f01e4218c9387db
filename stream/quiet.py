"""Silence the warnings of one thread.

``warnings.catch_warnings`` changes the filters of all threads, and on leaving puts back a list that others may
have changed since; Python 3.14 is the first where that is otherwise. Here one filter is added and stays. Its
category claims every warning while the asking thread is inside ``quiet()``, and none otherwise, so other threads
and other code see what they would have seen without it.
"""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_thread = threading.local()


class _InQuietThread(type):
    def __subclasscheck__(cls, subclass: type) -> bool:
        return getattr(_thread, "quiet", False)


class _AnyWarning(Warning, metaclass=_InQuietThread):
    """A superclass of each warning category, as long as the thread that asks is quiet."""


@contextmanager
def quiet() -> Iterator[None]:
    """Ignore all warnings that this thread issues inside; may be nested."""
    if not warnings.filters or warnings.filters[0][2] is not _AnyWarning:
        warnings.simplefilter("ignore", _AnyWarning)
    before = getattr(_thread, "quiet", False)
    _thread.quiet = True
    try:
        yield
    finally:
        _thread.quiet = before
