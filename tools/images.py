"""Where the images are: a folder, or a zip that is read in place.

Invariants: an image is found only under a name that a listing of the folder or zip holds, so no file name of a
captions file, whatever is in it, leads out of there; a source opens nothing before its first use; a place that one
source found can be read by any other of the same path, in any process; what `read` returns is valid until the next
`read` of that source.
"""

import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from pack_errors import ImagesError, UnreadableImageError

MAX_IMAGE_BYTES = 2**30
"""The most bytes that one encoded image may have; a longer file is no image but a mistake."""
_LOCAL_HEADER = 30
_ENCRYPTED = 1


class Place(NamedTuple):
    """Where one image lies: a path, or a member of a zip with its header's offset, sizes in bytes and CRC-32."""

    name: str
    offset: int = 0
    packed: int = 0
    size: int = 0
    crc: int = 0
    method: int = zipfile.ZIP_STORED


class ImageSource(Protocol):
    """Images by their file names."""

    path: str

    def find(self, file_name: str) -> Place | None:
        """Return where the image of this name lies; None if there is none, or more than one."""

    def why_missing(self, file_name: str) -> str:
        """Say why `find` found nothing."""

    def read(self, place: Place) -> memoryview:
        """Return the image's encoded bytes, valid until the next `read`.

        Raises:
            UnreadableImageError: they cannot be read, are cut, or are more than MAX_IMAGE_BYTES.
        """


def open_source(path: str) -> ImageSource:
    """Return the source of a folder or zip.

    Raises:
        ImagesError: it is neither.
    """
    place = Path(path)
    if place.is_dir():
        return FolderSource(path)
    if place.is_file() and zipfile.is_zipfile(path):
        return ZipSource(path)
    what = "it is neither a folder nor a zip" if place.exists() else "it does not exist"
    raise ImagesError(path, f"{what}; --images names a folder of images or a zip of them")


class Listing:
    """Names with slashes -> places: by the whole name, or by the last part of it where only one ends so."""

    def __init__(self, places: Iterator[tuple[str, Place]]) -> None:
        self._whole = dict(places)
        self._last: dict[str, str | None] = {}
        for name in self._whole:
            last = name.rpartition("/")[2]
            self._last[last] = None if last in self._last else name

    def find(self, file_name: str) -> Place | None:
        """Return the place of a name. A name with a slash must be held as it is."""
        return self._whole.get(file_name) or self._whole.get(self._last.get(file_name) or "")

    def why_missing(self, file_name: str) -> str:
        """Say why `find` found nothing."""
        if file_name.startswith("/"):
            return "its name is an absolute path; only files below --images are read"
        if ".." in file_name.split("/"):
            return "its name leads out of --images; only files below it are read"
        if file_name in self._last:
            return "several folders hold a file of this name; the captions file must name the folder too"
        return f"no such file among the {len(self._whole)} files there"


