"""Read images ahead of the writer: one thread reads while the main thread hashes and writes.

Invariants: images come in their order; at most one image a source is held; an image that cannot be read comes as its
error; leaving early ends the thread.
"""

import queue
import threading
from collections.abc import Generator, Sequence

from images import ImageSource, Place
from pack_errors import UnreadableImageError

SOURCES = 6
"""How many sources keep the writer busy: more than two change nothing on a memory disk, a slow disk has some slack."""


def read_ahead(
    sources: Sequence[ImageSource], places: Sequence[Place]
) -> Generator[memoryview | UnreadableImageError, None, None]:
    """Yield the bytes at each place, valid until the next is asked for.

    The sources are the same folder or zip, opened two or more times, since each keeps what it read last; nobody else
    may read from them meanwhile.
    """
    arrived: queue.SimpleQueue[memoryview | UnreadableImageError] = queue.SimpleQueue()
    room = threading.Semaphore(len(sources) - 1)  # the last one holds what the consumer looks at
    left = threading.Event()

    def run() -> None:
        for number, place in enumerate(places):
            room.acquire()
            if left.is_set():
                return
            try:
                arrived.put(sources[number % len(sources)].read(place))
            except UnreadableImageError as exc:
                arrived.put(exc)

    thread = threading.Thread(target=run, name="pack-read-ahead", daemon=True)
    thread.start()
    try:
        for _ in places:
            yield arrived.get()
            room.release()
    finally:
        left.set()
        room.release()
        thread.join()
