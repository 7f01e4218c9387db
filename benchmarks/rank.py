"""One rank of a measurement: gets a plan on standard input, measures, answers on standard output (`messages.py`).

Batches are consumed as a training loop would: every one is looked at, its rows are counted by their keys, and the
ranks meet after each step in a small all-reduce, as they do in a training step over their gradients. That is also how
they agree when a window ends.
"""

import ctypes
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
import torch
from accelerate import Accelerator, DataLoaderConfiguration

from messages import Began, Config, Epoch, Fault, Job, Message, Mode, Plan, Ready, Setting, Window
from stream.loader import StreamLoader
from stream.options import StreamOptions

Send = Callable[[Message], object]
_NO_JOB = -1


class WrongBatchError(Exception):
    """A batch is not what was asked for, so its speed means nothing."""

    def __init__(self, what: str, got: object, expected: object) -> None:
        super().__init__(what, got, expected)
        self.what, self.got, self.expected = what, got, expected

    def __str__(self) -> str:
        return f"a batch is wrong: {self.what} is {self.got}, expected {self.expected}"


class Batches:
    """The batches of one loader on this rank, epoch after epoch, each looked at.

    `samples` and `waits_ms` say what came since the last `forget`; `delivered_bytes` is the average of one sample.
    """

    def __init__(self, loader: StreamLoader, setting: Setting, ranks: int) -> None:
        self._loader, self._setting, self._ranks = loader, setting, ranks
        self._batches: Iterator[Any] = iter(())
        self._step = -1  # of the epoch; -1: none has begun
        self.delivered_bytes = 0.0
        self.forget()

    def forget(self) -> None:
        """Count from here on."""
        self.samples = self.epochs = 0
        self.waits_ms: list[float] = []

    def take(self) -> None:
        """Wait for the next batch, of the next epoch if need be.

        Raises:
            WrongBatchError: it is not what was asked for.
        """
        begin = time.perf_counter()
        batch = self._next()
        self.waits_ms.append((time.perf_counter() - begin) * 1e3)
        rows = check(batch, self._rows_expected(), self._setting.image_size)
        if not self.delivered_bytes:
            self.delivered_bytes = size_of(batch) / rows
        self.samples += rows

    def _next(self) -> Any:  # noqa: ANN401 - a batch
        self._step += 1
        batch = next(self._batches, None) if self._step else None
        if batch is None:
            self._check_end()
            self.epochs += 1
            self._step, self._batches = 0, iter(self._loader)
            batch = next(self._batches)
        return batch

    def _check_end(self) -> None:
        if self._step and self._step != len(self._loader):
            raise WrongBatchError("the number of steps of an epoch", self._step, len(self._loader))

    def _rows_expected(self) -> int:
        left = self._setting.rows - self._step * self._setting.batch_size
        return -(-min(left, self._setting.batch_size) // self._ranks)


class Rank:
    """This process among the others: one Accelerator for each mode that the plan asks for."""

    def __init__(self, plan: Plan, send: Send) -> None:
        """Join the other ranks.

        Raises:
            WrongBatchError: there are more or fewer of them than planned.
        """
        self._setting, self._ranks, self._send = plan.setting, plan.ranks, send
        cpu = torch.cuda.device_count() < plan.ranks
        self._accelerators = {mode: _accelerator(mode, cpu=cpu) for mode in {job.config.mode for job in plan.jobs}}
        self._accelerator = next(iter(self._accelerators.values()))
        if self._accelerator.num_processes != plan.ranks:
            raise WrongBatchError("the number of ranks", self._accelerator.num_processes, plan.ranks)
        send(Ready(self._accelerator.device.type))

    def do(self, job: Job) -> None:
        """Do one job and send its answer; whatever the loader held is given back afterwards."""
        self._accelerator.wait_for_everyone()
        self._send(Began(job.number))
        begin = time.perf_counter()
        loader = self._loader(job.config)
        if job.whole_epoch:
            self._send(Epoch(job.number, [key for batch in loader for key in batch["key"]]))
        else:
            self._send(self._window(job, loader, begin))
        loader.close()
        for accelerator in self._accelerators.values():
            accelerator.free_memory()
        del loader
        give_back()

    def leave(self) -> None:
        """Part from the other ranks."""
        self._accelerator.wait_for_everyone()
        self._accelerator.end_training()

    def _loader(self, config: Config) -> StreamLoader:
        accelerator = self._accelerators[config.mode]
        loader = StreamLoader(
            self._setting.data,
            accelerator=accelerator,
            batch_size=self._setting.batch_size,
            image_size=self._setting.image_size,
            options=StreamOptions(workers=config.workers, prefetch_steps=config.prefetch, pin_memory=config.pin_memory),
        )
        accelerator.prepare(loader)
        return loader

    def _window(self, job: Job, loader: StreamLoader, begin: float) -> Window:
        batches = Batches(loader, self._setting, self._ranks)
        batches.take()
        first_s = time.perf_counter() - begin
        self._take_for(batches, self._setting.warmup_s)
        batches.forget()
        seconds = self._take_for(batches, self._setting.window_s)
        return Window(
            job=job.number,
            samples=batches.samples,
            epochs=batches.epochs,
            seconds=seconds,
            first_s=first_s,
            delivered_bytes=batches.delivered_bytes,
            waits_ms=batches.waits_ms,
        )

    def _take_for(self, batches: Batches, seconds: float) -> float:
        """Take batches, at least one, until some rank's `seconds` are over; return how long it took."""
        begin = time.perf_counter()
        while True:
            batches.take()
            if self._any(time.perf_counter() - begin >= seconds):
                return time.perf_counter() - begin

    def _any(self, word: bool) -> bool:  # noqa: FBT001 - the one thing it is about
        """Whether it is true on any rank; all ranks get the same answer."""
        flag = torch.tensor(float(word), device=self._accelerator.device)
        return bool(self._accelerator.reduce(flag, reduction="sum").item() > 0)


def check(batch: dict[str, Any], rows: int, side: int) -> int:
    """Look at a batch, at its pixels too, and return its number of rows as its keys tell.

    Raises:
        WrongBatchError: it has not `rows` keys, captions and images of `side` x `side` pixels, uint8.
    """
    image, keys, captions = batch["image"], batch["key"], batch["caption"]
    for what, got, expected in (
        ("the number of rows by keys", len(keys), rows),
        ("the number of captions", len(captions), rows),
        ("the shape of the images", tuple(image.shape), (rows, 3, side, side)),
        ("the type of the images", image.dtype, torch.uint8),
    ):
        if got != expected:
            raise WrongBatchError(what, got, expected)
    image[:, 0, 0, 0].sum().item()  # where the images lie on an accelerator, this waits for them
    return len(keys)


def size_of(batch: dict[str, Any]) -> int:
    """Return the bytes of a batch: pixels, and keys and captions as UTF-8."""
    texts = (*batch["key"], *batch["caption"])
    return int(batch["image"].nbytes) + sum(len(text.encode()) for text in texts)


def give_back() -> None:
    """Return free memory to the system, so that the next configuration's peak is its own."""
    gc.collect()
    with suppress(OSError, AttributeError):  # a C library without it keeps what is free
        ctypes.CDLL(None).malloc_trim(0)


def main() -> int:
    """Do the jobs of the plan; 1 after a fault, which has been sent."""
    send = _sender()
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=Plan)
    number = _NO_JOB
    try:
        rank = Rank(plan, send)
        for job in plan.jobs:
            number = job.number
            rank.do(job)
        rank.leave()
    except Exception as exc:  # noqa: BLE001 - whatever it is, it is told to who asked
        send(Fault(number, f"{type(exc).__name__}: {exc}"))
        os._exit(1)  # threads that wait for the other ranks must not hold this one up
    return 0


def _sender() -> Send:
    """Keep standard output for messages alone; what others print goes to standard error."""
    channel = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    encoder = msgspec.json.Encoder()
    return lambda message: channel.write(encoder.encode(message) + b"\n")


def _accelerator(mode: Mode, *, cpu: bool) -> Accelerator:
    config = DataLoaderConfiguration(dispatch_batches=mode == "dispatch", split_batches=True)
    return Accelerator(cpu=cpu, dataloader_config=config)


if __name__ == "__main__":
    sys.exit(main())
