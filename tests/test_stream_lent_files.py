"""stream/lent_files.py: files are used again, and never too many are there."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stream.lent_files import LentFiles
from stream.memory_file import MemoryFile

MIB = 1 << 20


class Lender:
    """Lent files, and which of their memory files are open."""

    def __init__(self, budget=64 * MIB):
        self.open, self._opened = {}, 0
        self.files = LentFiles(budget, self._new, self._drop)

    def _new(self, size):
        self._opened += 1
        file = self.open[self._opened] = MemoryFile(self._opened, size)
        return file

    def _drop(self, file):
        del self.open[file.number]
        file.close()

    def close(self):
        for file in list(self.open.values()):
            file.close()


@pytest.fixture
def lender():
    lender = Lender()
    yield lender
    lender.close()


def test_the_file_that_came_back_last_is_lent_first(lender):
    first, second = lender.files.take(MIB), lender.files.take(MIB)
    lender.files.give(first, again=True)
    lender.files.give(second, again=True)
    assert lender.files.take(MIB) is second
    assert lender.files.take(MIB) is first
    assert len(lender.open) == 2


@pytest.mark.parametrize(("size", "shares"), [(MIB, True), (MIB // 2, True), (MIB // 2 - 1, False), (MIB + 1, False)])
def test_a_file_of_nearly_the_size_is_used_again(lender, size, shares):
    file = lender.files.take(MIB)
    lender.files.give(file, again=True)
    assert (lender.files.take(size) is file) == shares


def test_a_worn_file_is_dropped_and_its_room_is_free(lender):
    file = lender.files.take(60 * MIB)
    assert lender.files.take(60 * MIB) is None
    lender.files.give(file, again=False)
    assert (lender.open, lender.files.file_bytes, len(lender.files)) == ({}, 0, 0)
    assert lender.files.take(60 * MIB) is not None


@pytest.mark.parametrize("size", [0, (1 << 18) - 1, 64 * MIB + 1])
def test_small_and_oversized_spans_are_not_lent(lender, size):
    assert lender.files.take(size) is None


def test_who_keeps_everything_gets_no_more_than_the_budget_and_no_more_than_32(lender):
    assert sum(lender.files.take(4 * MIB) is not None for _ in range(100)) == 16
    few = Lender()
    assert sum(few.files.take(1 << 18) is not None for _ in range(100)) == 32
    few.close()


def test_files_of_a_size_that_comes_no_more_make_room(lender):
    large = lender.files.take(50 * MIB)
    lender.files.give(large, again=True)
    assert lender.files.take(20 * MIB) is None
    taken = [lender.files.take(20 * MIB) for _ in range(20)]
    assert any(taken)
    assert large.number not in lender.open


class AnyOrder(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.lender, self.held = Lender(8 * MIB), []

    @rule(size=st.integers(0, 9 * MIB))
    def take(self, size):
        file = self.lender.files.take(size)
        if file is not None:
            assert file.size >= size
            assert file not in self.held
            self.held.append(file)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), again=st.booleans())
    def give(self, data, again):
        file = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.lender.files.give(file, again=again)

    @invariant()
    def all_is_within_bounds_and_accounted_for(self):
        files = self.lender.files
        assert files.file_bytes == sum(file.size for file in self.lender.open.values()) <= 8 * MIB
        assert len(files) == len(self.held)
        assert all(file in files and self.lender.open[file.number] is file for file in self.held)

    def teardown(self):
        self.lender.close()


AnyOrder.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase
