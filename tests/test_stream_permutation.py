"""The permutation that every order is made of."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.permutation import Permutation, derive_key, mix64

SIZES = st.one_of(st.integers(1, 300), st.sampled_from([1023, 1024, 1025, 4096, 4097]))
KEYS = st.integers(0, 2**64 - 1)


def everything(n):
    return np.arange(n, dtype=np.int64)


def test_mix_is_the_finalizer_of_splitmix64():
    # The first three outputs of splitmix64 from state 0, as its reference code prints them.
    golden = 0x9E3779B97F4A7C15
    outputs = [mix64(golden * number % 2**64) for number in (1, 2, 3)]
    assert outputs == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_keys_are_pinned():
    assert derive_key() == 0
    assert derive_key(0) == 0xE220A8397B1DCDAF
    assert derive_key(1, 0, 0, 0) == 0xE28195DDD9EE4956
    assert derive_key(1, 2, 3, 4) == 0xD55CCD4AEB3CCAFB


def test_words_count_modulo_2_to_the_64_and_in_their_order():
    assert derive_key(-1) == derive_key(2**64 - 1)
    assert derive_key(1, 2) != derive_key(2, 1)


def test_small_permutations_are_pinned():
    assert Permutation(10, key=0).forward(everything(10)).tolist() == [8, 2, 7, 9, 3, 0, 4, 1, 6, 5]
    assert Permutation(10, key=1).forward(everything(10)).tolist() == [4, 7, 5, 0, 8, 6, 1, 9, 3, 2]


def test_large_permutations_are_pinned():
    permutation = Permutation(10**9, key=derive_key(3, 0, 0, 0))
    assert [permutation.forward_one(value) for value in (0, 1, 2, 10**9 - 1)] == [
        824753894,
        695299845,
        845964882,
        863091795,
    ]
    assert [Permutation(2**62, key=5).forward_one(value) for value in (0, 2**62 - 1)] == [
        2454869688814922420,
        3416974563402254466,
    ]


@given(SIZES, KEYS)
def test_every_value_has_one_image_and_the_inverse_finds_it(n, key):
    permutation = Permutation(n, key=key)
    images = permutation.forward(everything(n))
    assert sorted(images.tolist()) == list(range(n))
    assert permutation.inverse(images).tolist() == list(range(n))


@given(st.integers(1, 2**62), KEYS, st.data())
def test_one_value_and_many_agree_at_any_size(n, key, data):
    values = data.draw(st.lists(st.integers(0, n - 1), max_size=5))
    permutation = Permutation(n, key=key)
    images = [permutation.forward_one(value) for value in values]
    assert permutation.forward(np.array(values, dtype=np.int64)).tolist() == images
    assert permutation.inverse(np.array(images, dtype=np.int64)).tolist() == values
    assert [permutation.inverse_one(image) for image in images] == values


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_all_orders_of_few_values_come_up_equally_often(n):
    trials = 40 * math.factorial(n)
    seen = Counter(tuple(map(Permutation(n, key=derive_key(seed)).forward_one, range(n))) for seed in range(trials))
    assert len(seen) == math.factorial(n)
    chi_squared = sum((count - 40) ** 2 / 40 for count in seen.values())
    freedom = math.factorial(n) - 1
    assert abs(chi_squared - freedom) < 4 * math.sqrt(2 * freedom)


def test_neighbours_do_not_stay_neighbours():
    images = Permutation(100_000, key=7).forward(everything(100_000))
    assert np.count_nonzero(np.abs(np.diff(images)) == 1) < 20  # 2 are expected of chance
    assert abs(np.abs(images - everything(100_000)).mean() / 100_000 - 1 / 3) < 0.005


def test_an_empty_permutation_permutes_nothing():
    permutation = Permutation(0, key=1)
    assert len(permutation) == 0
    assert permutation.forward(everything(0)).tolist() == []
    with pytest.raises(IndexError, match="0 is outside"):
        permutation.forward_one(0)


@pytest.mark.parametrize("value", [-1, 10])
def test_a_value_outside_is_refused(value):
    permutation = Permutation(10, key=1)
    for ask in (permutation.forward_one, permutation.inverse_one):
        with pytest.raises(IndexError, match=f"{value} is outside of a permutation of 10 values"):
            ask(value)
    for ask in (permutation.forward, permutation.inverse):
        with pytest.raises(IndexError, match=f"{value} is outside of a permutation of 10 values"):
            ask(np.array([3, value], dtype=np.int64))


@pytest.mark.parametrize("n", [-1, 2**62 + 1])
def test_a_size_out_of_bounds_is_refused(n):
    with pytest.raises(ValueError, match="must be in"):
        Permutation(n, key=0)
