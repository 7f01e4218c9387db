"""Headers that others write, held against tarfile."""

import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasets_made import law
from shards.headers import Header, compression, likeness, read_header, read_pax
from tars_made import header, pax, summed

GOOD = header("a.txt", 3)


def patched(at: int, field: bytes, block: bytes = GOOD) -> bytes:
    return summed(block[:at] + field + block[at + len(field) :])


def by_tarfile(block: bytes) -> tuple[bytes, int] | None:
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return None
    return info.name.encode("utf-8", "surrogateescape"), info.size


@law
@given(st.integers(0, 511), st.integers(0, 255))
def test_a_flipped_byte_is_refused_or_read_as_tarfile_reads_it(at, value):
    block = GOOD[:at] + bytes([value]) + GOOD[at + 1 :]
    read = read_header(block)
    assert isinstance(read, str) if by_tarfile(block) is None else (read.name, read.size) == by_tarfile(block)


@pytest.mark.parametrize("size", [0, 7, 8**11 - 1, 8**11, 2**60])
def test_octal_and_base_256_sizes_are_read(size):
    assert read_header(header("a.txt", size)) == Header(b"a.txt", size, b"0")
    assert by_tarfile(header("a.txt", size)) == (b"a.txt", size)


@pytest.mark.parametrize("field", [b" 755 \0\0\0", bytes(8), b"        ", b"0000644 ", b"\xff" * 8])
def test_the_mode_may_be_what_tarfile_takes(field):
    assert by_tarfile(patched(100, field)) is not None
    assert read_header(patched(100, field)).size == 3


@pytest.mark.parametrize("at", [100, 108, 116, 124, 136, 329, 337])
@pytest.mark.parametrize("field", [b"0000009\0", b"x\0\0\0\0\0\0\0", b"\x81\0\0\0\0\0\0\1"])
def test_a_field_that_tarfile_stops_at_is_refused(at, field):
    block = patched(at, field)
    assert by_tarfile(block) is None
    assert "is no number" in read_header(block)


def test_a_negative_size_is_refused():
    assert "its size field" in read_header(patched(124, b"\xff" * 12))


def test_a_checksum_of_signed_bytes_is_read():
    block = bytearray(header(b"caf\xe9.txt"))
    block[148:156] = b"%06o\0 " % (int(block[148:154], 8) - 256)
    assert read_header(bytes(block)).name == b"caf\xe9.txt"


def test_a_checksum_with_blanks_is_read():
    block = bytearray(GOOD)
    block[148:156] = b"%6o\0 " % int(block[148:154], 8)
    assert read_header(bytes(block)).size == 3


def test_a_prefix_is_part_of_the_name():
    assert read_header(header("a.txt", prefix=b"some/folder")) == Header(b"some/folder/a.txt", 0, b"0")


def test_a_prefix_where_the_format_has_none_is_told():
    block = header("a.txt", prefix=b"12345", magic=b"ustar  \0")
    assert read_header(block) == Header(b"12345/a.txt", 0, b"0", prefixed=True)
    assert by_tarfile(block)[0] == b"12345/a.txt"


def test_bytes_behind_the_end_of_a_name_are_told():
    assert read_header(header(b"a.txt\0junk")) == Header(b"a.txt", 0, b"0", hidden=True)


@pytest.mark.parametrize(("name", "kind"), [("a.txt", b"0"), ("folder/", b"5")])
def test_v7_has_files_and_folders(name, kind):
    block = header(name, kind=b"\0", magic=bytes(8))
    assert read_header(block).kind == kind


def test_pax_records_that_matter_are_kept():
    data = pax({"path": "caf\xe9", "mtime": "1.5", "size": "12", "GNU.sparse.major": "1", "x": ""})[512:]
    assert read_pax(data) == ({b"path": b"caf\xc3\xa9", b"size": b"12", b"GNU.sparse.major": b"1"}, "")


@pytest.mark.parametrize(
    "data",
    [b"9 path=a", b"8 path=a\n", b"0 path=a\n", b"x path=a\n", b"12 path", b"9" * 5000 + b" path=a\n", b"99 path=a\n"],
)
def test_a_damaged_pax_record_is_told(data):
    fields, problem = read_pax(b"9 size=3\n" + data)
    assert fields == {b"size": b"3"}
    assert "its record at byte 9" in problem


@pytest.mark.parametrize("size", ["-1", "x", "1" * 30, "\N{SUPERSCRIPT TWO}"])
def test_a_pax_size_that_is_no_number_is_told(size):
    assert read_pax(pax({"size": size})[512:])[1].startswith("its size")


@law
@given(st.binary(max_size=200))
def test_any_bytes_are_records_or_told(data):
    fields, problem = read_pax(data)
    assert fields or problem or not data.strip(b"\0") or b"=" in data


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"\x1f\x8b\x08", "gzip"),
        (b"\x28\xb5\x2f\xfd\0", "zstd"),
        (b"BZh91AY", "bzip2"),
        (b"PK\x03\x04", "zip"),
        (b"", ""),
    ],
)
def test_a_compressed_file_is_named(head, kind):
    assert compression(head) == kind


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"\n<!DOCTYPE html>", "server"),
        (b"<?xml version", "server"),
        (b"version https://git-lfs.github.com", "Git LFS"),
    ],
)
def test_what_looks_like_something_else_is_told(head, words):
    assert words in likeness(head)
    assert likeness(b"x" + head) == ""
