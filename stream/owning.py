"""A batch whose tensors and arrays have memory of their own."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from stream.containers import Walk, build
from stream.spans import (
    array_copy,
    array_problem,
    dtype_problem,
    own_array,
    own_tensor,
    plain,
    tensor_copy,
    tensor_problem,
)

Empty: TypeAlias = Callable[[int], torch.Tensor]
"""Gives new memory of so many bytes: a uint8 tensor [bytes] on the CPU."""


def owned(batch: object, *, empty: Empty | None = None) -> Any:  # noqa: ANN401 - whatever a batch is
    """The batch as :func:`stream.wire.unpack` would give it, without a copy of what already has memory of its own.

    Containers are new. A tensor or array whose memory holds more than itself is copied, a tensor into memory of
    ``empty`` (default: torch's own); any other is shared.

    Raises:
        SourceError: As :func:`stream.wire.pack`.
    """
    return _Owner(empty or new_memory).value(batch)


def new_memory(nbytes: int) -> torch.Tensor:
    """Return uint8 [nbytes] from torch's allocator."""
    return torch.empty(nbytes, dtype=torch.uint8)


class _Owner(Walk):
    """Gives each leaf memory of its own, in new containers."""

    def __init__(self, empty: Empty) -> None:
        super().__init__()
        self._empty = empty
        self._seen: set[int] = set()  # memories that a leaf of this batch has: another one gets its own, as elsewhere

    leaves = dict.fromkeys((bytes, bytearray, complex), "same")

    def same(self, value: object) -> object:
        return value

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if problem := tensor_problem(tensor):
            self.refuse(problem)
        found = own_tensor(plain(tensor), self._empty)
        if self._is_again(found.data_ptr()):
            found = tensor_copy(found, self._empty)
        return found

    def array(self, array: NDArray[np.generic]) -> NDArray[np.generic]:
        if problem := array_problem(array):
            self.refuse(problem)
        found = own_array(array)
        return array_copy(found) if self._is_again(found.ctypes.data) else found

    def _is_again(self, address: int) -> bool:
        known = address in self._seen
        self._seen.add(address)
        return known and address != 0

    def scalar(self, scalar: np.generic) -> np.generic:
        if problem := dtype_problem(scalar.dtype):
            self.refuse(problem)
        return scalar

    def container(self, value: object) -> object:
        if type(value) is list:
            return self.each(range(len(value)), value)
        return build(*self.parts(value))
