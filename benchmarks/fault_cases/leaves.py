"""Comparing what a batch holds with what it should hold, types and strides included."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def difference(got: Any, wanted: Any, path: str = "batch") -> str | None:  # noqa: ANN401 - any batch
    """Return where and how two batches differ, None where they do not."""
    if type(got) is not type(wanted):
        return f"{path} is a {type(got).__name__}, not a {type(wanted).__name__}"
    if isinstance(got, torch.Tensor | np.ndarray):
        return _array_difference(got, wanted, path)
    inside = _children(got), _children(wanted)
    if inside[0] is None or inside[1] is None:
        return None if got == wanted else f"{path} is {got!r}, not {wanted!r}"
    if list(inside[0]) != list(inside[1]):
        return f"{path} has {list(inside[0])}, not {list(inside[1])}"
    pairs = ((key, difference(one, inside[1][key], f"{path}[{key!r}]")) for key, one in inside[0].items())
    return next((words for _, words in pairs if words is not None), None)


def _children(value: Any) -> dict[Any, Any] | None:  # noqa: ANN401 - any leaf or container
    """Return what a container holds, by key, field or place; None for a leaf."""
    if dataclasses.is_dataclass(value):
        return vars(value)
    if isinstance(value, Mapping):
        return dict(value)
    return dict(enumerate(value)) if isinstance(value, list | tuple) else None


def _array_difference(got: Any, wanted: Any, path: str) -> str | None:  # noqa: ANN401 - tensors or arrays
    kinds = [f"{one.dtype} {tuple(one.shape)} {_strides(one)}" for one in (got, wanted)]
    if kinds[0] != kinds[1]:
        return f"{path} is {kinds[0]}, not {kinds[1]}"
    return None if _bytes(got) == _bytes(wanted) else f"{path} has other values"


def _strides(one: Any) -> tuple[int, ...]:  # noqa: ANN401 - tensor or array
    return tuple(one.stride()) if isinstance(one, torch.Tensor) else tuple(one.strides)


def _bytes(one: Any) -> bytes:  # noqa: ANN401 - tensor or array
    if isinstance(one, torch.Tensor):
        one = one.contiguous().flatten().view(torch.uint8).numpy()
    return bytes(np.ascontiguousarray(one).tobytes())
