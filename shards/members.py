"""The members of a tar as a scan finds them, and which of them readers skip or misread."""

from collections.abc import Iterator
from typing import NamedTuple

from shards.headers import Header

NO_DATA = frozenset({b"1", b"2", b"3", b"4", b"5", b"6"})
"""Types of members that have no data, whatever size they give."""
_REGULAR = frozenset({b"0", b"7", b"S"})
_KINDS = {
    b"1": ("link", "a hard link has no data of its own and webdataset skips it; store the file itself"),
    b"2": ("link", "a symbolic link has no data of its own and webdataset skips it; store the file itself"),
    b"3": ("device", "a device is no data and readers skip it; leave it out"),
    b"4": ("device", "a device is no data and readers skip it; leave it out"),
    b"5": ("directory", "a directory is no data and readers skip it; leave it out"),
    b"6": ("device", "a FIFO is no data and readers skip it; leave it out"),
    b"M": (
        "multi-volume",
        "it is the rest of a file that began in another archive; webdataset skips it; join the volumes",
    ),
}
_SPARSE = "some readers give its packed pieces, others a file with holes of any size; store the file without holes"


class Member(NamedTuple):
    """One member: its name as it is stored, where it lies, and its type.

    `start` is the byte where it begins with its extension headers, `header` that of its own header, `offset` that of
    its `size` bytes of data. `kind` is the type flag ("0" for V7's regular files too). `reached` tells whether readers
    come to it: tarfile and webdataset stop at some faults, at most of them without a word.
    """

    raw: bytes
    start: int
    header: int
    offset: int
    size: int
    kind: str
    reached: bool

    @property
    def name(self) -> str | None:
        """The name as text; None where it is not UTF-8."""
        try:
            return self.raw.decode()
        except UnicodeDecodeError:
            return None

    @property
    def regular(self) -> bool:
        """Whether webdataset takes it for a file."""
        return self.kind.encode() in _REGULAR


def misread(header: Header, name: bytes, *, sparse: bool) -> Iterator[tuple[str, str]]:
    """Yield (code, words) of what readers skip or misread in a member of this header, under the name that it has."""
    if sparse:
        yield "sparse", _SPARSE
    elif header.kind in _KINDS:
        yield _KINDS[header.kind]
    elif header.kind not in _REGULAR:
        yield "unknown-type", f"webdataset skips the unknown type {header.kind!r} without a word; store a regular file"
    if name == header.name and header.prefixed:
        yield (
            "ambiguous-name",
            "its header is not of the kind that has a name prefix, and readers differ; pack it again",
        )
    if name == header.name and header.hidden:
        yield "name-nul", "readers stop at the zero byte in its name; rename it"
