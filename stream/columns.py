"""A finished batch as columns that can be cut by rows, for batches that their source made.

A column is a tensor or an array with at least one dimension (rows lie along the first), a list (its elements are
rows, never cut themselves) or a tuple of strings. Dicts, dataclasses, other tuples, and a list that is the whole batch
(but of strings or numbers) hold columns. All else (0-d tensors, numbers, a string) belongs to every row.

It is cut only if all columns agree in length: image patches that are no rows, or a list of something else, would be
cut in the wrong places without a word.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch

from stream.errors import SourceError


def rows_of(batch: object) -> int | None:
    """Return the number of rows of a batch, None where its columns disagree or there are none."""
    lengths = {len(column) for _, column in _columns(batch)}
    return lengths.pop() if len(lengths) == 1 else None


def sure_rows(batch: object) -> int:
    """Return the number of rows of a batch that is to be cut.

    Raises:
        SourceError: its columns disagree, or it has none; names a column of each length.
    """
    _refuse_samples(batch)
    names: dict[int, str] = {}
    for name, column in _columns(batch):
        names.setdefault(len(column), name)
    if len(names) == 1:
        return next(iter(names))
    if not names:
        raise SourceError("batch", f"is of type {type(batch).__name__} and has no column of rows to split; {_ADVICE}")
    found = ", ".join(f"{name} has {rows}" for rows, name in names.items())
    raise SourceError(list(names.values())[1], f"columns differ in their number of rows ({found}); {_ADVICE}")


def check_rows(batch: object, rows: int) -> None:
    """Make sure that a batch which was made of so many rows has as many, in one column at least or as their list.

    Raises:
        SourceError: it has columns, and each has another length.
    """
    if isinstance(batch, list | tuple) and len(batch) == rows:
        return
    found = {len(column): name for name, column in _columns(batch)}
    if found and rows not in found:
        told = ", ".join(f"{name} has {length}" for length, name in sorted(found.items()))
        problem = (
            f"returned another number of rows than the {rows} it was given ({told}), so a gather over the ranks would "
            "hang; return one for each, or say StreamOptions(same_rows=False)"
        )
        raise SourceError("the collate function", problem)


_ADVICE = "write DataLoaderConfiguration(split_batches=False), so that each rank gets whole batches"


def take_rows(batch: Any, rows: Sequence[int]) -> Any:  # noqa: ANN401 - a batch may be anything
    """Return the batch with these rows only, in this order; of neighbouring rows a view.

    Call `sure_rows` first: here all columns are taken for equally long.
    """
    return _mapped(batch, lambda column: _taken(column, rows), whole=True)


def _taken(column: Any, rows: Sequence[int]) -> Any:  # noqa: ANN401 - a column
    if isinstance(column, list | tuple):
        return type(column)(column[row] for row in rows)
    start, end = (rows[0], rows[-1] + 1) if rows else (0, 0)
    if list(rows) == list(range(start, end)):
        return column[start:end]
    return column[torch.tensor(rows)] if isinstance(column, torch.Tensor) else column[np.array(rows)]


def _is_column(value: object, *, whole: bool) -> bool:
    if isinstance(value, torch.Tensor) and value.is_nested:
        return False  # which has no size to ask for; refused where it would be carried
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.ndim > 0
    if isinstance(value, list):
        return not whole or _all(value, _PLAIN)
    return isinstance(value, tuple) and _all(value, (str, bytes))


_PLAIN = (str, bytes, bool, int, float, type(None))


def _all(values: Sequence[object], kinds: tuple[type, ...]) -> bool:
    return len(values) > 0 and all(isinstance(value, kinds) for value in values)


def _columns(batch: object) -> Iterator[tuple[str, Any]]:
    """Yield each column with its path, e.g. `batch['image']`."""
    found: list[tuple[str, Any]] = []

    def see(value: Any, path: str, *, whole: bool) -> None:  # noqa: ANN401 - a node of a batch
        if _is_column(value, whole=whole):
            found.append((path, value))
        for step, inner in [] if _is_column(value, whole=whole) else _inner(value):
            see(inner, path + step, whole=False)

    see(batch, "batch", whole=True)
    yield from found


def _refuse_samples(batch: object) -> None:
    if isinstance(batch, list | tuple) and batch and all(isinstance(sample, Mapping) for sample in batch):
        problem = f"is a {type(batch).__name__} of dicts: whether these are rows or columns cannot be told"
        raise SourceError("batch", f"{problem}; make one dict of columns of it, or give batch_size=")


def _inner(value: Any) -> list[tuple[str, Any]]:  # noqa: ANN401 - a node of a batch
    if isinstance(value, Mapping):
        return [(f"[{name!r}]", inner) for name, inner in value.items()]
    if isinstance(value, list | tuple):
        return [(f"[{place}]", inner) for place, inner in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return [(f".{field.name}", getattr(value, field.name)) for field in fields(value)]
    return []


def _mapped(value: Any, work: Callable[[Any], Any], *, whole: bool) -> Any:  # noqa: ANN401 - a node of a batch
    """Return the same structure with `work` done to each column."""
    if _is_column(value, whole=whole):
        return work(value)
    made = [_mapped(inner, work, whole=False) for _, inner in _inner(value)]
    if isinstance(value, Mapping):
        return _like(value, dict(zip(value, made, strict=True)))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*made)
    if isinstance(value, list | tuple):
        return type(value)(made)
    if is_dataclass(value) and not isinstance(value, type):
        changed = copy(value)
        for field, inner in zip(fields(value), made, strict=True):
            object.__setattr__(changed, field.name, inner)
        return changed
    return value


def _like(mapping: Any, values: dict[Any, Any]) -> Any:  # noqa: ANN401 - a mapping of any class
    """Return a mapping of the same class with these values."""
    if type(mapping) is dict:
        return values
    made = copy(mapping)  # keeps what the class holds besides: a default factory, an encoding
    for name, value in values.items():
        made[name] = value
    return made


def together(examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a batch of examples: by name, tensors of one shape and dtype as one, all else as lists.

    Raises:
        SourceError: they have not all the same names.
    """
    names = list(examples[0]) if examples else []
    for number, example in enumerate(examples):
        if set(example) != set(names):
            problem = (
                f"example {number} has the names {sorted(example)}, the first one {sorted(names)}; return the same"
            )
            raise SourceError("transform", problem)
    return {name: _stacked([example[name] for example in examples]) for name in names}


def _stacked(values: list[Any]) -> Any:  # noqa: ANN401 - a tensor or a list
    first = values[0]
    if all(isinstance(one, torch.Tensor) and (one.shape, one.dtype) == (first.shape, first.dtype) for one in values):
        if first.ndim == 3 and not first.is_contiguous() and first.permute(1, 2, 0).is_contiguous():  # noqa: PLR2004
            return torch.stack([one.permute(1, 2, 0) for one in values]).permute(0, 3, 1, 2)  # images, as they were
        return torch.stack(values)
    return values
