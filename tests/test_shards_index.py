"""The index of a shard: what goes in comes out, and nothing broken is believed."""

import json
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from datasets_made import law
from shards.errors import IndexFormatError
from shards.index import MAGIC, VERSION, IndexBuilder, RowInfo, ShardIndex

U32, U64 = 2**32 - 1, 2**64 - 1
SHARD = {"shard": "a-000000.tar", "shard_bytes": 10240, "shard_xxh3_128": "0" * 32}

infos = st.builds(
    RowInfo,
    width=st.integers(0, U32),
    height=st.integers(0, U32),
    license=st.integers(0, U32),
    caption_bytes=st.lists(st.integers(0, U32), max_size=4).map(tuple),
)
part = st.tuples(st.integers(1, 2**40), st.integers(0, 2**40), st.integers(0, U64))
rows = st.lists(
    st.tuples(
        st.from_regex(r"[a-z0-9_\-]{1,12}", fullmatch=True),
        st.dictionaries(st.sampled_from(["jpg", "txt", "json", "png"]), part, min_size=1),
        infos,
    ),
    max_size=8,
)


def built(wanted: list, **shard: object) -> bytes:
    builder = IndexBuilder()
    for key, parts, info in wanted:
        builder.add(key, parts, info)
    return builder.to_bytes(**(SHARD | shard))


def opened(data: bytes) -> ShardIndex:
    return ShardIndex(data, url="d/a-000000.tar.index")


def sealed(body: bytes) -> bytes:
    """A body with the checksum that makes it believable."""
    return body + xxh3_64_intdigest(body).to_bytes(8, "little")


def changed(data: bytes, change: Callable[[dict], object], *, area: bytes = b"") -> bytes:
    """The same index with another header, more bytes behind its columns, and a right checksum."""
    end = 16 + int.from_bytes(data[12:16], "little")
    header = json.loads(data[16:end])
    change(header)
    text = json.dumps(header).encode()
    return sealed(data[:12] + len(text).to_bytes(4, "little") + text + data[end:-8] + area)


THREE = [
    ("000000000001", {"jpg": (512, 100, 11), "txt": (1536, 5, 12)}, RowInfo(640, 480, 3, (5, 7))),
    ("000000000002", {"png": (2560, 0, 21)}, RowInfo(1, 2, 0, ())),
    ("000000000003", {"txt": (3072, 9, 32), "jpg": (4096, 1, 31)}, RowInfo(3, 4, 1, (9, 1, 2))),
]
DATA = built(THREE)


@law
@given(rows)
def test_keys_parts_and_metadata_come_back(wanted):
    index = opened(built(wanted, shard_bytes=2**41))
    suffixes = {suffix for _, parts, _ in wanted for suffix in parts}
    found = []
    for row, key in enumerate(index.keys()):
        spans = {s: (*index.span(row, s), index.checksum(row, s)) for s in suffixes if index.span(row, s)[0]}
        numbers = [index.column(name)[row] for name in ("width", "height", "license")]
        found.append((key, spans, RowInfo(*numbers, tuple(index.caption_lengths(row)))))
    assert found == wanted


@law
@given(rows)
def test_every_caption_has_a_row_and_a_place(wanted):
    index = opened(built(wanted))
    expected = [(row, place) for row, (_, _, info) in enumerate(wanted) for place in range(len(info.caption_bytes))]
    assert [index.caption_row(number) for number in range(index.captions_total)] == expected
    assert [index.caption_count(row) for row in range(len(index))] == [len(info.caption_bytes) for *_, info in wanted]


def test_what_the_header_says_of_the_shard_comes_back():
    index = opened(built(THREE, shard="b-000007.tar", shard_bytes=20480, shard_xxh3_128="f" * 32))
    assert (index.shard, index.shard_bytes, index.shard_xxh3_128) == ("b-000007.tar", 20480, "f" * 32)


def test_suffixes_are_sorted():
    assert opened(DATA).suffixes == ("jpg", "png", "txt")


def test_a_row_without_a_part_has_offset_0():
    assert opened(DATA).span(1, "jpg") == (0, 0)


def test_a_suffix_that_no_row_has_is_a_key_error():
    with pytest.raises(KeyError):
        opened(DATA).span(0, "gif")


@pytest.mark.parametrize("number", [-1, 5])
def test_a_caption_that_does_not_exist_is_an_index_error(number):
    with pytest.raises(IndexError, match="has 5 captions"):
        opened(DATA).caption_row(number)


def test_an_index_without_rows_opens():
    index = opened(built([]))
    assert (len(index), list(index.keys()), index.captions_total) == (0, [], 0)


def test_the_order_in_which_a_sample_names_its_parts_changes_nothing():
    turned = [(key, dict(reversed(parts.items())), info) for key, parts, info in THREE]
    assert built(turned) == DATA


def test_columns_start_at_multiples_of_8_bytes():
    end = 16 + int.from_bytes(DATA[12:16], "little")
    offsets = [end + column["offset"] for column in json.loads(DATA[16:end])["columns"]]
    assert [offset % 8 for offset in offsets] == [0] * len(offsets)


