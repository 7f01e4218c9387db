"""Worker processes beside the reader: torch's own, forked or spawned as the user says, told what to do in order.

Invariants:
- results come in the order of the tasks; a worker's error comes in the place of its result, as itself;
- `run` starts the processes at its first `next`; its end, an error and its closing end them, unless they are
  persistent: those live until `close`;
- with no workers the duty is done in the calling thread, in the same way.

A duty is a torch dataset: map-style, then `duty[task]` is called for each task; or iterable, then there are no tasks
and each worker gives what it has. It catches its own errors and gives a `Failed` instead (`guarded`).
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from traceback import extract_tb
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler, get_worker_info

from shards.errors import ShardsError
from stream.errors import SourceError, StreamError
from stream.foreign import end
from stream.sharded import Failed


@dataclass(frozen=True, kw_only=True)
class Hands:
    """How many worker processes there are, and how they are; all but `workers` as torch's DataLoader has it.

    `prefetch` counts results in flight per worker, `timeout_s` is how long to wait for one (0: for ever). `init` is
    called in each worker with its number.
    """

    workers: int = 0
    prefetch: int = 2
    persistent: bool = False
    timeout_s: float = 0
    init: Callable[[int], None] | None = None
    context: Any = None
    generator: torch.Generator | None = None


class Crew:
    """The worker processes of one duty, or none. One `run` at a time; not thread-safe.

    In a worker, `get_worker_info().dataset` is the duty's `dataset`, the user's own.
    """

    def __init__(self, duty: Any, hands: Hands) -> None:  # noqa: ANN401 - torch's datasets are generic
        self._tasks = _Tasks()
        self._persistent = hands.persistent and hands.workers > 0
        self._loader: DataLoader[Any] = DataLoader(
            duty,
            sampler=None if isinstance(duty, IterableDataset) else self._tasks,
            batch_size=None,
            collate_fn=_same,
            num_workers=hands.workers,
            prefetch_factor=hands.prefetch if hands.workers else None,
            persistent_workers=self._persistent,
            timeout=hands.timeout_s if hands.workers else 0,
            worker_init_fn=_Init(hands.init),
            multiprocessing_context=hands.context if hands.workers else None,
            generator=hands.generator or torch.Generator(),  # else it would draw from the user's global generator
        )

    def run(self, tasks: Iterable[Any] = ()) -> Generator[Any, None, None]:
        """Yield the results, in the order of the tasks.

        Raises:
            Exception: what a duty failed with, or `tasks` raised, after the results before it.
            RuntimeError: a worker died, or took longer than `timeout_s`.
        """
        self._tasks.now = tasks
        self._tasks.error = None
        iterator: Iterator[Any] = iter(())
        try:
            iterator = iter(self._loader)
            for result in iterator:
                if isinstance(result, Failed):
                    raise result.error
                yield result
            if self._tasks.error is not None:
                raise self._tasks.error
        finally:
            self._tasks.now = ()
            if not self._persistent:
                end(iterator)

    def close(self) -> None:
        """End persistent workers. Idempotent; `run` starts new ones."""
        iterator, self._loader._iterator = self._loader._iterator, None  # noqa: SLF001 - torch has no other way
        if iterator is not None:
            end(iterator)


def guarded(work: Callable[[], Any]) -> Any:  # noqa: ANN401 - what the work gives
    """Return what `work` gives, or `Failed` with its error in a form that may leave a worker process."""
    try:
        return work()
    except Exception as exc:  # noqa: BLE001 - raised where the result arrives
        return Failed(raisable(exc))


def raisable(error: Exception) -> Exception:
    """Return the error, or where it could not be raised again as itself, one that tells of it."""
    if isinstance(error, StopIteration):  # it would end the epoch without a word
        return SourceError("the source or the collate function", "raised StopIteration, which only an iterator may")
    if get_worker_info() is None:
        return error
    with suppress(Exception):  # torch drops what a worker process cannot send, and then waits for it for ever
        ForkingPickler.loads(ForkingPickler.dumps(error))
        return error
    return SourceError("a worker process", words_of(error))


def words_of(error: Exception) -> str:
    """Say what an error is, and where it was raised unless it words that itself."""
    said = f"{type(error).__name__}: {error}"
    trace = extract_tb(error.__traceback__)
    if isinstance(error, StreamError | ShardsError | OSError) or not trace:
        return said
    return f"{said} (raised at {trace[-1].filename}:{trace[-1].lineno} in {trace[-1].name})"


class _Tasks(Sampler[Any]):
    """The tasks of a run; an error of theirs is kept until all results before it are out."""

    def __init__(self) -> None:
        super().__init__()
        self.now: Iterable[Any] = ()
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self.now
        except Exception as exc:  # noqa: BLE001 - raised by Crew.run
            self.error = exc


class _Init:
    """Shows the user's code in a worker the user's dataset, before anything of it runs."""

    def __init__(self, init: Callable[[int], None] | None) -> None:
        self._init = init

    def __call__(self, worker: int) -> None:
        info = get_worker_info()
        if info is not None:
            object.__setattr__(info, "dataset", getattr(info.dataset, "dataset", info.dataset))
        if self._init is not None:
            self._init(worker)


def _same(result: Any) -> Any:  # noqa: ANN401 - whatever a result is
    return result
