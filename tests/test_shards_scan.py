"""The walk over a tar: the members that tarfile gives, and each fault by its byte, wherever it is."""

import io
import random
import tarfile
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datasets_made import law
from shards.blocks import AHEAD
from shards.findings import Finding
from shards.headers import BLOCK
from shards.members import Member
from shards.scan import scan
from tars_made import END, FORMATS, Hollow, OneFile, by_tarfile, header, member, pax, sample, summed

SIZES = st.one_of(st.integers(0, 1500), st.sampled_from([0, 511, 512, 513, 20000]))
PIECES = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=40)
NAMES = st.lists(PIECES, min_size=1, max_size=5).map("/".join)
FILES = st.lists(st.tuples(NAMES, SIZES), max_size=6)
PARTS = sample("000001") + sample("000002") + sample("000003")
PLACES = pytest.mark.parametrize("place", [0, 3, 5], ids=["first", "middle", "last"])
ENDS = [sum(map(len, PARTS[:number])) for number in range(7)]
"""Where each of the members begins, and where the last one ends."""


def walk(data: bytes) -> tuple[list[Member], list[Finding]]:
    found = list(scan(OneFile(data), "a.tar"))
    return [m for m in found if isinstance(m, Member)], [f for f in found if isinstance(f, Finding)]


def told(data: bytes) -> list[tuple[str, int]]:
    return [(finding.code, finding.byte) for finding in walk(data)[1]]


def as_tarfile_tells(members: list[Member]) -> list[tuple]:
    return [(m.raw, m.start, m.offset, m.size, m.kind) for m in members]


def listed(data: bytes) -> list[tuple]:
    found = []
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:", encoding="utf-8") as tar:
        for info in tar:
            kind = info.type.decode().replace("\0", "0")
            name = info.name + "/" * info.isdir()
            found.append((name.encode("utf-8", "surrogateescape"), info.offset, info.offset_data, info.size, kind))
    return found


def made(files: list[tuple[str, int]], kind: str) -> bytes | None:
    try:
        return by_tarfile([(name, random.Random(size).randbytes(size)) for name, size in files], kind)
    except ValueError:  # a name that this format cannot hold
        return None


@law
@given(FILES, st.sampled_from(sorted(FORMATS)))
def test_members_are_those_of_tarfile(files, kind):
    data = made(files, kind)
    if data is not None:
        members, findings = walk(data)
        assert as_tarfile_tells(members) == listed(data)
        assert findings == []
        assert all(found.reached and found.regular for found in members)


def stopped_at(data: bytes) -> list[tuple] | None:
    """What tarfile lists; None where it fails."""
    try:
        return listed(data)
    except (tarfile.TarError, ValueError, UnicodeError):
        return None


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.filter_too_much])
@given(FILES.filter(bool), st.sampled_from(sorted(FORMATS)), st.data())
def test_a_cut_is_an_error_or_loses_nothing(files, kind, data):
    whole = made(files, kind)
    if whole is None:
        return
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    members, findings = walk(cut)
    assert any(f.severity == "error" for f in findings) or listed(cut) == listed(whole) == as_tarfile_tells(members)


@settings(deadline=None, max_examples=500)
@given(FILES.filter(bool), st.sampled_from(sorted(FORMATS)), st.data())
def test_a_flipped_byte_of_a_header_is_an_error_or_changes_nothing(files, kind, data):
    whole = made(files, kind)
    if whole is None:
        return
    start, offset = data.draw(st.sampled_from([(start, offset) for _, start, offset, _, _ in listed(whole)]))
    at = data.draw(st.integers(start, offset - 1))
    in_header = (at - start) // BLOCK in {0, (offset - start) // BLOCK - 1}
    changed = whole[:at] + bytes([data.draw(st.integers(0, 255))]) + whole[at + 1 :]
    members, findings = walk(changed)
    if any(f.severity == "error" for f in findings):
        return
    assert stopped_at(changed) == as_tarfile_tells(members)
    if in_header:  # the data of a long name or pax header has no checksum: there a name may become another one
        assert listed(changed) == listed(whole)


@PLACES
def test_a_wrong_checksum_is_told_and_what_is_behind_is_found_but_not_reached(place):
    broken = [*PARTS[:place], b"x" + PARTS[place][1:], *PARTS[place + 1 :]]
    members, findings = walk(b"".join(broken) + END)
    assert [(f.code, f.byte) for f in findings] == [("bad-header", ENDS[place])]
    assert ("without a word" in findings[0].words) == (place > 0)
    assert [m.start for m in members] == [end for number, end in enumerate(ENDS[:-1]) if number != place]
    assert [m.reached for m in members] == [True] * place + [False] * (5 - place)


@PLACES
def test_a_wrong_size_hides_no_later_member(place):
    block = PARTS[place][:124] + b"77777777777\0" + PARTS[place][136:]
    data = b"".join([*PARTS[:place], block, *PARTS[place + 1 :]]) + END
    members, findings = walk(data)
    assert [(f.code, f.byte) for f in findings] == [("bad-header", ENDS[place])]
    assert len(members) == 5


