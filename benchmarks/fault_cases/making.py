"""The three ways of making a loader, and what a fault is."""

import contextlib
import importlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.data_loader import skip_first_batches
from accelerate.utils import broadcast_object_list
from torch.utils.data import DataLoader

from stream.loader import StreamLoader
from stream.options import StreamOptions

Side = Literal["stock", "loader", "installed"]
"""accelerate's own dispatcher; a `StreamLoader`; the same torch DataLoader as "stock", with ours installed."""

OURS: tuple[Side, ...] = ("loader", "installed")
LOADER: tuple[Side, ...] = ("loader",)
INSTALLED: tuple[Side, ...] = ("installed",)

Found = dict[str, Any]
"""What a fault's function found on one rank: plain values, as JSON carries them."""


class Verdict(NamedTuple):
    """Whether what came is right, and in words what came."""

    right: bool
    words: str


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the loader of a fault shall be; as torch's DataLoader names it."""

    batch_size: int | None = 4
    collate: Callable[[list[Any]], Any] | None = None
    drop_last: bool = False
    shuffle: bool = False
    workers: int = 0
    persistent: bool = False
    pin_memory: bool = False
    name: str = "train"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the Accelerator of a fault is told."""

    split: bool = False
    even: bool = True
    non_blocking: bool = False
    accumulation: int = 1
    data_seed: int | None = None


@dataclass(frozen=True)
class Make:
    """Makes accelerators and prepared loaders of one kind, on CPU or on the CUDA devices of this host."""

    side: Side
    on_cpu: bool = True

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Put our dispatcher in place of accelerate's while a fault of side "installed" runs."""
        if self.side != "installed":
            yield
            return
        with importlib.import_module("stream").installed():
            yield

    def accelerator(self, asked: Asked | None = None) -> Accelerator:
        """Return a new Accelerator of this job in dispatch mode."""
        asked = asked or Asked()
        config = DataLoaderConfiguration(
            dispatch_batches=True,
            split_batches=asked.split,
            even_batches=asked.even,
            non_blocking=asked.non_blocking,
            use_seedable_sampler=asked.data_seed is not None,
            data_seed=asked.data_seed,
        )
        return Accelerator(
            cpu=self.on_cpu,
            dataloader_config=config,
            gradient_accumulation_steps=asked.accumulation,
        )

    def loader(self, accelerator: Accelerator, source: Any, wanted: Wanted | None = None) -> Any:  # noqa: ANN401
        """Return a prepared loader over a dataset."""
        wanted = wanted or Wanted()
        made = self._streamed(accelerator, source, wanted) if self.side == "loader" else _torch(source, wanted)
        return accelerator.prepare(made)

    def skip(self, loader: Any, steps: int) -> Any:  # noqa: ANN401 - either kind of loader
        """Return the loader whose next iteration leaves out its first steps."""
        if self.side != "loader":
            return skip_first_batches(loader, steps)
        loader.skip(steps)
        return loader

    def _streamed(self, accelerator: Accelerator, source: Any, wanted: Wanted) -> StreamLoader:  # noqa: ANN401
        options = StreamOptions(workers=wanted.workers, pin_memory=wanted.pin_memory)
        return StreamLoader(
            source,
            batch_size=wanted.batch_size,  # type: ignore[arg-type,unused-ignore] # None: the source makes batches
            accelerator=accelerator,
            shuffle="full" if wanted.shuffle else None,
            seed=7,
            drop_last=wanted.drop_last,
            collate=wanted.collate,
            name=wanted.name,
            options=options,
        )


def _torch(source: Any, wanted: Wanted) -> DataLoader[Any]:  # noqa: ANN401 - any dataset
    return DataLoader(
        source,
        batch_size=wanted.batch_size,
        shuffle=wanted.shuffle,
        collate_fn=wanted.collate,
        drop_last=wanted.drop_last,
        num_workers=wanted.workers,
        persistent_workers=wanted.persistent,
        pin_memory=wanted.pin_memory,
    )


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One row of the list of faults.

    `run` runs in each rank, `judge` gets what all ranks found, in their order. `stock` says why it is not run on
    stock; empty where stock survives it. `holds` tells that it leaves something running on purpose.
    """

    id: str
    what: str
    run: Callable[[Make], Found]
    judge: Callable[[Sequence[Found]], Verdict]
    sides: tuple[Side, ...] = OURS
    stock: str = ""
    limit_s: float = 60.0
    holds: bool = False


@contextlib.contextmanager
def shared_folder() -> Iterator[Path]:
    """Give all ranks the same new folder, removed when all of them have left it."""
    with tempfile.TemporaryDirectory(prefix="fault-") as own:
        told = [own]
        broadcast_object_list(told)
        yield Path(told[0])
        torch.distributed.barrier()


def started_processes() -> list[int]:
    """Return the processes that this rank started; it leads a session of its own."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):  # ended meanwhile
                # Python's own helper of started (not forked) processes lives as long as the interpreter
                if os.getsid(int(entry.name)) == os.getsid(0) and b"resource_tracker" not in _command(entry):
                    found.append(int(entry.name))
    return found


def _command(process: Path) -> bytes:
    return (process / "cmdline").read_bytes()


def error_words(error: BaseException) -> str:
    """Return the class and the text of an error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
