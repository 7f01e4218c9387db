"""What is random about a row, drawn from where it stands: the same for any number of ranks and after resume.

A draw is xxh3_64 (https://xxhash.com) of 32 bytes: 8 bytes that name its purpose, padded with zero bytes, then seed,
epoch and position as unsigned 64-bit little-endian words. No global generator is read or moved.
"""

from struct import Struct

import xxhash

_WORDS = Struct("<8sQQQ")


def draw(count: int, *, seed: int, epoch: int, position: int) -> int:
    """A number in ``[0, count)`` that chooses a row's caption.

    It is ``h * count >> 64`` with h the draw of purpose ``caption``. No number is likelier than another by more than
    ``count / 2**64``.
    """
    return xxhash.xxh3_64_intdigest(_WORDS.pack(b"caption", seed, epoch, position)) * count >> 64


def row_seed(*, seed: int, epoch: int, position: int) -> int:
    """The seed of a row's own generator, in ``[0, 2**64)``: the draw of purpose ``augment``."""
    return xxhash.xxh3_64_intdigest(_WORDS.pack(b"augment", seed, epoch, position))
