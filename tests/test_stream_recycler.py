"""Memory that batches leave: used again, but never while anything of it lives."""

import gc
import threading

import numpy as np
import pytest
import torch

from stream.recycler import Recycler

LARGE = 1 << 20


def test_memory_is_used_again_once_nobody_has_it():
    recycler = Recycler(1 << 30)
    first = recycler.empty(LARGE)
    place = first.data_ptr()
    del first
    assert recycler.empty(LARGE).data_ptr() == place


@pytest.mark.parametrize(
    "keep",
    [
        lambda tensor: tensor[10:20],
        lambda tensor: tensor.view(torch.float32),
        lambda tensor: tensor.numpy(),
        lambda tensor: tensor.untyped_storage(),
        lambda tensor: {"image": [tensor.view(-1, 4).permute(1, 0)]},
    ],
)
def test_memory_is_not_used_again_while_a_view_of_it_lives(keep):
    recycler = Recycler(1 << 30)
    tensor = recycler.empty(LARGE)
    place, kept = tensor.data_ptr(), keep(tensor)
    del tensor
    gc.collect()
    assert recycler.empty(LARGE).data_ptr() != place
    del kept


def test_sizes_that_are_nearly_equal_share_memory():
    recycler = Recycler(1 << 30)
    place = recycler.empty(LARGE + 1000).data_ptr()
    assert recycler.empty(LARGE + 5000).data_ptr() == place
    assert recycler.empty(LARGE - 5000).data_ptr() == place


def test_memory_is_not_kept_for_batches_of_another_size():
    recycler = Recycler(1 << 30)
    recycler.empty(8 * LARGE)
    tensor = recycler.empty(LARGE)
    assert tensor.numel() == LARGE
    assert not recycler._waiting


def test_what_waits_is_bounded_in_pieces_and_bytes():
    few = Recycler(1 << 30)
    tensors = [few.empty(LARGE) for _ in range(10)]
    tensors.clear()
    assert len(few._waiting) == 4
    small = Recycler(3 * LARGE)
    tensors = [small.empty(LARGE) for _ in range(10)]
    tensors.clear()
    assert sum(map(len, small._waiting)) <= 3 * LARGE


@pytest.mark.parametrize("size", [0, 1, 1000, 1 << 24])
def test_small_memory_and_memory_above_the_budget_are_plain(size):
    recycler = Recycler(1 << 22)
    assert recycler.empty(size).shape == (size,)
    assert not recycler._waiting


def test_every_tensor_is_writable_and_has_exactly_the_bytes_asked_for():
    tensor = Recycler(1 << 30).empty(LARGE + 7)
    tensor.fill_(5)
    assert (tensor.dtype, tensor.numel(), int(tensor.sum(dtype=torch.int64))) == (
        torch.uint8,
        LARGE + 7,
        5 * (LARGE + 7),
    )


def test_threads_never_get_the_same_memory():
    recycler = Recycler(1 << 30)
    faults = []

    def use(mark):
        for _ in range(200):
            tensor = recycler.empty(1 << 18)
            tensor.fill_(mark)
            if not bool((np.asarray(tensor) == mark).all()):
                faults.append(mark)

    threads = [threading.Thread(target=use, args=(mark,)) for mark in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
