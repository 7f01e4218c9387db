"""What lint says of one shard."""

import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from datasets_made import law
from shards import lint
from shards.errors import StoreError
from shards.lint import lint_shard
from shards.overview import lines, look
from tars_made import END, OneFile, member, pax, sample

SOUND = [sample(f"{number:06}") for number in range(5)]


def shard(*members: bytes, end: bytes = END, decoder=None):
    return lint_shard(OneFile(b"".join(members) + end), "a.tar", decoder=decoder)


def told(*members: bytes, end: bytes = END) -> list[tuple[str, int | None, str]]:
    return [(f.code, f.byte, f.name) for f in shard(*members, end=end).found.listed()]


def flat(*samples: list[bytes]) -> list[bytes]:
    return [part for parts in samples for part in parts]


def test_of_a_sound_shard_nothing_is_told():
    found = shard(*flat(*SOUND))
    assert found.found.listed() == []
    assert (found.members, found.samples, found.bytes, found.faults) == (10, 5, 5 * 2560 + 1024, 0)
    assert found.keys == {f"{number:06}": 2560 * number for number in range(5)}


@pytest.mark.parametrize("place", [0, 2, 4])
def test_a_key_that_comes_twice_is_told(place):
    members = flat(*SOUND) + SOUND[place]
    expected = [] if place == 4 else [("duplicate-key", 5 * 2560, f"{place:06}")]
    twice = [("duplicate-part", 5 * 2560 + at, f"{place:06}.{name}") for at, name in ((0, "jpg"), (1536, "txt"))]
    assert told(*members) == (expected or twice)


def test_parts_that_are_not_adjacent_are_told():
    (a, b), (c, d) = SOUND[:2]
    found = shard(a, c, b, d)
    codes = [(f.code, f.byte, f.name) for f in found.found.listed() if f.code != "half-sample"]
    assert codes == [("split-sample", 3072, "000000"), ("split-sample", 4096, "000001")]
    assert found.samples == 4


@pytest.mark.parametrize("place", [0, 2, 4])
def test_a_part_that_comes_twice_is_told(place):
    members = [list(parts) for parts in SOUND]
    members[place].append(member(f"{place:06}.JPG", b"again"))
    expected = [
        ("upper-suffix", 2560 * (place + 1), f"{place:06}.JPG"),
        ("duplicate-part", 2560 * (place + 1), f"{place:06}.JPG"),
    ]
    assert told(*flat(*members)) == expected


@pytest.mark.parametrize("place", [0, 2, 4])
def test_a_sample_that_lacks_a_part_is_told(place):
    members = [list(parts) for parts in SOUND]
    del members[place][0]
    assert told(*flat(*members)) == [("half-sample", 2560 * place, f"{place:06}")]


def test_many_samples_that_lack_a_part_are_counted():
    whole = [sample(f"a{number:05}") for number in range(40)]
    half = [sample(f"b{number:05}")[:1] for number in range(30)]
    found = [f for f in shard(*flat(*whole, *half)).found.listed() if f.code == "half-sample"]
    assert (len(found), sum(1 + f.more for f in found)) == (10, 30)
    assert "txt (40 of 70 samples have it)" in found[0].words


def test_a_part_that_few_samples_have_may_lack():
    extra = member("000000.json", b"{}")
    assert told(*SOUND[0], extra, *flat(*SOUND[1:])) == []


def test_empty_parts_are_told():
    members = [member("a.jpg"), member("a.txt", b"a"), member("b.jpg", b"b"), member("b.txt")]
    assert told(*members) == [("empty-image", 0, "a.jpg"), ("empty-part", 2560, "b.txt")]


def test_members_behind_a_fault_are_told_and_make_no_samples():
    broken = b"x" + SOUND[2][0][1:]
    found = shard(*flat(*SOUND[:2]), broken, SOUND[2][1], *flat(*SOUND[3:]))
    codes = [(f.code, f.byte) for f in found.found.listed()]
    assert codes == [("bad-header", 5120), ("unreached-members", 5120 + 1536)]
    assert "the 5 members from here on" in found.found.listed()[1].words
    assert (found.samples, found.faults) == (2, 1)


