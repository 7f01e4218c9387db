"""stream/making.py: what arrived becomes the batch that the training loop gets, with about its size."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from stream.collate import CollateOptions, Collator
from stream.making import Maker
from stream.offers import BatchOffer
from stream.staging import Stager
from stream.wire import pack, write

CPU = torch.device("cpu")


@pytest.fixture
def maker():
    made = Maker(Collator(CollateOptions(None)), Stager(CPU, pin=False, non_blocking=False), verify=True)
    yield made
    made.close()


def packed(batch, *, owned=False):
    parts = pack(batch)
    body = np.zeros(parts.size, np.uint8)
    write(parts, body)
    return SimpleNamespace(portion=SimpleNamespace(kind="batch"), header=parts.header, body=body, owned=owned)


def test_a_packed_batch_is_unpacked_into_memory_of_its_own(maker):
    arrived = packed({"x": torch.arange(1000), "key": ["a", "b"]})
    staged, size = maker(arrived)
    arrived.body[:] = 0
    assert staged.batch["x"].tolist() == list(range(1000))
    assert staged.batch["key"] == ["a", "b"]
    assert size == 8000


def test_memory_that_is_the_portions_own_is_not_copied(maker):
    arrived = packed({"x": torch.arange(1000)}, owned=True)
    staged, _ = maker(arrived)
    assert np.shares_memory(staged.batch["x"].numpy(), arrived.body)


def test_a_batch_that_never_left_the_process_owns_its_storage(maker):
    whole = torch.arange(1000)
    offer = BatchOffer({"x": whole[:10]})
    arrived = SimpleNamespace(portion=SimpleNamespace(kind="thing"), thing=offer.local())
    staged, size = maker(arrived)
    assert staged.batch["x"].untyped_storage().nbytes() == 80
    assert size == 80


@dataclass
class Pair:
    left: torch.Tensor
    right: list


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (torch.zeros(4, dtype=torch.float32), 16),
        (np.zeros(4, np.float64), 32),
        ({"a": np.zeros(3, np.uint8), "b": [torch.zeros(2, dtype=torch.int64), (np.ones(1, np.int16),)]}, 21),
        (Pair(torch.zeros(2, dtype=torch.int32), [np.zeros(5, np.uint8)]), 13),
        ([b"12345", "text", 3, None], 5),
    ],
)
def test_the_size_counts_all_memory_of_a_batch(maker, batch, size):
    assert maker(packed(batch))[1] == size
