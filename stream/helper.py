"""A process that decodes images and reads files for this one, so that pure Python here cannot starve those threads.

Threads that decode need the GIL between images, and wait for it as long as a training loop that runs pure Python likes
to keep it. Here a thread needs it a handful of times for a whole portion: to send one message, to receive one, and to
copy the pixels once. Images reach the helper in memory files that it maps as well, pixels come back in another.

Invariants:
- nothing starts before the first use; `close`, the end of the last reference and the end of this process end it;
- no answer is a view of shared memory: what a caller gets is the caller's own;
- a forked child has no part in its parent's helper, and starts its own when it needs one.
"""

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn, TypeAlias

import numpy as np
import torch

from shards.errors import StoreError
from stream.decode import MAX_PIXELS
from stream.errands import (
    OWN_INPUT,
    Decode,
    Decoded,
    DecodeJob,
    Done,
    DropFile,
    Failed,
    Message,
    Read,
    ReadJob,
    Setup,
)
from stream.errors import DecodeError
from stream.helper_process import HelperError, Running
from stream.orientation import Encoded
from stream.resize import ResizeSpec

Empty: TypeAlias = Callable[[int], torch.Tensor]
"""Gives new memory of so many bytes: a uint8 tensor [bytes] on the CPU."""


class _Here:
    """What belongs to one process: a fork copies a lock as it is at that moment, and no helper."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.Lock()
        self.running: Running | None = None


class DecodeHelper:
    """Decodes images and reads files in a process of its own. Thread-safe: each call waits for its own answer only.

    Args:
        resize: The size that every picture gets, or None for their own sizes.
        threads: How many images it decodes at once.
        max_pixels: As of `decode`.

    Raises:
        HelperError: from a call: the process is dead, was closed, or failed in a way that no image is to blame for.
    """

    def __init__(self, *, resize: ResizeSpec | None, threads: int, max_pixels: int = MAX_PIXELS) -> None:
        self._size = None if resize is None else (resize.height, resize.width)
        spec = None if resize is None else (resize.height, resize.width, resize.mode, resize.interpolation)
        self._setup = Setup(threads, max_pixels, spec)
        self._closed = False
        self._here = _Here()

    @property
    def pid(self) -> int | None:
        """The number of the process; None before it started."""
        running = self._own().running
        return None if running is None else running.process.pid

    @property
    def is_dead(self) -> bool:
        """Whether the process was started and has ended by itself, so that every call raises."""
        running = self._own().running
        return running is not None and running.process.poll() is not None

    def start(self) -> None:
        """Start the process now, without waiting until it is ready. Idempotent."""
        self._started()

    def add_file(self, fd: int, *, writable: bool = False) -> int:
        """Share a memory file with the helper; its number, for jobs. The descriptor stays the caller's.

        Args:
            fd: Of a memory file that has its final size.
            writable: Whether `read` may fill it.
        """
        return self._started().add_file(fd, writable=writable)

    def drop_file(self, number: int) -> None:
        """Let the helper unmap a file that no job will name again. Without effect once the helper is dead or closed."""
        running = self._own().running
        if running is not None:
            with suppress(HelperError):
                running.post(DropFile(number))

    def decode(self, jobs: Sequence[DecodeJob], *, empty: Empty | None = None) -> torch.Tensor | list[torch.Tensor]:
        """Decode images that lie in memory files: (name, number of the file, offset, size in bytes) each.

        Args:
            jobs: The images; their bytes must not change until this returns.
            empty: Gives the memory of the result, all of it at once; default: memory of torch.

        Returns:
            uint8 [N, H, W, 3], or without `resize` N of [H_i, W_i, 3], RGB, upright: to the pixel what `decode_into`
            and `decode` give.

        Raises:
            DecodeError: The first image in order that cannot be decoded, with the words it has in this process.
        """
        return self._decode(jobs, [], empty)

    def decode_encoded(
        self, images: Sequence[tuple[str, Encoded]], *, empty: Empty | None = None
    ) -> torch.Tensor | list[torch.Tensor]:
        """Decode images that lie in ordinary memory: (name, bytes) each; else as `decode`.

        They are copied into a memory file first, by one call of the system for each 1,024 of them.
        """
        pieces = [memoryview(data) for _, data in images]
        ends = np.cumsum([piece.nbytes for piece in pieces], dtype=np.int64).tolist()
        jobs = [
            (name, OWN_INPUT, end - piece.nbytes, piece.nbytes)
            for (name, _), piece, end in zip(images, pieces, ends, strict=True)
        ]
        return self._decode(jobs, pieces, empty)

    def read(self, jobs: Sequence[ReadJob]) -> None:
        """Read local files into memory files: (path, ranges, number of the memory file, offset) each, see `ReadJob`.

        What is read by one call is read in order, by several at once.

        Raises:
            FileNotFoundError: The first file in order that cannot be read is not there.
            StoreError: It is there, but cannot be read or is too short; has `errno` and the path.
        """
        running = self._started()
        lane = running.take()
        try:
            told = lane.ask(Read(running.posted, list(jobs)), running)
            if not isinstance(told, Done):
                _refuse(told)
        finally:
            running.give(lane, lane.held())

    def close(self) -> None:
        """End the process and wait until it is gone; calls under way raise. Idempotent."""
        here = self._own()
        with here.lock:
            self._closed, running = True, here.running
        if running is not None:
            running.close()

    def _decode(
        self, jobs: Sequence[DecodeJob], pieces: list[memoryview], empty: Empty | None
    ) -> torch.Tensor | list[torch.Tensor]:
        running = self._started()
        lane = running.take()
        used = 0
        try:
            used = lane.fill(pieces)
            told = lane.ask(Decode(running.posted, list(jobs), used), running)
            if not isinstance(told, Decoded):
                _refuse(told)
            pixels = lane.copied(told, empty or _empty)
            used += pixels.numel()
        finally:
            running.give(lane, used)
        if self._size is not None:
            return pixels.view(len(jobs), *self._size, 3)
        ends = np.cumsum([height * width * 3 for height, width in told.sizes], dtype=np.int64).tolist()
        starts = [0, *ends]
        return [pixels[start:end].view(*size, 3) for start, end, size in zip(starts, ends, told.sizes, strict=False)]

    def _started(self) -> Running:
        here = self._own()
        with here.lock:
            if self._closed:
                raise HelperError("was closed")
            if here.running is None:
                here.running = Running(self._setup)
                weakref.finalize(self, here.running.close)
            return here.running

    def _own(self) -> _Here:
        if self._here.process != os.getpid():
            self._here = _Here()
        return self._here


def _empty(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


def _refuse(told: Message) -> NoReturn:
    if not isinstance(told, Failed):
        raise HelperError(f"answered with {type(told).__name__}")
    words = told.words
    if told.kind == "decode":
        raise DecodeError(words[0], words[1])
    if told.kind == "store":
        raise StoreError(words[0], words[1], words[2], told.errno)
    if told.kind == "missing":
        raise FileNotFoundError(told.errno, words[0], words[1])
    raise HelperError(f"failed:\n{words[0]}")
