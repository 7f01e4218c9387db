"""A whole tensor or array as one run of bytes and back, strides kept.

What travels is the stretch of memory from the first element to the last, as it lies: no copy is made to pack it, and
the same strides laid over it give the same values on the other side. An expanded dim costs nothing that way. Only
where gaps are more than an eighth of the values (columns of a wide table), the values are first copied next to one
another, as ``clone()`` of torch and ``copy(order="K")`` of numpy lay them out.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from stream.layout import refusal

Bytes = NDArray[np.uint8]

_CARRIERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
"""By bytes of an element: a dtype that torch can copy, since it cannot copy each (int4)."""
_GAPS = 8  # a gap for so many values is cheaper to send than to close


def tensor_problem(tensor: torch.Tensor) -> str | None:
    """Why a tensor cannot be carried, with what to do, or None when it can."""
    if problem := refusal(tensor):
        return problem
    if type(tensor) is not torch.Tensor and tensor.numel() and not _has_memory(tensor):
        return f"is a {type(tensor).__name__} without values of its own; pass a plain tensor"
    return None


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor on the CPU without gradients, subclass, lazy conjugation or negation; shares memory where it can."""
    if type(tensor) is not torch.Tensor or tensor.requires_grad:
        tensor = tensor.detach().as_subclass(torch.Tensor)
    # Each call of torch gives the interpreter's lock up and has to wait for it again: only those that change something
    if not tensor.is_cpu:
        tensor = tensor.cpu()
    if tensor.dtype.is_complex:
        tensor = tensor.resolve_conj()
    return tensor.resolve_neg() if tensor.is_neg() else tensor


