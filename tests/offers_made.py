"""Steps for tests of the exchange: every portion is full of its own row number, and who makes a batch checks it."""

import struct

import numpy as np

from stream.offers import StepOffer

_HEADER = struct.Struct("<QQQ")


class Numbered:
    """An offer of `size` bytes that say step and share; `before` is called by each fill.

    As "rows" it travels in memory to each rank; a "batch" is given to rank 0 as it is.
    """

    def __init__(self, step, share, size, *, slow=False, before=None, kind="rows"):
        self.step, self.share, self.size, self.slow, self.kind = step, share, size, slow, kind
        self.header = _HEADER.pack(step, share, size)
        self.before = before

    reads = None

    def fill_at_once(self, memory):
        return False  # as where it would have to wait

    def local(self, empty):
        body = np.empty(self.size, np.uint8)
        self.fill(body)
        return self.header, body

    def fill(self, memory):
        if self.before is not None:
            self.before()
        assert len(memory) == self.size
        memory[:] = pattern(self.step, self.share, self.size)


def pattern(step, share, size):
    """Return bytes that repeat the number of the row, so that any part of another row's is noticed."""
    words = np.full(size // 8 + 1, (step + 1) * 1000 + share, np.uint64)
    return words.view(np.uint8)[:size]


def checked(arrived):
    """Make a batch of a portion as a rank does: (step, share, size), after every byte was looked at."""
    if arrived.portion.kind == "thing":
        header, body = arrived.thing
    else:
        header, body = arrived.header, arrived.body
    step, share, size = _HEADER.unpack(header)
    assert step == arrived.portion.step
    assert np.array_equal(body, pattern(step, share, size)), f"step {step} holds bytes of another row"
    return (step, share, size), size


def step_offer(step, shares=2, *, size=1000, last=False, **options):
    """Return the offer of a step with a portion for each share; `size` may be one number for each of them."""
    sizes = [size] * shares if isinstance(size, int) else size
    ends = [last] * shares if isinstance(last, bool) else last
    portions = [None if each is None else Numbered(step, share, each, **options) for share, each in enumerate(sizes)]
    return StepOffer(portions, shares * 4, ends, (step + 1) * shares * 4, f"row {step}")


def steps_offered(count, shares=2, **options):
    """Return what makes an epoch of so many steps."""

    def offers():
        for step in range(count):
            yield step_offer(step, shares, last=step == count - 1, **options)

    return offers