@PLACES
@pytest.mark.parametrize("shift", [-3, 7])
def test_lost_and_added_bytes_hide_no_later_member(place, shift):
    at = ENDS[place] + BLOCK + 10
    data = b"".join(PARTS) + END
    data = data[:at] + b"y" * max(shift, 0) + data[at - min(shift, 0) :]
    members, findings = walk(data)
    if place < 5:
        assert next((f.code, f.byte) for f in findings) == ("bad-header", ENDS[place + 1])
        assert "text mode" in findings[0].words
        assert [m.raw for m in members][place + 1 :] == [m.raw for m in walk(b"".join(PARTS) + END)[0]][place + 1 :]


@PLACES
def test_a_cut_in_a_header_is_told(place):
    if place:
        assert told(b"".join(PARTS)[: ENDS[place] + 100]) == [("cut-header", ENDS[place])]
    assert told(b"".join(PARTS)[: ENDS[place] + 511])[-1] == ("cut-header", ENDS[place]) if place else True


def test_a_cut_in_the_first_header_is_no_tar():
    assert told(PARTS[0][:100]) == [("not-a-tar", 0)]


@PLACES
def test_a_cut_in_data_is_told(place):
    members, findings = walk(b"".join(PARTS)[: ENDS[place] + BLOCK + 3])
    assert [(f.code, f.byte) for f in findings] == [("cut-data", ENDS[place])]
    assert "3 of the" in findings[0].words
    assert len(members) == place


@PLACES
def test_a_cut_at_a_member_border_is_told(place):
    assert told(b"".join(PARTS)[: ENDS[place + 1]]) == [("missing-end", ENDS[place + 1])]


def test_a_cut_in_the_end_is_told():
    data = b"".join(PARTS)
    assert told(data + bytes(100)) == [("missing-end", ENDS[-1] + 100)]
    assert told(data + bytes(512)) == [("short-end", ENDS[-1] + 512)]
    assert told(data + bytes(1023)) == [("short-end", ENDS[-1] + 1023)]
    assert told(data + bytes(1024)) == []


def test_a_second_archive_behind_the_first_is_told_and_found():
    one = b"".join(PARTS) + END
    members, findings = walk(one + one)
    assert [(f.code, f.byte) for f in findings] == [("data-after-end", len(one))]
    assert "another archive begins" in findings[0].words
    assert [m.reached for m in members] == [True] * 6 + [False] * 6


@PLACES
def test_a_lone_zero_block_ends_what_readers_see(place):
    data = b"".join([*PARTS[:place], bytes(512), *PARTS[place:]]) + END
    members, findings = walk(data)
    assert [(f.code, f.byte) for f in findings] == [("data-after-end", ENDS[place] + 512)]
    assert sum(m.reached for m in members) == place == len(listed(data))
    assert len(members) == 6


def test_anything_behind_the_end_is_told_by_its_byte():
    assert told(b"".join(PARTS) + END + bytes(99999) + b"x") == [("data-after-end", ENDS[-1] + 1024 + 99999)]


def test_an_empty_file_is_told():
    assert told(b"") == [("empty-file", 0)]


def test_a_sound_tar_without_a_member_is_sound():
    assert told(bytes(10240)) == []


def test_a_compressed_tar_is_named():
    import bz2
    import gzip
    import lzma

    whole = b"".join(PARTS) + END
    for kind, data in (("gzip", gzip.compress(whole)), ("bzip2", bz2.compress(whole)), ("xz", lzma.compress(whole))):
        members, (finding,) = walk(data)
        assert (finding.code, members) == ("compressed", [])
        assert kind in finding.words


@pytest.mark.parametrize(("data", "words"), [(b"<html>" * 200, "error page"), (b"x" * 5000, "xxxx"), (b"a", "'a'")])
def test_what_is_no_tar_is_told(data, words):
    _, (finding,) = walk(data)
    assert (finding.code, finding.byte) == ("not-a-tar", 0)
    assert words in finding.words


@PLACES
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("link", b"1"),
        ("link", b"2"),
        ("device", b"3"),
        ("device", b"4"),
        ("directory", b"5"),
        ("device", b"6"),
        ("multi-volume", b"M"),
        ("unknown-type", b"Z"),
        ("unknown-type", b"V"),
    ],
)
def test_a_member_that_readers_skip_is_told(place, code, kind):
    odd = member("odd", b"" if kind < b"7" else b"data", kind)
    members, findings = walk(b"".join([*PARTS[:place], odd, *PARTS[place:]]) + END)
    assert [(f.code, f.byte, f.name) for f in findings] == [(code, ENDS[place], "odd")]
    assert len(members) == 7
    assert [m.regular for m in members].count(False) == 1


def test_links_and_folders_have_no_data_whatever_size_they_give():
    for kind in (b"1", b"5"):
        data = b"".join([*PARTS[:2], header("odd", 5000, kind), *PARTS[2:]]) + END
        members, _ = walk(data)
        assert [m.offset for m in members] == [offset for _, _, offset, _, _ in listed(data)]


