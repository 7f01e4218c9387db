"""Tars that tests make by hand: whole members, headers with any field, and a store that holds one file in memory."""

import io
import tarfile

from shards.errors import StoreError

END = bytes(1024)
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


class OneFile:
    """A store of one file in memory that notes what was read of it."""

    url = "memory"
    gap_bytes = 8 * 2**10

    def __init__(self, data: bytes) -> None:
        self.data, self.reads = data, []

    def url_of(self, name):
        return f"{self.url}/{name}"

    def size(self, name):
        return len(self.data)

    def read(self, name, *, start=0, end=None):
        assert 0 <= start < end <= len(self.data), (start, end)
        self.reads.append((start, end))
        return self.data[start:end]


class Hollow(OneFile):
    """A file of any size, zero bytes behind its data; it is never read whole."""

    def __init__(self, data: bytes, size: int) -> None:
        super().__init__(data)
        self._size = size

    def size(self, name):
        return self._size

    def read(self, name, *, start=0, end=None):
        if not 0 <= start < end <= self._size:
            raise StoreError(self.url, "read", f"[{start}, {end}) is not in the file")
        self.reads.append((start, end))
        return self.data[start:end].ljust(end - start, b"\0")


def header(name: str | bytes, size: int = 0, kind: bytes = b"0", *, prefix: bytes = b"", magic: bytes = b"") -> bytes:
    """A header with a right checksum."""
    info = tarfile.TarInfo("placeholder")
    info.type, info.mode = kind, 0o644
    block = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    raw = name if isinstance(name, bytes) else name.encode()
    block[:100] = raw.ljust(100, b"\0")
    block[124:136] = b"%011o\0" % size if size < 8**11 else b"\x80" + size.to_bytes(11, "big")
    block[156:157] = kind
    block[345 : 345 + len(prefix)] = prefix
    if magic:
        block[257:265] = magic
    return summed(block)


def summed(block: bytes | bytearray) -> bytes:
    """The header with its checksum made right."""
    block = bytearray(block)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def member(name: str | bytes, data: bytes = b"", kind: bytes = b"0") -> bytes:
    """A whole member."""
    return header(name, len(data), kind) + data + bytes(-len(data) % 512)


def pax(records: dict[str, str | bytes], kind: bytes = b"x") -> bytes:
    """A pax header."""
    data = b""
    for key, value in records.items():
        rest = b" " + key.encode() + b"=" + (value if isinstance(value, bytes) else value.encode()) + b"\n"
        length = len(rest)
        while length != len(str(length)) + len(rest):
            length = len(str(length)) + len(rest)
        data += str(length).encode() + rest
    return member("pax", data, kind)


def sample(key: str, *, txt: bytes = b"a cat") -> list[bytes]:
    """A sample of two members."""
    return [member(f"{key}.jpg", b"j" * 700), member(f"{key}.txt", txt)]


def by_tarfile(files: list[tuple[str, bytes]], kind: str) -> bytes:
    """A tar made by the standard library."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=FORMATS[kind]) as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()