def test_a_tar_without_members_or_samples_is_told():
    assert told(end=bytes(10240)) == [("no-members", 0, "")]
    assert told(end=bytes(20480)) == [("only-zeros", 0, "")]
    assert {code for code, *_ in told(member("README", b"x"))} == {"no-suffix", "no-samples"}


def test_names_are_told_once_and_counted():
    (found,) = shard(*[member(f"./{number}.jpg", b"x") for number in range(9)]).found.listed()[:1]
    assert (found.code, found.byte, found.more) == ("dot-slash", 0, 8)


def refuse(data: bytes) -> None:
    if data != b"j" * 700:
        raise ValueError(f"no\nimage: {data[:3]!r}")


def test_images_are_decoded_where_a_decoder_is_given():
    members = [*flat(*SOUND), member("x.seg.PNG", b"bad"), member("x.txt", b"bad")]
    found = shard(*members, decoder=refuse).found.listed()
    assert ("bad-image", 5 * 2560, "x.seg.PNG", "no\\nimage: b'bad'") in [
        (f.code, f.byte, f.name, f.words) for f in found
    ]
    assert [f.code for f in found].count("bad-image") == 1
    assert "bad-image" not in [f.code for f in shard(*members).found.listed()]


def test_an_image_too_large_to_hold_is_told(monkeypatch):
    monkeypatch.setattr(lint, "MOST_IMAGE_BYTES", 699)
    asked = []
    (found,) = shard(*SOUND[0], decoder=asked.append).found.listed()
    assert (found.code, found.byte, asked) == ("not-decoded", 0, [])


def test_a_file_that_is_not_there_or_cannot_be_read_is_told():
    class Failing(OneFile):
        def read(self, name, *, start=0, end=None):
            raise StoreError("memory/a.tar", "read", "Input/output error")

    class Absent(OneFile):
        def size(self, name):
            raise FileNotFoundError

    (found,) = lint_shard(Failing(END), "a.tar").found.listed()
    assert found.code == "unreadable"
    assert "Input/output error" in found.words
    absent = lint_shard(Absent(END), "a.tar")
    assert ([f.code for f in absent.found.listed()], absent.faults) == (["missing-file"], 1)


def test_each_member_that_readers_come_to_is_seen():
    seen = []
    lint_shard(OneFile(b"".join(SOUND[0]) + bytes(512) + SOUND[1][0] + END), "a.tar", seen=seen.append)
    assert [m.raw for m in seen] == [b"000000.jpg", b"000000.txt"]


def test_a_shard_of_many_samples_and_faults_costs_little_memory():
    data = b"".join(pax({"path": f"../{number:06}.jpg"}) + member("short", b"x") for number in range(5000)) + END
    store = OneFile(data)
    tracemalloc.start()
    found = lint_shard(store, "a.tar").found.listed()
    assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    tracemalloc.stop()
    assert [(f.code, f.more) for f in found][-1] == ("unsafe-name", 4990)


@law
@given(st.lists(st.one_of(st.sampled_from([*flat(*SOUND[:2]), END, bytes(512)]), st.binary(max_size=700)), max_size=9))
def test_no_bytes_are_too_odd(pieces):
    found = lint_shard(OneFile(b"".join(pieces)), "a.tar", decoder=refuse)
    assert all(finding.line().isprintable() for finding in found.found.listed())
    look(OneFile(b"".join(pieces)), "a.tar", samples=2)


@law
@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=60), st.sampled_from([b"0", b"1", b"5", b"S", b"x", b"g", b"L"])))
)
@example([(b"\1.\1", b"0"), (b"\2.", b"0"), (b"\1.\1", b"0")])
def test_no_name_is_too_odd(members):
    data = b"".join(member(name, name, kind) for name, kind in members) + END
    found = lint_shard(OneFile(data), "a.tar")
    assert all(finding.line().isprintable() for finding in found.found.listed())
    assert [line for line in lines(look(OneFile(data), "a.tar", samples=3)[1]) if not line.isprintable()] == []
