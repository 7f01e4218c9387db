import argparse

import pytest

from argument_types import choice, listed, out_file, seconds, whole


def test_values_stand_between_commas_and_count_once():
    assert listed(whole(1))("4, 2,4") == [4, 2]


def test_a_choice_is_one_of_its_words():
    assert choice(("on", "off"))("off") == "off"


def test_a_file_in_a_folder_that_exists_can_be_written(tmp_path):
    assert out_file(str(tmp_path / "a.json")) == tmp_path / "a.json"


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        (whole(2), "1", "no whole number of 2 or more"),
        (whole(0), "-1", "no whole number"),
        (whole(0), "1.0", "no whole number"),
        (choice(("on", "off")), "of", "'of' is none of on, off"),
        (seconds, "0", "no time above 0"),
        (seconds, "nan", "no time above 0"),
        (seconds, "soon", "no time above 0"),
        (listed(whole(1)), "1,,2", "no whole number"),
        (out_file, "/no/such/folder/a.json", "cannot be written"),
    ],
)
def test_a_wrong_word_is_refused_with_a_sentence(read, text, words):
    with pytest.raises(argparse.ArgumentTypeError, match=words):
        read(text)
