"""A few threads that run tasks in their order, for little more than the tasks take.

A `ThreadPoolExecutor` makes a future with a lock and a condition for each task, which costs more than many tasks here.
"""

import queue
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Aside(Generic[T]):
    """At most `most` threads that call `run` with one task after another; one is started with each of the first tasks.

    `run` must not raise. `put` and `pop` may be called from any thread, until `close` is.
    """

    def __init__(self, run: Callable[[T], None], most: int, *, name: str) -> None:
        self._do, self._most, self._name = run, most, name
        self._tasks: SimpleQueue[list[T]] = SimpleQueue()  # lists of one task; an empty one ends a thread
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()
        self._closed = False

    @property
    def waits(self) -> bool:
        """Whether a task waits for a thread."""
        return not self._tasks.empty()

    def put(self, task: T) -> None:
        """Let a task be run.

        Raises:
            RuntimeError: The system gives not a single thread.
        """
        self._tasks.put([task])
        if len(self._threads) < self._most:
            self._start()

    def pop(self) -> list[T]:
        """Take one task from the threads, if one waits: a list of it, else an empty one."""
        try:
            return self._tasks.get_nowait()
        except queue.Empty:
            return []

    def close(self) -> None:
        """Wait for the tasks that run, and drop those that wait. Idempotent."""
        self._closed = True
        for _ in self._threads:
            self._tasks.put([])
        for thread in self._threads:
            thread.join()
        self._do = _nothing  # whose method it was is let go

    def _start(self) -> None:
        with self._starting:
            count = len(self._threads)
            if count < self._most:
                thread = threading.Thread(target=self._run, name=f"{self._name}_{count}", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the system gives no more threads
                    if not self._threads:
                        raise
                else:
                    self._threads.append(thread)

    def _run(self) -> None:
        while task := self._tasks.get():
            if not self._closed:
                self._do(task.pop())  # nothing of it is kept while the next one is waited for


def _nothing(task: object) -> None:
    """Stand where `run` stood."""
