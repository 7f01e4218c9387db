"""tools/captioner.py: words and their numbers, what the model computes, and that it can learn."""

import random

import pytest
import torch
from torch import nn

from captioner import (
    END,
    MAX_WORDS,
    PAD,
    SPECIALS,
    START,
    UNKNOWN,
    Captioner,
    Vocabulary,
    frequent_words,
    read_captions,
    split,
)
from packed import make_packed
from shards.dataset import DatasetReader
from shards.index import RowInfo
from shards.store import open_store
from shards.writer import ShardWriter

CAPTIONS = ["a red circle above a blue square", "a cat, asleep.", "Ein Haus über dem Fluß", "一只 猫", "a \N{CAT} !"]


@pytest.fixture
def vocabulary():
    return Vocabulary(frequent_words(CAPTIONS, min_count=1))


@pytest.fixture
def model(vocabulary):
    torch.manual_seed(0)
    return Captioner(vocabulary, width=32).eval()


def images(count, size=(24, 24)):
    return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(1))


def test_words_are_lower_case_and_marks_stand_alone():
    assert split('A man\'s "red" hat,  on TOP. ') == [
        "a",
        "man",
        "'",
        "s",
        '"',
        "red",
        '"',
        "hat",
        ",",
        "on",
        "top",
        ".",
    ]


def test_both_unicode_forms_of_a_word_are_one_word():
    assert split("u\N{COMBINING DIAERESIS}ber") == split("\N{LATIN SMALL LETTER U WITH DIAERESIS}ber") == ["über"]


def test_words_come_by_frequency_then_by_alphabet():
    assert frequent_words(["b a", "b c", "a d"], min_count=1) == ["a", "b", "c", "d"]
    assert frequent_words(["b a", "b c", "b d"], min_count=2) == ["b"]


def test_the_words_do_not_depend_on_the_order_of_the_captions():
    captions = [f"{random.Random(number).choice('abcdef')} word{number % 7}" for number in range(100)]
    shuffled = random.Random(1).sample(captions, len(captions))
    assert frequent_words(captions) == frequent_words(shuffled)


def test_a_special_in_a_caption_is_no_special(vocabulary):
    assert not set(split(" ".join(SPECIALS))) & set(SPECIALS)


def test_encoded_captions_start_end_and_are_padded(vocabulary):
    tokens = vocabulary.encode(["a cat", "a", " "])
    a, cat = (vocabulary.words.index(word) for word in ("a", "cat"))
    assert tokens.dtype == torch.int64
    assert tokens.tolist() == [[START, a, cat, END], [START, a, END, PAD], [START, END, PAD, PAD]]


def test_a_word_that_is_not_in_the_vocabulary_is_unknown(vocabulary):
    assert vocabulary.encode(["zebra"]).tolist() == [[START, UNKNOWN, END]]


def test_a_long_caption_is_cut_and_still_ends(vocabulary):
    tokens = vocabulary.encode(["a " * 100])
    assert tokens.shape == (1, MAX_WORDS + 2)
    assert tokens[0, -1] == END


@pytest.mark.parametrize("caption", CAPTIONS)
def test_decoding_gives_the_caption_back(vocabulary, caption):
    decoded = vocabulary.decode(vocabulary.encode([caption])[0].tolist())
    assert decoded == caption.lower().replace(" !", "!")


def test_all_captions_of_a_dataset_are_read_in_storage_order(tmp_path):
    made = make_packed(tmp_path, 20)
    captions = list(read_captions(DatasetReader(made.url)))
    assert captions == [caption for _, caption in made.pairs]


def test_a_dataset_without_json_gives_its_texts(tmp_path):
    with ShardWriter(open_store(str(tmp_path)), "made") as writer:
        writer.add("0", {"txt": "Fluß ".encode()}, RowInfo())
        writer.close()
    assert list(read_captions(DatasetReader(str(tmp_path)))) == ["Fluß "]


def test_the_loss_is_one_number_a_caption(model, vocabulary):
    losses = model(images(5), vocabulary.encode(CAPTIONS))
    assert losses.shape == (5,)
    assert (losses > 0).all()


def test_the_loss_is_the_mean_of_minus_the_logarithm_of_each_next_word(model, vocabulary):
    tokens = vocabulary.encode(["a cat"])
    seen = images(1)
    chances = model.scores(model.cells(seen), tokens[:, :-1]).log_softmax(dim=-1)[0]
    expected = -sum(chances[place, token] for place, token in enumerate(tokens[0, 1:])) / 3
    torch.testing.assert_close(model(seen, tokens)[0], expected)


def test_padding_does_not_change_the_loss(model, vocabulary):
    tokens = vocabulary.encode(["a cat"])
    padded = nn.functional.pad(tokens, (0, 7), value=PAD)
    torch.testing.assert_close(model(images(1), padded), model(images(1), tokens))


def test_a_word_is_chosen_without_knowing_the_later_ones(model, vocabulary):
    cells = model.cells(images(1))
    tokens = vocabulary.encode(CAPTIONS[:1])
    changed = tokens.clone()
    changed[:, 3:] = UNKNOWN
    torch.testing.assert_close(model.scores(cells, tokens)[:, :3], model.scores(cells, changed)[:, :3])


@pytest.mark.parametrize(("size", "cells"), [((64, 64), 64), ((48, 112), 84), ((9, 8), 2)])
def test_images_of_any_size_are_cut_into_cells(model, size, cells):
    assert model.cells(images(2, size)).shape == (2, cells, 32)


def test_where_something_is_seen_matters(model):
    flat = torch.zeros(1, 3, 64, 64)
    cells = model.cells(flat)[0]
    assert not torch.allclose(cells[18], cells[45])  # both far from the border, so only their places differ


def test_a_model_that_learned_nothing_still_ends_its_captions(model):
    captions = model.caption(images(3))
    assert len(captions) == 3
    assert all(len(split(caption)) <= MAX_WORDS for caption in captions)
    assert not any(special in caption for caption in captions for special in SPECIALS)


def test_it_learns_a_few_captions_by_heart(vocabulary):
    torch.manual_seed(0)
    model = Captioner(vocabulary, width=32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    seen, tokens, losses = images(5), vocabulary.encode(CAPTIONS), []
    for _ in range(80):
        loss = model(seen, tokens).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]
    assert model.eval().caption(seen) == [vocabulary.decode(row) for row in tokens.tolist()]
