"""Our dispatcher in accelerate's place, on request: every loader that is prepared afterwards is dispatched by ours.

What is replaced, and put back by `installed`:

    accelerate.data_loader.DataLoaderDispatcher   by our subclass of it
    Accelerator.prepare_data_loader               since accelerate does not pass even_batches on to a dispatcher, and
                                                  loses the sampler of batches that a dataset makes
    Accelerator._prepare_one                      since accelerate lets every rank read all of an IterableDataset that
                                                  is prepared without a DataLoader around it
    skip_first_batches                            its code, so that scripts that imported it before have ours too
"""

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, cast

import accelerate
import torch
from accelerate import Accelerator, data_loader
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from stream.by_lists import ByLists
from stream.dispatcher import Dispatcher
from stream.errors import OptionError

CHECKED = ("1.13.0", "1.14.0", "1.15.0")
"""The versions of accelerate with which accelerate's own checks and ours were run."""

_STOCK = data_loader.DataLoaderDispatcher
_log = logging.getLogger("stream")
_no_loaders: set[type] = set()


def install() -> None:
    """Put our dispatcher in the place of accelerate's, for loaders prepared from now on. Once more does nothing.

    `accelerator.prepare(DataLoader(...))` in dispatch mode then gives a loader that sends each rank its own portion of
    each step, with all that the DataLoader and the Accelerator's configuration say; shard mode stays accelerate's own.
    `skip_first_batches` skips whole steps and keeps everything.

    How long a learning rate schedule is has to be said as accelerate counts it: a prepared scheduler is stepped once
    for each rank unless batches are split, so for one epoch write
    `T_max=len(loader) * (1 if accelerator.split_batches else accelerator.num_processes)` with the prepared `loader`,
    divided by the accumulated steps (`StreamLoader.scheduler_steps` says it for ours).

    An IterableDataset (such as a webdataset pipeline) that is prepared without a DataLoader around it is dispatched as
    batches that it makes itself, unless `dispatch_batches` is False; of any other iterable a warning is logged.

    Loaders that are prepared by accelerate's function `prepare_data_loader`, without an Accelerator, have even batches:
    the function does not pass on what it was told of them. Not thread-safe.

    Raises:
        OptionError: this version of accelerate was not checked; names those that were.
    """
    if accelerate.__version__ not in CHECKED:
        problem = f"was not checked with this project; install one of {', '.join(CHECKED)}, or use StreamLoader"
        raise OptionError("accelerate", accelerate.__version__, problem)
    if not _is_installed():
        _put(_OURS)


@contextmanager
def installed() -> Iterator[None]:
    """Install our dispatcher within a `with` block; afterwards accelerate is what it was before.

    Loaders that were prepared within go on working.

    Raises:
        OptionError: as `install`.
    """
    before = _Places.now()
    install()
    try:
        yield
    finally:
        _put(before)


@dataclass(frozen=True)
class _Places:
    """What stands in the places that are replaced."""

    dispatcher: type
    prepare_data_loader: Callable[..., Any]
    prepare_one: Callable[..., Any]
    skip_code: CodeType

    @classmethod
    def now(cls) -> "_Places":
        skip = cast("FunctionType", data_loader.skip_first_batches)
        prepare_one = Accelerator._prepare_one  # noqa: SLF001 - accelerate has no public place for it
        return cls(data_loader.DataLoaderDispatcher, Accelerator.prepare_data_loader, prepare_one, skip.__code__)


def _put(places: _Places) -> None:
    data_loader.DataLoaderDispatcher = places.dispatcher
    Accelerator.prepare_data_loader = places.prepare_data_loader
    Accelerator._prepare_one = places.prepare_one  # noqa: SLF001 - as above
    cast("FunctionType", data_loader.skip_first_batches).__code__ = places.skip_code


def _is_installed() -> bool:
    return data_loader.DataLoaderDispatcher is Dispatcher


_BEFORE = _Places.now()
_stock_skip = FunctionType(
    _BEFORE.skip_code, vars(data_loader), "skip_first_batches", data_loader.skip_first_batches.__defaults__
)