@PLACES
def test_a_sparse_member_is_told(place):
    for odd in (
        member("a.bin", b"x" * 9, b"S"),
        pax({"GNU.sparse.major": "1", "GNU.sparse.name": "a.bin"}) + member("z"),
    ):
        members, findings = walk(b"".join([*PARTS[:place], odd, *PARTS[place:]]) + END)
        assert [(f.code, f.name) for f in findings] == [("sparse", "a.bin")]
        assert (len(members), members[place].kind) == (7, "S")


def test_the_map_of_a_sparse_member_is_not_its_data():
    first = bytearray(header("a.bin", 600, b"S"))
    first[482] = 1
    more = bytes(504) + b"\1" + bytes(7)
    data = summed(first) + more + bytes(512) + bytes(1024) + PARTS[0] + END
    assert [(m.offset, m.size) for m in walk(data)[0]] == [(1536, 600), (3072, 700)]


@PLACES
def test_long_names_sizes_and_pax_names_are_read(place):
    name = "n" * 300 + ".jpg"
    ways = [
        member("././@LongLink", name.encode() + b"\0", b"L") + member("short", b"12345"),
        pax({"path": name}) + member("short", b"12345"),
        pax({"path": name, "size": "5"}) + header("short", 0) + b"12345" + bytes(507),
        pax({"path": name}, b"X") + member("short", b"12345"),
        member("link", b"whatever\0", b"K") + pax({"path": name}) + member("short", b"12345"),
        pax({"path": name}) + member("././@LongLink", b"inner\0", b"L") + member("short", b"12345"),
    ]
    for way in ways:
        data = b"".join([*PARTS[:place], way, *PARTS[place:]]) + END
        members, findings = walk(data)
        assert findings == []
        assert (members[place].raw, members[place].size) == (name.encode(), 5)
        assert as_tarfile_tells(members) == listed(data)


def test_a_global_pax_header_that_renames_is_told():
    data = pax({"path": "all.jpg"}, b"g") + b"".join(PARTS) + END
    members, findings = walk(data)
    assert [(f.code, f.byte) for f in findings] == [("global-pax", 0)]
    assert [m.raw for m in members] == [b"all.jpg"] * 6 == [name for name, *_ in listed(data)]
    assert told(pax({"comment": "x"}, b"g") + b"".join(PARTS) + END) == []


@PLACES
def test_a_damaged_pax_header_is_told(place):
    bad = bytearray(pax({"path": "x.jpg"}))
    bad[BLOCK] = ord("9")
    assert told(b"".join([*PARTS[:place], bytes(bad), *PARTS[place:]]) + END) == [("bad-extension", ENDS[place])]


@pytest.mark.parametrize("kind", [b"L", b"x", b"g", b"K"])
def test_a_header_that_no_member_follows_is_told(kind):
    odd = member("odd", b"9 path=a\n" if kind in b"xg" else b"name", kind)
    assert ("bad-extension", ENDS[-1]) in told(b"".join(PARTS) + odd + END)
    assert ("bad-extension", ENDS[-1]) in told(b"".join(PARTS) + odd)
    assert ("cut-header", ENDS[-1]) in told(b"".join(PARTS) + odd[:700])


def test_an_extension_of_any_size_is_not_held():
    for kind in (b"L", b"x", b"g"):
        store = Hollow(header("odd", 2**40, kind), 2**41)
        tracemalloc.start()
        walking = scan(store, "a.tar")
        assert next(walking).code == "bad-extension"
        assert tracemalloc.get_traced_memory()[1] < 8 * AHEAD
        tracemalloc.stop()


def test_a_member_of_any_size_costs_no_memory_and_few_reads():
    store = Hollow(header("a.bin", 2**50), 2**50 + 512 + 1024)
    assert [m.size for m in scan(store, "a.tar")] == [2**50]
    assert sum(end - start for start, end in store.reads) < 2 * AHEAD
    members, findings = walk(header("a.bin", 2**80) + END)
    assert (members, [f.code for f in findings]) == ([], ["cut-data"])


def test_only_headers_are_read_where_members_are_large():
    parts = [member(f"{number:06}.jpg", b"j" * 3 * AHEAD) for number in range(4)]
    store = OneFile(b"".join(parts) + END)
    assert len(list(scan(store, "a.tar"))) == 4
    assert sum(end - start for start, end in store.reads) < AHEAD + 5 * 8192 + 1


def test_small_members_are_read_in_few_reads():
    store = OneFile(b"".join(sample(f"{number:06}")[1] for number in range(10000)) + END)
    assert len(list(scan(store, "a.tar"))) == 10000
    assert len(store.reads) == 10


def test_a_name_that_is_no_utf8_has_no_text():
    (found,), _ = walk(member(b"caf\xe9.jpg") + END)
    assert (found.raw, found.name) == (b"caf\xe9.jpg", None)


@law
@given(st.lists(st.one_of(st.sampled_from([*PARTS, END, bytes(512), b"ustar", b"x" * 300]), st.binary(max_size=700))))
def test_no_bytes_are_too_odd(pieces):
    data = b"".join(pieces)
    found = list(scan(OneFile(data), "a.tar"))
    assert found or not data.strip(b"\0")
