"""What shards hold, in numbers and lines."""

from shards.overview import Sizes, Tally, lines, look
from tars_made import END, OneFile, member, sample

DATA = b"".join(
    [
        member("a.jpg", b"j" * 700),
        member("a.txt", "caf\xe9\n\x1b[31m ".encode() + b"x" * 100),
        member("b.jpg", b"j" * 10),
        member("b.txt", b"two"),
        member("c.jpg", b"j" * 20),
        member("c.bin", b"\0\1\2"),
        END,
    ]
)


def test_a_shard_is_counted():
    tally, found = look(OneFile(DATA), "a.tar", samples=1)
    assert (found.url, found.shards, found.bytes, found.members, found.samples) == ("memory/a.tar", 1, len(DATA), 6, 3)
    assert found.fields == {"jpg,txt": 2, "bin,jpg": 1}
    assert found.sizes["jpg"] == Sizes(count=3, min=10, median=20, max=700, total=730)
    assert sorted(found.sizes) == ["bin", "jpg", "txt"]
    assert tally.samples == 3


def test_the_first_samples_are_shown_with_the_beginning_of_their_texts():
    _, found = look(OneFile(DATA), "a.tar", samples=3)
    a, _, c = found.first
    assert [(part.suffix, part.size) for part in a.parts] == [("jpg", 700), ("txt", 112)]
    assert a.parts[0].text is None
    assert a.parts[1].text == "caf\xe9\\n\\x1b[31m " + "x" * 69 + "..."
    assert c.parts[1].text is None  # a zero byte is no text
    assert look(OneFile(DATA), "a.tar", samples=0)[1].first == []


def test_a_text_whose_beginning_ends_in_a_character_is_text():
    for extra in range(4):
        text = "x" * extra + "\N{SNOWMAN}" * 400
        _, found = look(OneFile(member("a.txt", text.encode()) + END), "a.tar", samples=1)
        assert found.first[0].parts[0].text == text[:80] + "..."
    _, found = look(OneFile(member("a.txt", b"caf\xe9") + END), "a.tar", samples=1)
    assert found.first[0].parts[0].text is None


def test_members_that_readers_never_come_to_do_not_count_and_the_fault_is_named():
    _, found = look(OneFile(b"".join(sample("a")) + bytes(512) + DATA), "a.tar", samples=3)
    assert (found.members, found.samples) == (2, 1)
    assert found.faults[0].startswith("error data-after-end memory/a.tar byte 3072")


def test_tallies_add_up():
    total = Tally()
    for _ in range(2):
        total.add(look(OneFile(DATA), "a.tar", samples=0)[0])
    found = total.overview("total")
    assert (found.shards, found.members, found.samples, found.bytes) == (2, 12, 6, 2 * len(DATA))
    assert found.fields == {"jpg,txt": 4, "bin,jpg": 2}
    assert found.sizes["jpg"] == Sizes(count=6, min=10, median=20, max=700, total=1460)


def test_an_overview_is_told_in_lines():
    _, found = look(OneFile(DATA), "a.tar", samples=2)
    assert list(lines(found))[:9] == [
        "memory/a.tar",
        f"  6 members, 3 samples, {len(DATA):,} bytes",
        "  fields jpg,txt: 2",
        "  fields bin,jpg: 1",
        "  bin: 1 of 3 to 3 bytes, median 3",
        "  jpg: 3 of 10 to 700 bytes, median 20",
        "  txt: 2 of 3 to 112 bytes, median 3",
        "  sample a",
        "    jpg: 700 bytes",
    ]
    assert "    txt: 3 bytes two" in list(lines(found))


def test_of_very_many_suffixes_a_few_are_told():
    data = b"".join(member(f"a{number}.s{number}", b"x") for number in range(50)) + END
    _, found = look(OneFile(data), "a.tar", samples=0)
    told = list(lines(found))
    assert "  and 30 more sets of suffixes" in told
    assert "  and 30 more suffixes" in told
    assert len(told) == 44
