"""A bell that threads ring to wake another thread out of `select`."""

import os
import threading


class Bell:
    """An eventfd, readable while it rings.

    `ring` may be called from any thread, also after `close`; `silence` by the thread that was woken.

    One that nobody closes, since a thread that could not be waited for may still ring it, is closed with its last user.
    """

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Between `ring` reading the number and writing to it, another thread's file may have got it.
        self._lock = threading.RLock()
        self._process = os.getpid()  # a fork shares the descriptor, and not what is known of it
        self._rung = False

    def __del__(self) -> None:
        if hasattr(self, "_lock"):  # else its descriptor could not be made
            self.close()

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the bell rings."""
        return self._fd

    def ring(self) -> None:
        """Wake whoever waits, or the next to wait."""
        if self._rung or self._process != os.getpid():
            return  # not silenced since: who waits has yet to look; a child has nobody to wake
        with self._lock:
            if self._fd >= 0 and not self._rung:
                os.eventfd_write(self._fd, 1)
                self._rung = True

    def silence(self) -> None:
        """Forget the rings so far. To be called before looking at what they were for, never after."""
        with self._lock:
            if self._rung and self._fd >= 0 and self._process == os.getpid():
                os.eventfd_read(self._fd)
                self._rung = False

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)
