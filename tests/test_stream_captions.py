"""Which caption a row carries."""

import json
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.sample import Sample
from stream.captions import pick, suffixes_for
from stream.draws import draw
from stream.errors import SourceError

CAPTIONS = ["A dog. ", "Ein Hund läuft\n", "犬", "", "  a dog, again"]
WORDS = st.integers(0, 2**64 - 1)


def make(*, txt=b"A dog. ", **fields):
    record = {"image_id": 7, "captions": CAPTIONS, "caption_ids": [1, 2, 3, 4, 5], "urls": {"coco": ""}, **fields}
    parts = {"jpg": b"\xff\xd8", "txt": txt, "json": json.dumps(record).encode()}
    return Sample(key="000000000007", parts={suffix: memoryview(part) for suffix, part in parts.items()})


def choose(sample, policy, *, seed=0, epoch=0, position=0, caption=None):
    return pick(sample, policy, seed=seed, epoch=epoch, position=position, caption=caption)


def only(sample, *suffixes):
    return Sample(key=sample.key, parts={suffix: sample.parts[suffix] for suffix in suffixes})


def test_first_is_the_text_part_as_it_is():
    assert choose(make(txt="Läuft \n".encode()), "first") == "Läuft \n"


def test_all_are_kept_with_their_blanks_in_their_order():
    assert choose(make(), "all") == CAPTIONS


@pytest.mark.parametrize("number", range(5))
def test_each_is_the_caption_of_that_number(number):
    assert choose(make(), "each", caption=number) == CAPTIONS[number]


@pytest.mark.parametrize("policy", ["first", "random", "all", "each"])
def test_only_the_parts_asked_for_are_needed(policy):
    sample = only(make(), *suffixes_for(policy))
    assert choose(sample, policy, caption=0) == choose(make(), policy, caption=0)


def test_first_needs_no_json():
    assert suffixes_for("first") == ("txt",)
    assert {suffixes_for(policy) for policy in ("random", "all", "each")} == {("json",)}


def test_draws_are_pinned():
    assert [draw(5, seed=0, epoch=0, position=position) for position in range(12)] == [
        3,
        2,
        2,
        3,
        2,
        4,
        3,
        2,
        1,
        4,
        0,
        3,
    ]
    assert [draw(2**32, seed=s, epoch=e, position=p) for s, e, p in [(1, 0, 0), (0, 1, 0), (0, 0, 1)]] == [
        3387628404,
        604261176,
        2362297618,
    ]


@given(WORDS, WORDS, WORDS)
def test_random_is_the_caption_that_is_drawn(seed, epoch, position):
    number = draw(5, seed=seed, epoch=epoch, position=position)
    assert choose(make(), "random", seed=seed, epoch=epoch, position=position) == CAPTIONS[number]


@pytest.mark.parametrize("moving", ["seed", "epoch", "position"])
def test_each_number_is_drawn_equally_often(moving):
    fixed = {"seed": 3, "epoch": 2, "position": 1}
    drawn = Counter(draw(5, **{**fixed, moving: value}) for value in range(10_000))
    assert all(abs(drawn[number] - 2000) < 160 for number in range(5))  # four standard deviations


def test_one_caption_is_drawn_always():
    assert {draw(1, seed=0, epoch=0, position=position) for position in range(100)} == {0}


@pytest.mark.parametrize(("policy", "suffix"), [("first", "txt"), ("all", "json"), ("random", "json")])
def test_a_part_that_is_missing_is_named(policy, suffix):
    with pytest.raises(SourceError, match=rf"sample 000000000007: has no \.{suffix}.*it has \.jpg.*pack it again"):
        choose(only(make(), "jpg"), policy)


def test_text_that_is_not_utf8_is_refused():
    with pytest.raises(SourceError, match=r"000000000007\.txt: is not UTF-8 at byte 1") as caught:
        choose(make(txt=b"l\xc3 "), "first")
    assert isinstance(caught.value.__cause__, UnicodeDecodeError)


@pytest.mark.parametrize(
    "part", [b"", b"{", b"[]", b"{}", b'{"captions":"a"}', b'{"captions":[1]}', b'{"captions":["\xff"]}']
)
def test_json_without_captions_is_refused(part):
    sample = Sample(key="7", parts={"json": memoryview(part)})
    with pytest.raises(SourceError, match=r'sample 7\.json: is not JSON with a list of texts in "captions"') as caught:
        choose(sample, "all")
    assert isinstance(caught.value.__cause__, (msgspec.DecodeError, UnicodeDecodeError))


@pytest.mark.parametrize("policy", ["random", "each"])
def test_a_sample_without_captions_is_refused(policy):
    with pytest.raises(SourceError, match=r'000000000007\.json: has an empty "captions"'):
        choose(make(captions=[]), policy, caption=0)


@pytest.mark.parametrize("number", [None, -1, 5])
def test_a_caption_that_is_not_there_is_refused(number):
    with pytest.raises(SourceError, match=rf"has 5 captions, number {number} \(from 0\) was asked for"):
        choose(make(), "each", caption=number)