class FolderSource:
    """The files of a folder and of the folders in it; symbolic links are followed."""

    def __init__(self, path: str) -> None:
        self.path = str(Path(path).absolute())
        self._listing: Listing | None = None
        self._view = memoryview(b"")

    def find(self, file_name: str) -> Place | None:
        """Return where the file of this name lies."""
        return self._list().find(file_name)

    def why_missing(self, file_name: str) -> str:
        """Say why `find` found nothing."""
        return self._list().why_missing(file_name)

    def read(self, place: Place) -> memoryview:
        """Return the file's bytes, valid until the next `read`."""
        try:
            fd = os.open(place.name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as exc:
            raise UnreadableImageError(place.name, f"it cannot be opened ({exc.strerror})") from exc
        try:
            size = os.fstat(fd).st_size
            if size >= len(self._view):  # room for one byte more than the file, to see that it ends there
                self._grow(size + 1, place.name)
            done = os.readv(fd, [self._view])
            while done < size and (count := os.readv(fd, [self._view[done:]])):
                done += count
        except OSError as exc:
            raise UnreadableImageError(place.name, f"it cannot be read ({exc.strerror})") from exc
        finally:
            os.close(fd)
        if done != size:
            raise UnreadableImageError(place.name, f"it has {size} bytes and {done} could be read; it is changing")
        return self._view[:size]

    def _grow(self, size: int, name: str) -> None:
        if size > MAX_IMAGE_BYTES + 1:
            raise UnreadableImageError(name, f"it has {size - 1} bytes, more than {MAX_IMAGE_BYTES}")
        self._view = memoryview(bytearray(max(size, 2**20)))

    def _list(self) -> Listing:
        if self._listing is None:
            try:
                self._listing = Listing(_walk(self.path))
            except OSError as exc:
                raise ImagesError(self.path, f"{exc.filename} cannot be listed ({exc.strerror})") from exc
        return self._listing


def _walk(top: str) -> Iterator[tuple[str, Place]]:
    """Yield every regular file below `top`; a link to a folder that it lies in is not entered again."""
    waiting: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", ())]
    while waiting:
        folder, above = waiting.pop()
        status = Path(top, folder).stat()
        inode = (status.st_dev, status.st_ino)
        if inode in above:
            continue
        with os.scandir(f"{top}/{folder}") as entries:
            for entry in entries:
                kind = _kind(entry)
                if kind == "file":
                    yield folder + entry.name, Place(entry.path)
                elif kind == "folder":
                    waiting.append((f"{folder}{entry.name}/", (*above, inode)))


def _kind(entry: os.DirEntry[str]) -> Literal["file", "folder", "neither"]:
    try:
        return "file" if entry.is_file() else "folder" if entry.is_dir() else "neither"
    except OSError:  # a link that leads in a circle
        return "neither"


class ZipSource:
    """The members of a zip, stored or deflated, read with positioned reads; every process has its own handle."""

    def __init__(self, path: str) -> None:
        self.path = str(Path(path).absolute())
        self._listing: Listing | None = None
        self._fd = -1

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def find(self, file_name: str) -> Place | None:
        """Return where the member of this name lies."""
        return self._list().find(file_name)

    def why_missing(self, file_name: str) -> str:
        """Say why `find` found nothing."""
        return self._list().why_missing(file_name)

    def read(self, place: Place) -> memoryview:
        """Return the member's bytes, checked against its CRC-32."""
        if max(place.size, place.packed) > MAX_IMAGE_BYTES:
            raise UnreadableImageError(place.name, f"it has {place.size} bytes, more than {MAX_IMAGE_BYTES}")
        try:
            packed = self._packed(place)
        except OSError as exc:
            raise UnreadableImageError(place.name, f"it cannot be read ({exc.strerror})") from exc
        data = _unpack(packed, place)
        if len(data) != place.size or zlib.crc32(data) != place.crc:
            problem = f"its {len(data)} bytes do not match the length and checksum that the zip holds for it"
            raise UnreadableImageError(place.name, problem)
        return memoryview(data)

    def _packed(self, place: Place) -> bytes:
        """Return a member's bytes as they lie in the zip (APPNOTE.TXT 4.3.7: local file header)."""
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        header = os.pread(self._fd, _LOCAL_HEADER, place.offset)
        if not header.startswith(b"PK\x03\x04") or len(header) < _LOCAL_HEADER:
            problem = f"the zip has no member at byte {place.offset}, where its directory says one is"
            raise UnreadableImageError(place.name, problem)
        name_bytes, extra_bytes = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
        return os.pread(self._fd, place.packed, place.offset + _LOCAL_HEADER + name_bytes + extra_bytes)

    def _list(self) -> Listing:
        if self._listing is None:
            try:
                self._listing = Listing(_members(self.path))
            except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as exc:
                raise ImagesError(self.path, f"the zip's directory cannot be read ({exc})") from exc
        return self._listing


def _members(path: str) -> Iterator[tuple[str, Place]]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if info.is_dir():
                continue
            # -1 is no method of any zip: an encrypted member is refused where it is read, by name
            method = -1 if info.flag_bits & _ENCRYPTED else info.compress_type
            sizes = (info.header_offset, info.compress_size, info.file_size, info.CRC)
            yield info.filename, Place(info.filename, *sizes, method)


def _unpack(packed: bytes, place: Place) -> bytes:
    if place.method == zipfile.ZIP_STORED:
        return packed
    if place.method != zipfile.ZIP_DEFLATED:
        what = "it is encrypted" if place.method < 0 else f"it is compressed by method {place.method}"
        raise UnreadableImageError(place.name, f"{what}; only stored and deflated members are read")
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, place.size + 1)
    except zlib.error as exc:
        raise UnreadableImageError(place.name, f"it cannot be decompressed ({exc})") from exc
