"""How many steps an epoch of a torch DataLoader has once it is dispatched: what `len` of the prepared loader says."""

from typing import Any, cast

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from stream.loader_portions import Splitting
from stream.schedule import Schedule


def rows_of(loader: DataLoader[Any]) -> int:
    """Return the rows of an epoch, or the batches where the dataset makes them.

    Raises:
        TypeError: the dataset or the sampler does not tell its length.
    """
    if isinstance(loader.dataset, IterableDataset):
        return len(cast("Any", loader.dataset))
    if type(loader.batch_sampler) is BatchSampler:
        return len(cast("Any", loader.batch_sampler.sampler))
    return len(cast("Any", loader.batch_sampler or loader.sampler))


def batch_size_of(loader: DataLoader[Any]) -> int | None:
    """Return the rows of a batch; None where nobody but the dataset, or a sampler of the user's own, knows it."""
    if loader.batch_sampler is None or isinstance(loader.dataset, IterableDataset):
        return loader.batch_size
    size = getattr(loader.batch_sampler, "batch_size", None)
    return size if isinstance(size, int) else None


def is_cut_by_rows(loader: DataLoader[Any]) -> bool:
    """Tell whether steps are cut out of single rows, and not out of batches or of a sampler's lists."""
    own = None if isinstance(loader.dataset, IterableDataset) else loader.batch_sampler
    return batch_size_of(loader) is not None and (own is None or type(own) is BatchSampler)


def steps_of(loader: DataLoader[Any], splitting: Splitting, portion: int) -> int:
    """Return the steps in which a portion gets at least one row.

    Raises:
        TypeError: as `rows_of`.
    """
    rows, size = rows_of(loader), batch_size_of(loader)
    batches = 1 if splitting.split_batches else splitting.portions
    if not is_cut_by_rows(loader) or size is None:
        return rows // batches if splitting.drop_last else -(-rows // batches)
    schedule = Schedule(
        rows,
        global_batch=size * batches,
        ranks=splitting.portions,
        drop_last=splitting.drop_last,
        even_batches=splitting.even_batches,
    )
    return schedule.steps_of(portion)
