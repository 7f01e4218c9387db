"""Tar headers of all kinds, read as leniently as readers agree: bytes into fields, or words for what is wrong. Pure.

shards/tar.py is the strict reader of what we write; this one understands what others write: POSIX.1-1988 USTAR and
POSIX.1-2001 pax, V7, GNU tar ("Basic Tar Format" in its manual: base-256 numbers, long names). A field that Python's
tarfile would stop at is refused here too.
"""

import re
from typing import NamedTuple

BLOCK = 512
MAGIC, MAGIC_AT = b"ustar", 257
"""What USTAR and GNU headers have at a byte of theirs, and old ones not."""
_POSIX = b"ustar\0"
_CHECKSUM = slice(148, 156)
_NUMBERS = {
    "mode": slice(100, 108),
    "uid": slice(108, 116),
    "gid": slice(116, 124),
    "size": slice(124, 136),
    "mtime": slice(136, 148),
    "devmajor": slice(329, 337),
    "devminor": slice(337, 345),
}
_OCTAL = re.compile(rb"[0-7]*")
_RECORD = re.compile(rb"([0-9]{1,20}) ([^=\n]+)=")
_NO_PREFIX = (b"L", b"K", b"S")
KEPT = frozenset({b"path", b"size", b"GNU.sparse.name"})
"""The pax fields that change which bytes are read under which name; and all that begin with GNU.sparse."""

_STARTS = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"PK\x03\x04", "zip"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
)


class Header(NamedTuple):
    """What a header says.

    `name` ends at its first zero byte, as every reader takes it; `hidden` tells that bytes stand behind that,
    `prefixed` that a prefix was taken from a header whose format has none.
    """

    name: bytes
    size: int
    kind: bytes
    hidden: bool = False
    prefixed: bool = False


def read_header(block: bytes) -> Header | str:
    """Read a block of 512 bytes; the answer is text where it is no sound header."""
    problem = _checksum_problem(block)
    if problem:
        return problem
    numbers: dict[str, int] = {}
    for field, place in _NUMBERS.items():
        number = _number(block[place])
        if number is None or (number < 0 and field == "size"):
            return f"its {field} field {block[place]!r} is no number"
        numbers[field] = number
    kind = block[156:157]
    name, hidden = _text(block[:100])
    prefix = b"" if kind in _NO_PREFIX else _text(block[345:500])[0]
    if kind == b"\0":
        kind = b"5" if name.endswith(b"/") else b"0"  # as V7 has no folders
    full = b"/".join((prefix, name)) if prefix else name
    return Header(full, numbers["size"], kind, hidden, bool(prefix) and block[MAGIC_AT : MAGIC_AT + 6] != _POSIX)


def has_magic(block: bytes) -> bool:
    """Tell whether a block looks like a USTAR or GNU header, sound or not."""
    return block.startswith(MAGIC, MAGIC_AT)


def read_pax(data: bytes) -> tuple[dict[bytes, bytes], str]:
    """Read the records of a pax header: those fields that matter here, and words for what is wrong ("" if nothing)."""
    fields: dict[bytes, bytes] = {}
    at = 0
    while at < len(data) and (data[at] or data[at:].strip(b"\0")):
        match = _RECORD.match(data, at)
        end = at + int(match[1]) if match else at
        if match is None or not match.end() < end <= len(data) or data[end - 1 : end] != b"\n":
            return fields, f"its record at byte {at}, {data[at : at + 40]!r}, is damaged"
        if match[2] in KEPT or match[2].startswith(b"GNU.sparse."):
            fields[match[2]] = data[match.end() : end - 1]
        at = end
    if not fields.get(b"size", b"0").isdigit() or len(fields.get(b"size", b"")) > 20:  # noqa: PLR2004 - as of a record
        return {**fields, b"size": b""}, f"its size {fields[b'size'][:40]!r} is no number"
    return fields, ""


def compression(head: bytes) -> str:
    """Return the name of the compressed format that a file begins as, or ""."""
    return next((name for start, name in _STARTS if head.startswith(start)), "")


def likeness(head: bytes) -> str:
    """Return what a file looks like that is no tar, as words, or ""."""
    text = head.lstrip().lower()
    if text.startswith((b"<html", b"<!doctype", b"<?xml")):
        return "it looks like the error page of a server"
    if text.startswith(b"version https://git-lfs"):
        return "it is a pointer of Git LFS: fetch the file itself with `git lfs pull`"
    return ""


def _checksum_problem(block: bytes) -> str:
    field = block[_CHECKSUM]
    said = _number(field)
    if said is None:
        return f"its checksum {field!r} is no number"
    found = sum(block) - sum(field) + 8 * 32  # with its own field as blanks
    if said == found or said == found - 256 * sum(byte > 127 for byte in block[:148] + block[156:]):  # noqa: PLR2004
        return ""  # old programs took bytes for signed
    return f"its checksum is wrong ({field!r} is not octal {found:06o})"


def _number(field: bytes) -> int | None:
    if field[0] == 0x80:  # noqa: PLR2004 - the mark of a base-256 number
        return int.from_bytes(field[1:], "big")
    if field[0] == 0xFF:  # noqa: PLR2004 - of a negative one
        return int.from_bytes(field[1:], "big") - (1 << 8 * (len(field) - 1))
    digits = field.split(b"\0", 1)[0].strip()
    return int(digits.decode() or "0", 8) if _OCTAL.fullmatch(digits) else None


def _text(field: bytes) -> tuple[bytes, bool]:
    name, _, rest = field.partition(b"\0")
    return name, bool(rest.strip(b"\0"))