def test_opening_makes_no_object_per_row():
    count = 50_000
    data = built([(f"{row:012d}", {"jpg": (512, 1, row)}, RowInfo(caption_bytes=(1,))) for row in range(count)])
    tracemalloc.start()
    try:
        index = opened(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(index) == count
    assert peak < count


@pytest.mark.parametrize("number", [-1, 2**32])
@pytest.mark.parametrize("field", ["width", "height", "license"])
def test_a_number_that_no_column_holds_is_refused(field, number):
    with pytest.raises(ValueError, match=f"holds {number}; the index keeps numbers from 0 to {U32}"):
        RowInfo(**{field: number})


def test_a_caption_length_that_no_column_holds_is_refused():
    with pytest.raises(ValueError, match="the index keeps numbers"):
        RowInfo(caption_bytes=(3, -1))


def test_each_flipped_bit_is_refused():
    for bit in range(8 * len(DATA)):
        flipped = bytearray(DATA)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(IndexFormatError):
            opened(bytes(flipped))


def test_a_cut_at_each_byte_is_refused():
    for length in range(len(DATA)):
        with pytest.raises(IndexFormatError):
            opened(DATA[:length])


def test_bytes_behind_the_end_are_refused():
    with pytest.raises(IndexFormatError, match="checksum"):
        opened(DATA + bytes(8))


def test_an_error_names_the_file():
    with pytest.raises(IndexFormatError, match=r"index d/a-000000\.tar\.index: .*it is no index file"):
        opened(b"<!DOCTYPE html>" + bytes(100))


def test_a_newer_version_is_refused_with_both_numbers():
    with pytest.raises(IndexFormatError, match=f"version 7 is newer than {VERSION}.*update"):
        opened(sealed(MAGIC + (7).to_bytes(4, "little") + DATA[12:-8]))


def test_a_newer_version_is_told_whatever_else_it_holds():
    with pytest.raises(IndexFormatError, match="newer"):
        opened(MAGIC + (7).to_bytes(4, "little") + b"a layout of the future")


def test_version_0_is_refused():
    with pytest.raises(IndexFormatError, match="version 0"):
        opened(sealed(MAGIC + bytes(4) + DATA[12:-8]))


def test_a_header_longer_than_the_file_is_refused():
    with pytest.raises(IndexFormatError, match="header up to byte"):
        opened(sealed(DATA[:12] + b"\xff\xff\xff\xff" + DATA[16:-8]))


@pytest.mark.parametrize("text", [b"", b"{", b"[" * 100_000, b'{"shard": "\xff"}', b"{}", b"null", b"[1]"])
def test_a_header_beyond_reading_is_refused(text):
    with pytest.raises(IndexFormatError, match="header cannot be read"):
        opened(sealed(DATA[:12] + len(text).to_bytes(4, "little") + text))


@pytest.mark.parametrize("kind", ["u32", "u64", "f16"])
def test_a_column_this_reader_does_not_know_is_passed_over(kind):
    def add(header: dict) -> None:
        header["columns"].insert(0, {"name": "clip.score", "type": kind, "offset": 0, "count": 1, "unit": "cosine"})

    index = opened(changed(DATA, add))
    assert (list(index.keys()), index.span(2, "txt")) == ([key for key, *_ in THREE], (3072, 9))


def test_a_header_field_this_reader_does_not_know_is_passed_over():
    index = opened(changed(DATA, lambda header: header.update(made_by={"name": "another writer", "n": [1, None]})))
    assert list(index.keys()) == [key for key, *_ in THREE]


def test_a_deeply_nested_unknown_header_field_is_refused():
    text = b'{"deep": ' + b"[" * 10**5 + b"]" * 10**5 + b"}"
    with pytest.raises(IndexFormatError, match="header cannot be read"):
        opened(sealed(DATA[:12] + len(text).to_bytes(4, "little") + text))


def test_columns_may_lie_in_any_order_and_leave_gaps():
    def move(header: dict) -> None:
        width = next(column for column in header["columns"] if column["name"] == "width")
        end = max(column["offset"] + 8 * column["count"] for column in header["columns"])
        width["offset"] = end + 40
        header["columns"].reverse()

    end = 16 + int.from_bytes(DATA[12:16], "little")
    area = bytes(200)
    index = opened(changed(DATA, move, area=area))
    assert len(DATA) > end
    assert list(index.column("width")) == [0, 0, 0]


@pytest.mark.parametrize("name", ["key.end", "key.bytes", "width", "caption.end", "caption.bytes", "part.png.size"])
def test_a_column_that_lacks_is_named(name):
    def drop(header: dict) -> None:
        header["columns"] = [column for column in header["columns"] if column["name"] != name]

    with pytest.raises(IndexFormatError, match=f"lacks the columns {name}"):
        opened(changed(DATA, drop))


def test_a_known_column_of_an_unknown_type_counts_as_lacking():
    def retype(header: dict) -> None:
        header["columns"][0]["type"] = "u128"

    with pytest.raises(IndexFormatError, match=r"lacks the columns key\.end"):
        opened(changed(DATA, retype))


@pytest.mark.parametrize("field", ["offset", "count"])
@pytest.mark.parametrize("number", [-1, 10**6, 2**64, "1", 1.5, None])
def test_a_column_that_lies_nowhere_is_refused(field, number):
    def move(header: dict) -> None:
        header["columns"][0][field] = number

    with pytest.raises(IndexFormatError):
        opened(changed(DATA, move))


@pytest.mark.parametrize("number", [-1, 2, 4, 2**64])
def test_a_count_of_rows_that_the_columns_do_not_have_is_refused(number):
    with pytest.raises(IndexFormatError):
        opened(changed(DATA, lambda header: header.update(rows=number)))


@pytest.mark.parametrize("name", ["key.bytes", "caption.bytes"])
def test_ends_that_do_not_match_their_values_are_refused(name):
    def shorten(header: dict) -> None:
        next(column for column in header["columns"] if column["name"] == name)["count"] -= 1

    with pytest.raises(IndexFormatError, match=f"column {name} has"):
        opened(changed(DATA, shorten))


def test_a_part_that_ends_behind_its_shard_is_refused_when_asked_for():
    index = opened(built([("a", {"jpg": (2**63, 2**63, 0)}, RowInfo())]))
    with pytest.raises(IndexFormatError, match=r"part a\.jpg ends at byte \d+ of 10240"):
        index.span(0, "jpg")
