"""A bell that threads ring to wake another thread out of `select`."""

import os
import threading
from contextlib import suppress


class Bell:
    """An eventfd. `ring` may be called from any thread, also after `close`; `silence` by the thread that was woken.

    One that nobody closes, since a thread that could not be waited for may still ring it, is closed with its last user.
    """

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Between `ring` reading the number and writing to it, another thread's file may have got it.
        self._lock = threading.RLock()

    def __del__(self) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the bell rings."""
        return self._fd

    def ring(self) -> None:
        """Wake whoever waits, or the next to wait."""
        with self._lock, suppress(BlockingIOError):
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def silence(self) -> None:
        """Forget the rings so far."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)
