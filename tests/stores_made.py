"""What tests of stores share: `uploads://` hides uncommitted files as object stores do, `broken://` fails."""

import errno
import os
from collections.abc import Callable
from multiprocessing import get_context
from typing import ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractBufferedFile


def exit_code(act: Callable[[], bool]) -> int | None:
    """42 if the act is true in a forked process."""
    process = get_context("fork").Process(target=lambda: os._exit(42 if act() else 1))
    process.start()
    process.join()
    return process.exitcode


class Upload(AbstractBufferedFile):
    """Collects parts as a multipart upload does; `UploadsFileSystem.begun` lists those under way."""

    def _initiate_upload(self):
        self.parts = []
        self.fs.begun.append(self.path)

    def _upload_chunk(self, final=False):
        self.parts.append(self.buffer.getvalue())
        if self.autocommit and final:
            self.commit()

    def commit(self):
        self.fs.pipe_file(self.path, b"".join(self.parts))
        self.fs.begun.remove(self.path)

    def discard(self):
        if self.path in self.fs.begun:
            self.fs.begun.remove(self.path)


class UploadsFileSystem(MemoryFileSystem):
    protocol = ("uploads", "gcs")
    store: ClassVar[dict] = {}
    pseudo_dirs: ClassVar[list] = [""]
    begun: ClassVar[list] = []

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("uploads://", "memory://"))

    def cat_file(self, path, start=None, end=None, **kwargs):
        """As an object store: a range must begin within the file, and end behind its beginning."""
        if start is not None and (start >= self.size(path) or (end is not None and end <= start)):
            raise OSError(errno.EINVAL, "The requested range is not satisfiable")
        return super().cat_file(path, start, end, **kwargs)

    def _open(self, path, mode="rb", autocommit=True, **kwargs):
        if mode == "wb" and "data" not in kwargs:
            return Upload(self, path, mode, block_size=1000, autocommit=autocommit)
        return super()._open(path, mode=mode, **kwargs)


fsspec.register_implementation("uploads", UploadsFileSystem, clobber=True)


class Broken(MemoryFileSystem):
    """Fails at everything, in words that repeat its options."""

    protocol = "broken"
    cachable = False

    def _fail(self, *arguments, **options):
        raise self.storage_options.get("error", OSError)(f"bad credentials {self.storage_options}")

    info = ls = cat_file = makedirs = rm_file = _fail


fsspec.register_implementation("broken", Broken, clobber=True)
