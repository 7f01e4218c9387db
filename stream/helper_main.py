"""The program of a helper process: it decodes images and reads files for the process that started it.

Run with the number of a descriptor: the helper's end of the control connection; see errands.py for what is said on it.

Invariants:
- the end of the control connection is the end of this process, at once, whatever its threads are doing: the other
  process closed it or is gone;
- a lane has one thread, which answers each request once, and reads what it asks for; its images are decoded by the
  threads of a pool, which all lanes share;
- files are mapped once, and stay mapped until they were dropped and the last job with them has ended;
- only this side makes a lane's output file longer, and never shorter.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from shards.errors import StoreError
from shards.local import LocalStore
from stream.decode import decode
from stream.errands import (
    OWN_INPUT,
    AddFile,
    AddLane,
    Decode,
    Decoded,
    DecodeJob,
    Done,
    DropFile,
    Failed,
    Memory,
    Message,
    Read,
    ReadJob,
    Setup,
    answer,
    hear,
    mapped,
    post,
)
from stream.errors import DecodeError

if TYPE_CHECKING:
    from stream.orientation import Pixels

A = TypeVar("A")
B = TypeVar("B")

_FOLDERS = 256  # that stay known, each with its own open files
_PAGES = 2**20  # an output file grows by multiples of this


class _Files:
    """The memory files that jobs may name. Thread-safe."""

    def __init__(self) -> None:
        self._maps: dict[int, Memory] = {}
        self._heard = 0
        self._state = threading.Condition()

    def heard(self, message: Message, fds: list[int]) -> None:
        """Take in a control message, and tell those who wait for it."""
        added = mapped(fds[0], writable=message.writable) if isinstance(message, AddFile) else None
        with self._state:
            if isinstance(message, AddFile) and added is not None:
                self._maps[message.number] = added
            elif isinstance(message, DropFile):
                self._maps.pop(message.number, None)
            self._heard += 1
            self._state.notify_all()

    def after(self, heard: int) -> dict[int, Memory]:
        """The files as they are once so many control messages were heard."""
        with self._state:
            self._state.wait_for(lambda: self._heard >= heard)
            return dict(self._maps)


class _Lane:
    """One lane: its socket, its output file and its input file."""

    def __init__(self, fds: list[int]) -> None:
        self.socket = socket.socket(fileno=fds[0])
        self._output_fd, self._input_fd = fds[1:]
        self._output = self._input = np.empty(0, np.uint8)

    def output(self, size: int) -> Memory:
        """The output file, which is at least so many bytes long."""
        if self._output.size < size:
            os.posix_fallocate(self._output_fd, 0, size + -size % _PAGES)
            self._output = mapped(self._output_fd, writable=True)
        return self._output

    def input(self, size: int) -> Memory:
        """The input file, which is at least so many bytes long."""
        if self._input.size < size:
            self._input = mapped(self._input_fd, writable=False)
        return self._input

    def close(self) -> None:
        self.socket.close()
        os.close(self._output_fd)
        os.close(self._input_fd)


class _Decoder:
    """Decodes images into memory; `resized` is None where they keep their own sizes."""

    def __init__(self, setup: Setup) -> None:
        self._max_pixels = setup.max_pixels
        self._pool = ThreadPoolExecutor(setup.threads, thread_name_prefix="stream-decode")
        self.size = setup.resize and setup.resize[:2]
        if setup.resize is not None:
            self._resized = _resizer(setup.resize, setup.max_pixels)

    def __call__(self, images: list[tuple[str, memoryview]], lane: _Lane) -> Decoded:
        if self.size is None:
            return self._own_sizes(images, lane)
        height, width = self.size
        size = len(images) * height * width * 3
        memory = lane.output(size)
        places = memory[:size].reshape(len(images), height, width, 3)
        _each(self._pool, lambda job: self._resized(*job[0], job[1]), list(zip(images, places, strict=True)))
        return Decoded([(height, width)] * len(images), memory.size)

    def _own_sizes(self, images: list[tuple[str, memoryview]], lane: _Lane) -> Decoded:
        pixels = _each(self._pool, lambda job: decode(job[1], name=job[0], max_pixels=self._max_pixels), images)
        ends = np.cumsum([image.size for image in pixels], dtype=np.int64).tolist()
        memory = lane.output(ends[-1] if ends else 0)
        places = [memory[end - image.size : end] for image, end in zip(pixels, ends, strict=True)]
        _each(self._pool, lambda pair: np.copyto(pair[0], pair[1].reshape(-1)), list(zip(places, pixels, strict=True)))
        return Decoded([image.shape[:2] for image in pixels], memory.size)


def _resizer(spec: tuple[int, int, str, str], max_pixels: int) -> "Callable[[str, memoryview, Pixels], None]":
    """What decodes an image and resizes it into a place."""
    import torch  # noqa: PLC0415  # seconds that a helper which does not resize never pays

    from stream.resize import ResizeSpec, decode_into  # noqa: PLC0415  # as torch, which it imports

    torch.set_num_threads(1)
    height, width, mode, interpolation = spec
    made = ResizeSpec(height, width, mode, interpolation)  # type: ignore[arg-type]  # words of a ResizeSpec of the parent

    def resized(name: str, data: memoryview, place: "Pixels") -> None:
        decode_into(data, torch.from_numpy(place), made, name=name, max_pixels=max_pixels)

    return resized


class _Helper:
    def __init__(self, setup: Setup) -> None:
        self._files = _Files()
        self._decode = _Decoder(setup)

    def heard(self, message: Message, fds: list[int]) -> None:
        """Do what a control message says."""
        if isinstance(message, AddLane):
            threading.Thread(target=self._serve, args=(_Lane(fds),), name="stream-lane", daemon=True).start()
            fds = []
        self._files.heard(message, fds)
        for fd in fds:
            os.close(fd)

    def _serve(self, lane: _Lane) -> None:
        """Answer what is asked on a lane until it ends; when the other side breaks it, nobody wants the answer."""
        with contextlib.closing(lane), contextlib.suppress(OSError):
            while isinstance(message := answer(lane.socket), Decode | Read):
                post(lane.socket, self._answer(message, lane))

    def _answer(self, message: Decode | Read, lane: _Lane) -> Message:
        try:
            if isinstance(message, Decode):
                files = self._files.after(message.after) | {OWN_INPUT: lane.input(message.input_bytes)}
                return self._decode([(job[0], _image(job, files)) for job in message.jobs], lane)
            files = self._files.after(message.after)
            for job in message.jobs:
                _read(job, files)
            return Done()
        except Exception as exc:  # noqa: BLE001  # raised again by the one who asked
            return _failed(exc)


def _image(job: DecodeJob, files: dict[int, Memory]) -> memoryview:
    name, file, offset, size = job
    return _piece(files, file, offset, size, of=name)


def _read(job: ReadJob, files: dict[int, Memory]) -> None:
    path, ranges, file, offset = job
    whole, size = PurePath(path), sum(end - start for start, end in ranges)
    _folder(str(whole.parent)).read_ranges_into(whole.name, _piece(files, file, offset, size, of=path), ranges)


@lru_cache(maxsize=_FOLDERS)
def _folder(path: str) -> LocalStore:
    return LocalStore(path)


def _piece(files: dict[int, Memory], file: int, offset: int, size: int, *, of: str) -> memoryview:
    memory = files.get(file)
    if memory is None:
        raise ValueError(f"{of}: memory file {file} is not known here; add_file comes before its first job")
    if not 0 <= offset <= offset + size <= memory.size:
        raise ValueError(f"{of}: [{offset}, {offset + size}) is not within the {memory.size} bytes of file {file}")
    return memory.data[offset : offset + size]


def _each(pool: ThreadPoolExecutor, work: Callable[[A], B], jobs: Iterable[A]) -> list[B]:
    """Do each job; after the first error, in their order, the rest need not be done, but none is left running."""
    futures = [pool.submit(work, job) for job in jobs]
    try:
        return [future.result() for future in futures]
    finally:
        for future in futures:
            if not future.cancel():
                future.exception()


def _failed(error: Exception) -> Failed:
    if isinstance(error, DecodeError):
        return Failed("decode", [error.name, error.problem])
    if isinstance(error, StoreError):
        return Failed("store", [error.url, error.action, error.cause], error.errno)
    if isinstance(error, FileNotFoundError):
        return Failed("missing", [str(error.strerror), str(error.filename)], error.errno)
    return Failed("other", ["".join(traceback.format_exception(error)).strip()])


def _control(sock: socket.socket) -> Iterator[tuple[Message, list[int]]]:
    with contextlib.suppress(ConnectionError):
        while (heard := hear(sock)) is not None:
            yield heard


def main(fd: int) -> None:
    """Serve the process at the other end of a control connection until that ends; does not return."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    sock = socket.socket(fileno=fd)
    helper: Any = None
    for message, fds in _control(sock):
        if isinstance(message, Setup):
            helper = _Helper(message)
        else:
            helper.heard(message, fds)
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
