"""stream/heap.py: memory within a budget, with a slab's interface."""

import numpy as np
import pytest

from stream.errors import SlabError
from stream.heap import Heap


def test_a_span_is_writable_memory_that_no_file_holds():
    span = Heap(100).allocate(10)
    assert (span.file, span.offset, span.size, span.new_fd) == (-1, 0, 10, None)
    assert span.memory.dtype == np.uint8
    span.memory[:] = 7
    assert span.memory.tolist() == [7] * 10


def test_spans_have_rising_numbers():
    heap = Heap(100)
    numbers = [heap.allocate(1).number for _ in range(3)]
    assert numbers == sorted(set(numbers))


def test_what_is_held_stays_within_the_budget():
    heap = Heap(100)
    first, second = heap.allocate(60), heap.allocate(40)
    assert heap.held_bytes == 100
    assert heap.allocate(1) is None
    heap.release(first.number)
    assert heap.allocate(61) is None
    assert heap.allocate(60) is not None
    heap.release(second.number)
    assert heap.held_bytes == 60


def test_a_span_larger_than_the_budget_is_let_through_alone():
    heap = Heap(100)
    small = heap.allocate(0)
    assert heap.allocate(101) is None
    heap.release(small.number)
    large = heap.allocate(101)
    assert large.size == 101
    assert heap.allocate(1) is None


def test_a_span_that_is_not_held_cannot_be_released_or_sent():
    heap = Heap(100)
    span = heap.allocate(1)
    heap.sent(span.number)
    heap.release(span.number)
    for call in (heap.release, heap.sent):
        with pytest.raises(KeyError):
            call(span.number)


def test_no_file_is_ever_opened_or_dropped():
    heap = Heap(100)
    heap.release(heap.allocate(10).number)
    assert (heap.files(), heap.dropped(), heap.file_bytes) == ([], [], 0)


def test_a_closed_heap_holds_nothing_and_gives_nothing():
    heap = Heap(100)
    heap.allocate(10)
    heap.close()
    heap.close()
    assert heap.held_bytes == 0
    with pytest.raises(SlabError, match="it was closed"):
        heap.allocate(1)
