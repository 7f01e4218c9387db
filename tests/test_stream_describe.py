"""What a loader says of itself: one fact a line."""

from dataclasses import fields

import pytest
from accelerate import DataLoaderConfiguration

import stream.describe
from stream.describe import Facts, describe
from stream.options import BatchSpec, StreamOptions

FACTS = {
    "name": "train",
    "source": "/data/coco",
    "ranks": 2,
    "rank": 1,
    "mode": "dispatch",
    "mode_by_default": False,
    "accelerator": True,
    "prepared": True,
    "portions": 2,
    "global_batch": 12,
    "split_batches": True,
    "rows": 53,
    "steps": 5,
    "even_batches": True,
    "pinned": False,
    "decode_threads": 2,
    "decodes_on": "reader",
    "linked": True,
    "on_device": False,
    "reached": {},
}


def said(options=None, spec=None, **facts):
    """The description's lines by what they speak of."""
    made = BatchSpec(**{"batch_size": 12, "image_size": (16, 64), **(spec or {})})
    text = describe(Facts(**{**FACTS, **facts}), made, StreamOptions(**(options or {})))
    return dict(line.split(": ", 1) for line in text.split("\n"))


def test_the_number_of_ranks_comes_first():
    assert next(iter(said().items())) == ("ranks", "2 (this is rank 1)")


def test_it_has_one_line_for_each_question():
    assert list(said()) == [
        "ranks",
        "loader",
        "mode",
        "batch",
        "epoch",
        "order",
        "resume",
        "caption",
        "loading",
        "pinned memory",
    ]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, "'train' over /data/coco, prepared"),
        ({"prepared": False}, "'train' over /data/coco, not prepared yet: pass it through accelerator.prepare()"),
        ({"accelerator": False}, "'train' over /data/coco, without an accelerator"),
    ],
)
def test_it_says_whether_it_is_the_prepared_object(facts, words):
    assert said(**facts)["loader"] == words


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, 'dispatch; rank 0 reads in order, transport "ours" brings each rank its own portion'),
        (
            {"linked": False},
            'dispatch; rank 0 reads in order, transport "stock" carries each whole step to all ranks',
        ),
        (
            {"ranks": 4},
            'dispatch; rank 0 reads in order, transport "ours" brings each rank its own portion; 2 ranks share each',
        ),
        ({"mode_by_default": True}, "dispatch (by default); rank 0 reads in order, transport "),
        ({"ranks": 1, "rank": 0, "portions": 1}, "dispatch; this process reads and keeps everything"),
        ({"mode": "shard"}, "shard; each rank reads its own rows through the index"),
    ],
)
def test_it_says_how_each_rank_is_reached(facts, words):
    assert said(**facts)["mode"].startswith(words)


@pytest.mark.parametrize(
    ("facts", "spec", "words"),
    [
        ({"ranks": 3, "portions": 3}, {}, "12 rows a step over all ranks, 4 on each"),
        (
            {"ranks": 3, "portions": 3, "split_batches": False},
            {"batch_size": 4},
            "12 rows a step over all ranks, 3 times batch_size=4, 4 on each",
        ),
        ({"ranks": 4, "portions": 2}, {}, "12 rows a step over all ranks, 6 on each"),
        ({"global_batch": None}, {"batch_size": None}, "as the source gives them, each is a whole step"),
        (
            {"global_batch": None, "split_batches": False},
            {"batch_size": None},
            "as the source gives them, each is one rank's portion",
        ),
    ],
)
def test_it_says_the_whole_batch_and_the_portion_and_how_much_it_grew(facts, spec, words):
    assert said(spec=spec, **facts)["batch"] == words


def test_it_says_how_each_rank_was_reached_once_they_have_met():
    lines = said(reached={1: "TCP", 0: "this process"})
    assert (lines["rank 0"], lines["rank 1"]) == ("this process", "TCP")
    assert list(lines)[-2:] == ["rank 0", "rank 1"]


def test_it_names_what_was_set_without_an_effect():
    lines = said(without_effect=("use_seedable_sampler", "data_seed", "use_stateful_dataloader"))
    assert lines["use_seedable_sampler"] == "without effect, the order comes from seed"
    assert lines["data_seed"] == "without effect, the order comes from seed"
    assert lines["use_stateful_dataloader"] == "without effect, the loader has state_dict() itself"


