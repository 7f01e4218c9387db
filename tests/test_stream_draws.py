"""What is drawn for a row from where it stands."""

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from stream.draws import draw, row_seed

PLACE = {"seed": 0, "epoch": 0, "position": 0}
WORDS = st.integers(0, 2**64 - 1)


def words(purpose, seed, epoch, position):
    numbers = b"".join(number.to_bytes(8, "little") for number in (seed, epoch, position))
    return xxhash.xxh3_64_intdigest(purpose.ljust(8, b"\0") + numbers)


@given(WORDS, WORDS, WORDS, st.integers(1, 2**20))
def test_a_draw_is_what_its_formula_says(seed, epoch, position, count):
    place = {"seed": seed, "epoch": epoch, "position": position}
    assert draw(count, **place) == words(b"caption", seed, epoch, position) * count >> 64
    assert row_seed(**place) == words(b"augment", seed, epoch, position)


def test_the_seeds_of_rows_are_pinned():
    assert [row_seed(**{**PLACE, "position": position}) for position in range(3)] == [
        2870930310323481349,
        9118259993412082170,
        9859894984308062543,
    ]


@pytest.mark.parametrize("other", [{"seed": 1}, {"epoch": 1}, {"position": 1}])
def test_another_place_is_another_seed(other):
    assert row_seed(**PLACE) != row_seed(**{**PLACE, **other})
