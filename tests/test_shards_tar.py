"""USTAR headers and archives, held against the standard library's tarfile."""

import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasets_made import law
from shards.errors import NameRuleError, TarError
from shards.tar import (
    BLOCK,
    END,
    MAX_MEMBER_BYTES,
    RECORD,
    HeaderTemplate,
    ending,
    members,
    padded,
    padding,
    parse_header,
)

names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=100).filter(
    lambda name: len(name.encode()) <= 100
)
contents = st.lists(st.tuples(st.from_regex(r"[a-z0-9]{1,12}\.[a-z]{1,4}", fullmatch=True), st.binary(max_size=1500)))


def tobuf(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info.tobuf(tarfile.USTAR_FORMAT)


def archive(files: list[tuple[str, bytes]]) -> bytes:
    """An archive made of this module's parts."""
    template = HeaderTemplate()
    body = b"".join(template.header(name.encode(), len(data)) + data + padding(len(data)) for name, data in files)
    return body + ending(len(body))


def by_tarfile(files: list[tuple[str, bytes]]) -> bytes:
    """The same archive made by the standard library."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


SMALL = archive([("000000000001.jpg", b"x" * 700), ("000000000001.txt", b"a cat")])
HEADERS = [(member.header, member.name) for member in members(SMALL, url="small")]
ZEROS_FROM = SMALL.rindex(b"a cat") + 5 + len(padding(5))


@law
@given(names, st.integers(0, MAX_MEMBER_BYTES))
def test_a_header_equals_tobuf(name, size):
    assert HeaderTemplate().header(name.encode(), size) == tobuf(name, size)


@pytest.mark.parametrize("size", [0, 1, 7, 8, BLOCK, 2**33 - 1])
@pytest.mark.parametrize("name", ["a", "k" * 90 + ".jpg", "n" * 100])
def test_a_header_equals_tobuf_at_its_bounds(name, size):
    assert HeaderTemplate().header(name.encode(), size) == tobuf(name, size)


def test_a_header_has_the_bytes_of_the_format_whatever_the_version_of_python():
    fields = [b"a.jpg".ljust(100, b"\0"), b"0000644\0", b"0000000\0" * 2, b"00000000007\0", b"00000000000\0"]
    fields += [b"006664\0 ", b"0", bytes(100), b"ustar\x0000", bytes(64), bytes(16), bytes(167)]
    assert HeaderTemplate().header(b"a.jpg", 7) == b"".join(fields)


def test_one_template_makes_many_headers():
    template = HeaderTemplate()
    template.header(b"long-name-before.jpg", MAX_MEMBER_BYTES)
    assert template.header(b"b", 1) == tobuf("b", 1)


@pytest.mark.parametrize("name", [b"", b"n" * 101])
def test_a_name_of_no_or_too_many_bytes_is_refused(name):
    with pytest.raises(NameRuleError, match="1 to 100 bytes"):
        HeaderTemplate().header(name, 0)


def test_a_member_of_8_gib_is_refused():
    with pytest.raises(ValueError, match="does not fit USTAR"):
        HeaderTemplate().header(b"a", MAX_MEMBER_BYTES + 1)


@law
@given(contents)
def test_an_archive_equals_the_one_of_tarfile(files):
    assert archive(files) == by_tarfile(files)


@law
@given(contents)
def test_members_are_those_that_were_written(files):
    data = archive(files)
    found = [(member.name, data[member.offset : member.offset + member.size]) for member in members(data, url="a")]
    assert found == files


@law
@given(contents)
def test_members_lie_where_tarfile_finds_them(files):
    with tarfile.open(fileobj=io.BytesIO(archive(files))) as tar:
        expected = [(info.name, info.offset, info.offset_data, info.size) for info in tar]
    assert [tuple(member) for member in members(archive(files), url="a")] == expected


@law
@given(st.integers(0, 10**12))
def test_padding_fills_whole_blocks(size):
    assert size + len(padding(size)) == padded(size)
    assert padded(size) % BLOCK == 0


@law
@given(st.integers(0, 10**9))
def test_an_ending_holds_two_zero_blocks_and_fills_a_record(blocks):
    end = blocks * BLOCK
    last = ending(end)
    assert not any(last)
    assert len(END) <= len(last) < len(END) + RECORD
    assert (end + len(last)) % 10240 == 0


def test_an_archive_cut_at_any_byte_before_its_two_zero_blocks_is_refused():
    for length in range(ZEROS_FROM + len(END)):
        with pytest.raises(TarError) as caught:
            list(members(SMALL[:length], url="d/small.tar"))
        assert caught.value.url == "d/small.tar"
        assert caught.value.offset <= length


def test_only_a_cut_in_the_last_padding_loses_nothing():
    whole = list(members(SMALL, url="small"))
    for length in range(ZEROS_FROM + len(END), len(SMALL)):
        assert list(members(SMALL[:length], url="small")) == whole


@pytest.mark.parametrize(("start", "name"), HEADERS)
def test_each_flipped_bit_of_a_header_is_refused(start, name):
    for bit in range(8 * BLOCK):
        flipped = bytearray(SMALL)
        flipped[start + bit // 8] ^= 1 << bit % 8
        with pytest.raises(TarError) as caught:
            list(members(bytes(flipped), url="small"))
        assert caught.value.offset == start


def test_each_flipped_bit_behind_the_members_is_refused():
    for bit in range(8 * ZEROS_FROM, 8 * len(SMALL), 13):
        flipped = bytearray(SMALL)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(TarError):
            list(members(bytes(flipped), url="small"))


def patched(header: bytes, at: int, field: bytes) -> bytes:
    """A header with another field and a checksum that is right again."""
    block = bytearray(header)
    block[at : at + len(field)] = field
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


GOOD = tobuf("a.txt", 3)


@pytest.mark.parametrize("kind", [b"1", b"2", b"5", b"L", b"x", b"g"])
def test_a_member_that_is_no_regular_file_is_refused(kind):
    with pytest.raises(TarError, match="no regular file"):
        parse_header(patched(GOOD, 156, kind), 0, url="a")


@pytest.mark.parametrize("size", [b"\x80" + bytes(11), b" " * 12, b"00000000009\0", b"-0000000001\0"])
def test_a_size_that_is_not_octal_is_refused(size):
    with pytest.raises(TarError, match="not octal"):
        parse_header(patched(GOOD, 124, size), 0, url="a")


def test_a_member_without_a_name_is_refused():
    with pytest.raises(TarError, match="no name"):
        parse_header(patched(GOOD, 0, bytes(5)), 0, url="a")


def test_a_name_that_is_not_utf8_is_refused():
    with pytest.raises(TarError, match="UTF-8"):
        parse_header(patched(GOOD, 0, b"\xff"), 0, url="a")


def test_a_long_name_is_put_together_from_its_prefix():
    name = "/".join(["folder"] * 20) + "/a.txt"
    info = tarfile.TarInfo(name)
    assert parse_header(info.tobuf(tarfile.USTAR_FORMAT), 0, url="a").name == name


@pytest.mark.parametrize("form", [b"%06o\0 ", b"%06o \0", b"%07o\0", b"%07o "])
def test_a_checksum_with_leading_zeros_is_read(form):
    block = bytearray(GOOD)
    block[148:156] = form % int(GOOD[148:154], 8)
    assert parse_header(bytes(block), 0, url="a").size == 3


def test_a_checksum_with_leading_blanks_is_refused():
    block = bytearray(GOOD)
    block[148:156] = b"%6o\0 " % int(GOOD[148:154], 8)
    with pytest.raises(TarError, match="checksum"):
        parse_header(bytes(block), 0, url="a")


def test_a_second_archive_behind_the_first_is_refused():
    with pytest.raises(TarError, match="data follows") as caught:
        list(members(SMALL + SMALL, url="a"))
    assert caught.value.offset == len(SMALL)


def test_an_empty_file_is_no_archive():
    with pytest.raises(TarError, match="without its two closing zero blocks"):
        list(members(b"", url="a"))


def test_a_member_that_claims_more_than_there_is_is_cut():
    with pytest.raises(TarError, match="is cut"):
        list(members(tobuf("a.txt", MAX_MEMBER_BYTES) + SMALL, url="a"))


@pytest.mark.shared
def test_tars_by_others_give_what_tarfile_gives_or_a_tar_error(shared_data: Path):
    read = 0
    for path in sorted((shared_data / "wds").rglob("*.tar")):
        data = path.read_bytes()
        try:
            found = [(member.name, member.offset, member.size) for member in members(data, url=str(path))]
        except TarError:
            continue
        read += 1
        with tarfile.open(path) as tar:
            assert found == [(info.name, info.offset_data, info.size) for info in tar]
    assert read >= 15