def test_every_field_of_accelerates_configuration_has_a_stated_effect():
    stated = [line.split()[0] for line in stream.describe.__doc__.splitlines() if line.startswith(4 * " ")]
    assert {field.name for field in fields(DataLoaderConfiguration)} <= set(stated)


@pytest.mark.parametrize(
    ("facts", "spec", "words"),
    [
        ({}, {}, "53 rows in 5 steps; the rest (5 rows) is padded with the epoch's first rows to a multiple of 2"),
        ({"steps": 4}, {"drop_last": True}, "53 rows in 4 steps; the rest (5 rows) is dropped"),
        (
            {"even_batches": False},
            {},
            "53 rows in 5 steps; the rest (5 rows) is shared out unevenly, so the last batches must not be",
        ),
        ({"ranks": 1, "rank": 0, "portions": 1}, {}, "53 rows in 5 steps; the rest (5 rows) makes a shorter last step"),
        (
            {"ranks": 1, "rank": 0, "portions": 1, "even_batches": False},
            {},
            "53 rows in 5 steps; the rest (5 rows) makes a shorter last step",
        ),
        ({"rows": 13, "steps": 2}, {"drop_last": True}, "13 rows in 2 steps; the rest (1 row) is dropped"),
        ({"rows": 24, "steps": 2}, {}, "24 rows in 2 steps; nothing is left over"),
        (
            {"rows": None, "steps": None},
            {},
            "as long as the source lasts; what is left over is padded with the epoch's first rows to a multiple of 2",
        ),
        (
            {"rows": None, "steps": None},
            {"drop_last": True},
            "as long as the source lasts; what is left over is dropped",
        ),
    ],
)
def test_it_says_what_happens_to_the_tail(facts, spec, words):
    assert said(spec=spec, **facts)["epoch"].startswith(words)


@pytest.mark.parametrize(
    ("facts", "spec", "words"),
    [
        ({}, {}, 'shuffle="window" over windows of 4 shards, seed 0, another order each epoch'),
        ({}, {"shuffle": "full", "seed": 7}, 'shuffle="full", seed 7, another order each epoch'),
        ({}, {"shuffle": None}, "as stored"),
        ({"rows": None, "steps": None}, {}, "the source's own"),
    ],
)
def test_it_says_in_which_order_rows_come(facts, spec, words):
    assert said(spec=spec, **facts)["order"] == words


@pytest.mark.parametrize(
    ("options", "spec", "words"),
    [
        ({}, {}, "first; image: 16 x 64 (height x width), cover_crop, bilinear, uint8"),
        ({"resize": "squash"}, {"captions": "each"}, "each; image: 16 x 64 (height x width), squash, bilinear, uint8"),
        ({}, {"image_size": None}, "first; image: full size, a list"),
    ],
)
def test_it_says_what_a_row_is(options, spec, words):
    assert said(options, spec)["caption"] == words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "2 decoding threads, 2 steps ahead within 268435456 bytes"),
        ({"prefetch_steps": 3}, "2 decoding threads, 3 steps ahead within 268435456 bytes"),
        ({"prefetch_steps": 1, "transport": "stock"}, "2 decoding threads, 1 step ahead within 268435456 bytes"),
        ({"workers": 3, "prefetch_steps": 4}, "worker processes: 3, 4 steps ahead each"),
    ],
)
def test_it_says_how_it_loads(options, words):
    assert said(options)["loading"] == words


@pytest.mark.parametrize(("where", "words"), [("thread", "beside the training loop"), ("process", "in a process of")])
def test_it_says_where_the_ranks_decode(where, words):
    line = said({"decode_in": where}, decodes_on="ranks")["loading"]
    assert line.startswith(f"each rank decodes its portion in 2 threads {words}")


@pytest.mark.parametrize(
    ("options", "facts", "words"),
    [
        ({}, {}, "no accelerator to pin for"),
        ({}, {"pinned": True}, "on"),
        ({"pin_memory": False}, {}, "off"),
    ],
)
def test_it_says_whether_memory_is_pinned(options, facts, words):
    assert said(options, **facts)["pinned memory"] == words