def tensor_span(tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """The bytes of a plain tensor, and the strides that belong to them.

    Args:
        tensor: On the CPU, of any dtype, shape and strides; see :func:`plain`.

    Returns:
        uint8 ``[n]``, contiguous, sharing memory with the tensor unless gaps had to be closed; strides in elements.
    """
    items = extent = tensor.numel()
    if not tensor.is_contiguous():
        extent = _extent(tensor)
        if extent > items + items // _GAPS:
            tensor = tensor.view(_CARRIERS[tensor.itemsize]).clone()
            extent = items
    return tensor.as_strided((extent,), (1,)).view(torch.uint8), tensor.stride()


def tensor_over(data: torch.Tensor, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """The tensor whose bytes these are: the inverse of :func:`tensor_span`; shares the memory of ``data``."""
    if not data.numel():  # bytes that are not there may stand at any offset, which view refuses
        return torch.empty_strided(shape, strides, dtype=dtype)
    return data.view(dtype).as_strided(shape, strides)


def tensor_bytes(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> int:
    """Bytes from the first to the last element."""
    if 0 in shape:
        return 0
    return itemsize * (1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)))


def array_problem(array: NDArray[np.generic]) -> str | None:
    """Why an array cannot be carried, with what to do, or None when it can."""
    if type(array) not in (np.ndarray, np.memmap):
        return f"is a {type(array).__name__}; pass numpy.asarray(value), and a mask beside it"
    return dtype_problem(array.dtype)


def dtype_problem(dtype: "np.dtype[np.generic]") -> str | None:
    """Why values of a numpy dtype cannot be carried, with what to do, or None when they can."""
    if dtype.hasobject:
        return f"has dtype {dtype}; pass a list, or an array of numbers or fixed-width text"
    if dtype.fields is not None:
        return f"has dtype {dtype}; pass a dict with an array for each field"
    if np.dtype(dtype.str) != dtype:
        return f"has dtype {dtype}, which is not numpy's own; pass a tensor"
    return None


def array_span(array: NDArray[np.generic]) -> tuple[Bytes, int, tuple[int, ...]]:
    """The bytes of an array, where element 0 stands in them, and the strides that belong to them.

    Returns:
        uint8 ``[n]``, contiguous, sharing memory with the array unless gaps had to be closed; the offset is above 0
        where strides are negative. Both offset and strides are in bytes.
    """
    if not array.nbytes:
        return np.empty(0, np.uint8), 0, array.strides
    array = np.asarray(array)
    if array.flags.forc:
        return array.ravel(order="K").view(np.uint8), 0, array.strides
    low, high = reach(array.shape, array.strides, array.itemsize)
    if high - low > array.nbytes + array.nbytes // _GAPS or any(step % array.itemsize for step in array.strides):
        return array_span(array.copy(order="K"))
    first = array[tuple(slice(None, None, -1 if stride < 0 else 1) for stride in array.strides)]
    count = (high - low) // array.itemsize
    run = as_strided(first, (count,), (array.itemsize,), writeable=False).view(np.uint8)
    return run, -low, array.strides


def array_over(
    data: Bytes, start: int, dtype: "np.dtype[np.generic]", shape: Sequence[int], strides: Sequence[int]
) -> NDArray[np.generic]:
    """The array whose element 0 stands at byte ``start`` of ``data``; shares its memory."""
    if math.prod(shape) * dtype.itemsize:
        return np.ndarray(tuple(shape), dtype, buffer=data, offset=start, strides=tuple(strides))
    return as_strided(np.empty(1, dtype), tuple(shape), tuple(strides))


def own_tensor(tensor: torch.Tensor, empty: Callable[[int], torch.Tensor]) -> torch.Tensor:
    """The plain tensor, copied if its storage holds more than itself; strides as :func:`tensor_span` gives them.

    ``empty`` gives the memory of a copy: uint8 of so many bytes.
    """
    data, strides = tensor_span(tensor)
    if data.untyped_storage().nbytes() <= data.numel():
        return tensor if tensor.stride() == strides else tensor_over(data, tensor.dtype, tensor.shape, strides)
    return tensor_copy(tensor, empty)


def tensor_copy(tensor: torch.Tensor, empty: Callable[[int], torch.Tensor]) -> torch.Tensor:
    """A copy of the plain tensor in memory of ``empty``; strides as :func:`tensor_span` gives them."""
    data, strides = tensor_span(tensor)
    memory = empty(data.numel())
    np.copyto(memory.numpy(), data.numpy())
    return tensor_over(memory, tensor.dtype, tensor.shape, strides)


def own_array(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """The array, copied if what is behind it holds more than itself; strides as :func:`array_span` gives them."""
    data, _, _ = array_span(array)
    if type(array) is np.ndarray and array.flags.writeable and _holds(array) <= data.nbytes:
        return array
    return array_copy(array)


def array_copy(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """A copy of the array, writable; strides as :func:`array_span` gives them."""
    data, start, strides = array_span(array)
    return array_over(data.copy(), start, array.dtype, array.shape, strides)


def _holds(array: NDArray[np.generic]) -> float:
    """Bytes that stay in memory as long as the array does."""
    root: object = array
    while isinstance(root, np.ndarray) and root.base is not None:
        root = root.base
    if isinstance(root, torch.Tensor):
        return root.untyped_storage().nbytes()
    return root.nbytes if isinstance(root, np.ndarray) else math.inf


def _extent(tensor: torch.Tensor) -> int:
    """Elements from the first to the last in memory, gaps included, repetitions not."""
    return tensor_bytes(tensor.shape, tensor.stride(), 1)


def reach(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> tuple[int, int]:
    """Bytes from element 0 of an array to where its memory starts, 0 or less, and ends; 0 and 0 for an empty one."""
    if 0 in shape:
        return 0, 0
    ways = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    return sum(way for way in ways if way < 0), sum(way for way in ways if way > 0) + itemsize


def _has_memory(tensor: torch.Tensor) -> bool:
    storage = tensor.untyped_storage()
    if storage.device != tensor.device:  # of a fake tensor
        return False
    try:
        return storage.data_ptr() != 0
    except RuntimeError:  # a tensor that wraps others forbids the question
        return False
