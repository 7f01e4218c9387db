"""Tensors as rows of bytes and back, strides kept; the copy is made only where a tensor has gaps.

A collective of gloo knows neither int16 nor unsigned nor 8-bit float types, and none keeps strides. As uint8 of
shape [rows, bytes of a row] every dtype travels, and the same view of the memory is laid over it on the other side.
"""

import math

import msgspec
import torch


class Layout(msgspec.Struct, frozen=True, array_like=True):
    """How to see the bytes of a tensor's rows.

    Attributes:
        dtype: Name of the torch dtype, e.g. ``float32``.
        shape: Shape of one row, i.e. without dim 0.
        strides: Strides of all dims in elements, dim 0 included.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def refusal(tensor: torch.Tensor) -> str | None:
    """Why a tensor cannot be seen as bytes, with what to do, or None when it can."""
    if tensor.is_nested:
        return "is a nested tensor; pass a list with one tensor for each row"
    if tensor.layout is not torch.strided:
        return f"is sparse ({tensor.layout}); pass .to_dense() or its parts"
    if tensor.is_quantized:
        return "is quantized; pass .dequantize() or .int_repr()"
    if tensor.is_meta:
        return 'is on device "meta", so it has no values; pass a real tensor'
    return None


def to_rows(tensor: torch.Tensor) -> tuple[torch.Tensor, Layout]:
    """The bytes of each row of a tensor.

    Args:
        tensor: Dim 0 is the rows, at least one. Any dtype and strides; gradients stay behind, a subclass becomes a
            plain tensor.

    Returns:
        uint8 ``[rows, bytes of a row]``, contiguous. It shares memory with a tensor without gaps whose rows follow
        one another (contiguous, channels_last, a permutation of the other dims); any other is copied to C order.
    """
    tensor = tensor.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg()
    if not _is_dense(tensor):
        tensor = tensor.contiguous()
    rows = tensor.shape[0]
    row_items = math.prod(tensor.shape[1:])
    flat = tensor.as_strided((rows, row_items), (row_items, 1)).view(torch.uint8)
    return flat, Layout(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape[1:]), tensor.stride())


def from_rows(data: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Lay a layout over the bytes of some rows: the inverse of :func:`to_rows` for any run of its rows.

    Args:
        data: uint8 ``[rows, bytes of a row]``, its storage offset a multiple of the element's size.
        layout: As :func:`to_rows` returned it.

    Returns:
        A tensor that shares the memory of ``data``.
    """
    dtype: torch.dtype = getattr(torch, layout.dtype)
    shape = (data.shape[0], *layout.shape)
    if not data.numel():  # a slice without bytes may stand at any offset, which view refuses
        return torch.empty_strided(shape, layout.strides, dtype=dtype, device=data.device)
    return data.reshape(-1).view(dtype).as_strided(shape, layout.strides)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements lie without gaps, in some order of the dims in which dim 0 is first."""
    if tensor.numel() == 0:
        return True
    dims = [(stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
    inner = sorted(dims[1:]) if tensor.shape[0] > 1 else sorted(dims)
    expected = 1
    for stride, size in [*inner, *(dims[:1] if tensor.shape[0] > 1 else ())]:
        if stride != expected:
            return False
        expected *= size
    return True
