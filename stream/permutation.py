"""A permutation of ``range(n)`` that needs no memory and answers at any place at once.

Method: a Feistel network over the square ``a * a``, ``a = ceil(sqrt(n))``, with addition modulo ``a`` in place
of exclusive or, and cycle walking for the values in ``[n, a * a)`` (J. Black and P. Rogaway, "Ciphers with
Arbitrary Finite Domains", CT-RSA 2002). It is not meant to keep a secret, only to be even and never to change:
the numbers below are part of the order of every epoch, and test vectors pin them.

    mix(x)      splitmix64's finalizer: x ^= x >> 30; x *= 0xBF58476D1CE4E5B9; x ^= x >> 27;
                x *= 0x94D049BB133111EB; x ^= x >> 31, all modulo 2**64
    G           0x9E3779B97F4A7C15
    key         of words w: k = 0; for each w: k = mix((k ^ w) + G)
    round key   k[i] = mix(key + (i + 1) * G), i = 0..11
    F[i](r)     mix(k[i] + (r + 1) * G) >> 1
    round i     (left, right) -> (right, (left + F[i](right)) mod a), where x = left * a + right
    forward     12 rounds, again while the result is >= n; then, if bit 0 of mix(key) is set and n > 1,
                the results 0 and 1 change places

Twelve rounds, since with eight the pairs (forward(0), forward(1)) are visibly uneven for n below 20. The last
swap is there because the rounds alone reach every even permutation but for tiny n hardly an odd one.
"""

import math

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

ROUNDS = 12
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_MASK = 2**64 - 1
_LARGEST = 2**62  # values of the square, and sums with a 63-bit F, must stay below 2**64


def mix64(value: int) -> int:
    """The finalizer of splitmix64: a bijection of the integers in ``[0, 2**64)``."""
    value = (value ^ (value >> 30)) * _FIRST & _MASK
    value = (value ^ (value >> 27)) * _SECOND & _MASK
    return value ^ (value >> 31)


def derive_key(*words: int) -> int:
    """One 64-bit key out of whole numbers; each counts modulo 2**64, and so does their order."""
    key = 0
    for word in words:
        key = mix64(((key ^ (word & _MASK)) + _GOLDEN) & _MASK)
    return key


class Permutation:
    """A bijection of ``range(n)``, chosen by a 64-bit key. Immutable; O(1) memory.

    Args:
        n: Number of values, 0 to 2**62.
        key: As :func:`derive_key` makes it.

    Raises:
        ValueError: ``n`` is out of its bounds.
    """

    __slots__ = ("_keys", "_n", "_side", "_swap")

    def __init__(self, n: int, *, key: int) -> None:
        if not 0 <= n <= _LARGEST:
            raise ValueError(f"a permutation of {n} values: the number must be in [0, 2**62]")
        self._n = n
        self._side = math.isqrt(n - 1) + 1 if n else 0
        self._keys = tuple(mix64((key + (i + 1) * _GOLDEN) & _MASK) for i in range(ROUNDS))
        self._swap = mix64(key) & 1 if n > 1 else 0

    def __len__(self) -> int:
        return self._n

    def forward_one(self, value: int) -> int:
        """The image of one value in ``[0, n)``."""
        self._check(value, value)
        value = self._rounds_one(value)
        while value >= self._n:
            value = self._rounds_one(value)
        return value ^ self._swap if value <= 1 else value

    def inverse_one(self, value: int) -> int:
        """The value whose image is ``value``, which is in ``[0, n)``."""
        self._check(value, value)
        value = self._back_one(value ^ self._swap if value <= 1 else value)
        while value >= self._n:
            value = self._back_one(value)
        return value

    def forward(self, values: Integers) -> Integers:
        """The images of values in ``[0, n)``: int64, one dimension, a new array of equal length."""
        words = self._words(values)
        words = self._rounds(words)
        outside = np.flatnonzero(words >= self._n)
        while outside.size:
            words[outside] = self._rounds(words[outside])
            outside = outside[words[outside] >= self._n]
        return self._swapped(words).astype(np.int64)

    def inverse(self, values: Integers) -> Integers:
        """The values whose images are ``values``: int64, one dimension, a new array of equal length."""
        words = self._back(self._swapped(self._words(values)))
        outside = np.flatnonzero(words >= self._n)
        while outside.size:
            words[outside] = self._back(words[outside])
            outside = outside[words[outside] >= self._n]
        return words.astype(np.int64)

    def _check(self, low: int, high: int) -> None:
        if low < 0 or high >= self._n:
            wrong = low if low < 0 else high
            raise IndexError(f"{wrong} is outside of a permutation of {self._n} values")

    def _words(self, values: Integers) -> _Words:
        if values.size:
            self._check(int(values.min()), int(values.max()))
        return values.astype(np.uint64)

    def _swapped(self, words: _Words) -> _Words:
        if self._swap:
            words[words <= 1] ^= np.uint64(1)
        return words

    def _rounds_one(self, value: int) -> int:
        left, right = divmod(value, self._side)
        for key in self._keys:
            noise = mix64((key + (right + 1) * _GOLDEN) & _MASK) >> 1
            left, right = right, (left + noise) % self._side
        return left * self._side + right

    def _back_one(self, value: int) -> int:
        left, right = divmod(value, self._side)
        for key in reversed(self._keys):
            noise = mix64((key + (left + 1) * _GOLDEN) & _MASK) >> 1
            left, right = (right - noise) % self._side, left
        return left * self._side + right

    def _rounds(self, words: _Words) -> _Words:
        side = np.uint64(self._side)
        left, right = words // side, words % side
        for key in self._keys:
            left, right = right, (left + _noise(key, right)) % side
        return left * side + right

    def _back(self, words: _Words) -> _Words:
        side = np.uint64(self._side)
        left, right = words // side, words % side
        for key in reversed(self._keys):
            left, right = (right + (side - _noise(key, left) % side)) % side, left
        return left * side + right


def _noise(key: int, half: _Words) -> _Words:
    """F of one round for an array; arrays of uint64 wrap silently, which is the arithmetic meant here."""
    words = np.uint64(key) + (half + np.uint64(1)) * np.uint64(_GOLDEN)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_FIRST)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_SECOND)
    return (words ^ (words >> np.uint64(31))) >> np.uint64(1)