@functools.wraps(_BEFORE.prepare_data_loader)
def _prepare_data_loader(
    self: Accelerator,
    data_loader: DataLoader[Any],
    device_placement: bool | None = None,  # noqa: FBT001 - accelerate's own signature
    slice_fn_for_dispatch: Callable[..., Any] | None = None,
) -> Any:  # noqa: ANN401 - a loader of any kind
    if _is_made_by_its_dataset(self, data_loader, device_placement):
        prepared: Any = _of_finished_batches(self, data_loader, slice_fn_for_dispatch)
        self._dataloaders.append(prepared)
    else:
        prepared = _BEFORE.prepare_data_loader(self, data_loader, device_placement, slice_fn_for_dispatch)
    if type(prepared) is Dispatcher and prepared is not data_loader:
        prepared.even_batches = bool(self.even_batches)
        prepared.end_first_workers()
    return prepared


@functools.wraps(_BEFORE.prepare_one)
def _prepare_one(
    self: Accelerator,
    obj: Any,  # noqa: ANN401 - whatever is prepared
    first_pass: bool = False,  # noqa: FBT001, FBT002 - accelerate's own signature
    device_placement: bool | None = None,  # noqa: FBT001 - as above
) -> Any:  # noqa: ANN401 - as above
    if first_pass and self.num_processes > 1 and not isinstance(obj, DataLoader):
        if isinstance(obj, IterableDataset) and self.dispatch_batches is not False:
            obj = DataLoader(obj, batch_size=None, collate_fn=_same)
        else:
            _warn_of_iterable(self, obj)
    return _BEFORE.prepare_one(self, obj, first_pass=first_pass, device_placement=device_placement)


def _skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:  # noqa: ANN401 - any loader
    # Runs with the globals of accelerate.data_loader, whose function this becomes the code of
    from stream.installation import skip_steps  # noqa: PLC0415 - as above

    return skip_steps(dataloader, num_batches)


def skip_steps(loader: Any, steps: int) -> Any:  # noqa: ANN401 - any loader
    """Return a loader whose iterations leave out their first steps: what `skip_first_batches` does now."""
    return loader.skipping(steps) if isinstance(loader, Dispatcher) else _stock_skip(loader, steps)


def _is_made_by_its_dataset(accelerator: Accelerator, loader: Any, placed: bool | None) -> bool:  # noqa: ANN401, FBT001 - as accelerate
    """Tell whether a loader that will be dispatched gets finished batches, which accelerate cannot be told of."""
    if getattr(loader, "_is_accelerate_prepared", False) or loader.batch_sampler is not None:
        return False
    if not (accelerator.device_placement if placed is None else placed):
        return False
    dispatch = accelerator.dispatch_batches
    return isinstance(loader.dataset, IterableDataset) if dispatch is None else bool(dispatch)


def _of_finished_batches(accelerator: Accelerator, loader: DataLoader[Any], slice_fn: Callable[..., Any] | None) -> Any:  # noqa: ANN401 - untyped
    lists = loader.sampler if isinstance(loader.sampler, BatchSampler) else None
    numbered = None if isinstance(loader.dataset, IterableDataset) or lists is not None else loader.sampler
    return Dispatcher(
        loader.dataset if lists is None else ByLists(loader.dataset),
        split_batches=accelerator.split_batches,
        use_stateful_dataloader=accelerator.use_stateful_dataloader,
        _non_blocking=accelerator.non_blocking,
        slice_fn=slice_fn,
        torch_device_mesh=accelerator.torch_device_mesh,
        batch_size=None if lists is None else 1,  # torch's word for what the lists say
        sampler=numbered,
        batch_sampler=lists,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )


def _warn_of_iterable(accelerator: Accelerator, thing: Any) -> None:  # noqa: ANN401 - whatever is prepared
    known = (torch.nn.Module, torch.optim.Optimizer, str, bytes, Mapping, Sequence, AbstractSet)
    is_prepared = getattr(thing, "_is_accelerate_prepared", False)
    if is_prepared or isinstance(thing, known) or not isinstance(thing, Iterable) or type(thing) in _no_loaders:
        return
    _no_loaders.add(type(thing))
    if accelerator.is_main_process:
        _log.warning(
            "%s is no torch DataLoader, so prepare() leaves it as it is and each of %d ranks iterates all of it; "
            "if it gives batches, put it into an IterableDataset or a StreamLoader",
            type(thing).__name__,
            accelerator.num_processes,
        )


def _same(batch: Any) -> Any:  # noqa: ANN401 - any batch
    return batch


_OURS = _Places(Dispatcher, _prepare_data_loader, _prepare_one, _skip_first_batches.__code__)
