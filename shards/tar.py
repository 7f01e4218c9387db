"""USTAR headers: bytes into member spans, and names and sizes into bytes. No file is opened here.

Reference: POSIX.1-1988 USTAR interchange format, as written by `tarfile.TarInfo.tobuf(tarfile.USTAR_FORMAT)`.

Writing: headers of one archive differ in name, size and checksum only, so a template that the standard library made
is patched in those three places (tests hold it equal to `tobuf` for every allowed name and size).

Reading: strict. A member is a regular file with a plain name; the archive ends with two zero blocks; anything cut,
flipped or left out is a `TarError` that names the byte. A checksum field has leading zeros, as POSIX asks: the blanks
of tars from before 1988 are refused, since one flipped bit makes a zero a blank and nothing else would tell.
"""

import re
import tarfile
from collections.abc import Iterator
from typing import NamedTuple

from shards.errors import NameRuleError, TarError

BLOCK = 512
RECORD = 20 * BLOCK
"""Archives are padded to whole records, as tar(1) does."""
MAX_NAME_BYTES = 100
MAX_MEMBER_BYTES = 8**11 - 1
"""The size field holds 11 octal digits."""
END = bytes(2 * BLOCK)

_NAME, _SIZE, _CHECKSUM = slice(0, 100), slice(124, 136), slice(148, 156)
_REGULAR = (b"0", b"\0")
_CHECKSUM_FORM = re.compile(rb"[0-7]{6}(\0 | \0)|[0-7]{7}[\0 ]")


class MemberSpan(NamedTuple):
    """Where a member lies: its name, the byte of its header, the byte of its content, and its size in bytes."""

    name: str
    header: int
    offset: int
    size: int


def padded(size: int) -> int:
    """Return `size` rounded up to whole blocks, in bytes."""
    return -(-size // BLOCK) * BLOCK


def padding(size: int) -> bytes:
    """Return the zero bytes that follow a member of `size` bytes."""
    return bytes(-size % BLOCK)


def ending(end: int) -> bytes:
    """Return the zero bytes that close an archive whose last member ends at byte `end` (a whole block)."""
    return bytes(-(end + 2 * BLOCK) % RECORD + 2 * BLOCK)


class HeaderTemplate:
    """Makes the 512-byte header of a regular file: mode 0644, owner 0/0 without names, mtime 0.

    `header(name, size)` equals `TarInfo.tobuf(USTAR_FORMAT)` of the same fields.
    """

    def __init__(self) -> None:
        info = tarfile.TarInfo("")
        info.mode = 0o644
        template = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
        template[_SIZE] = bytes(12)
        template[_CHECKSUM] = b" " * 8  # the checksum is taken with its own field as blanks
        self._sum = sum(template)
        self._owner, self._time = bytes(template[100:124]), bytes(template[135:148])
        self._rest = bytes(template[156:])

    def header(self, name: bytes, size: int) -> bytes:
        """Return the header of a member.

        Raises:
            NameRuleError: the name has more than 100 bytes or none.
            ValueError: the size needs more than 11 octal digits (8 GiB).
        """
        if not 0 < len(name) <= MAX_NAME_BYTES:
            raise NameRuleError(name.decode(errors="replace"), f"a USTAR name has 1 to {MAX_NAME_BYTES} bytes")
        if size > MAX_MEMBER_BYTES:
            raise ValueError(
                f"a member of {size} bytes does not fit USTAR (at most {MAX_MEMBER_BYTES} bytes); split it"
            )
        digits = b"%011o" % size
        checksum = b"%06o\0 " % (self._sum + sum(name) + sum(digits))
        return b"".join((name.ljust(MAX_NAME_BYTES, b"\0"), self._owner, digits, self._time, checksum, self._rest))


def members(data: bytes | memoryview, *, url: str) -> Iterator[MemberSpan]:
    """Yield the members of a whole archive, in order.

    Raises:
        TarError: a header or a member is cut, a header checksum or field is wrong, a member is no regular file, or
            the two zero blocks at the end are missing or followed by data.
    """
    view = memoryview(data)
    at = 0
    while True:
        block = bytes(view[at : at + BLOCK])
        if len(block) < BLOCK:
            raise TarError(url, at, "the archive ends without its two closing zero blocks")
        if not any(block):
            _check_end(view, at, url=url)
            return
        member = parse_header(block, at, url=url)
        end = member.offset + padded(member.size)
        if end > len(view):
            raise TarError(url, len(view), f"member {member.name} is cut (it should end at byte {end})")
        yield member
        at = end


def parse_header(block: bytes, at: int, *, url: str) -> MemberSpan:
    """Read the 512-byte header that lies at byte `at` of an archive.

    Raises:
        TarError: its checksum is wrong, a field is not octal, it has no name, or it is no regular file.
    """
    if not _CHECKSUM_FORM.fullmatch(block[_CHECKSUM]):
        raise TarError(url, at, f"header checksum field {block[_CHECKSUM]!r} is no octal number with leading zeros")
    expected = _octal(block[_CHECKSUM], at, "checksum", url=url)
    if sum(block) - sum(block[_CHECKSUM]) + 8 * 32 != expected:
        raise TarError(url, at, "header checksum is wrong")
    name = block[_NAME].split(b"\0", 1)[0]
    prefix = block[345:500].split(b"\0", 1)[0] if block[257:262] == b"ustar" else b""
    if block[156:157] not in _REGULAR:
        raise TarError(url, at, f"member {name!r} is no regular file (type {block[156:157]!r})")
    full = b"/".join(part for part in (prefix, name) if part)
    if not full:
        raise TarError(url, at, "the member has no name")
    try:
        text = full.decode()
    except UnicodeDecodeError as exc:
        raise TarError(url, at, f"member name {full!r} is not UTF-8") from exc
    return MemberSpan(text, at, at + BLOCK, _octal(block[_SIZE], at, "size", url=url))


def _octal(field: bytes, at: int, what: str, *, url: str) -> int:
    digits = field.strip(b" \0")
    if not digits or not all(48 <= digit < 56 for digit in digits):  # noqa: PLR2004 - "0" to "7"
        raise TarError(url, at, f"header {what} field {field!r} is not octal")
    return int(digits, 8)


def _check_end(view: memoryview, at: int, *, url: str) -> None:
    if len(view) < at + 2 * BLOCK:
        raise TarError(url, len(view), "the archive ends without its two closing zero blocks")
    rest = bytes(view[at:])
    if rest.strip(b"\0"):
        raise TarError(url, at + len(rest) - len(rest.lstrip(b"\0")), "data follows the end of the archive")
