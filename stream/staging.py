"""Batches on their way to the device of a rank: staged in pinned memory, copied on a stream beside the training's own.

Invariants:
- the copies of a batch are queued on the side stream by the thread that assembles it; the training's stream waits for
  them by an event when it gets the batch, so no host thread waits and the copies run behind the training step;
- every tensor that was copied is recorded on the stream it is handed to, so that its memory is not given to a later
  copy while that stream still reads it;
- on the CPU nothing happens, and a batch comes out as the object that went in.

What was pinned may be let go of as soon as its copy is queued: torch's allocator of pinned memory keeps it until the
copy is done. Memory that is not pinned was read when the call that copies from it returns.
"""

import copy
import dataclasses
import threading
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch


def _torch_empty(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8)


class DeviceOps(Protocol):
    """What staging needs of a device that has streams. Streams and events are the device's own objects."""

    def empty_pinned(self, nbytes: int) -> torch.Tensor:
        """New page-locked memory: uint8 [nbytes] on the CPU."""

    def new_stream(self) -> Any:  # noqa: ANN401 - see the class
        """A stream beside all others."""

    def copy(self, tensor: torch.Tensor, stream: Any, *, non_blocking: bool) -> torch.Tensor:  # noqa: ANN401 - as above
        """The tensor on the device, copied in the order of this stream; strides are kept where memory has no gaps."""

    def record_event(self, stream: Any) -> Any:  # noqa: ANN401 - as above
        """An event that is reached when all that was queued on the stream is done."""

    def wait_event(self, event: Any) -> None:  # noqa: ANN401 - as above
        """Let the calling thread's current stream wait for an event; the thread itself goes on."""

    def record_stream(self, tensor: torch.Tensor) -> None:
        """Note that the calling thread's current stream uses the memory of this tensor."""


class CudaOps:
    """`DeviceOps` of a CUDA (or ROCm) device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def empty_pinned(self, nbytes: int) -> torch.Tensor:  # noqa: D102 - the protocol says it
        with torch.cuda.device(self._device):  # else a thread of ours would begin a context on device 0
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def new_stream(self) -> torch.cuda.Stream:  # noqa: D102 - as above
        return torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def copy(self, tensor: torch.Tensor, stream: torch.cuda.Stream, *, non_blocking: bool) -> torch.Tensor:  # noqa: D102
        with torch.cuda.stream(stream):
            return tensor.to(self._device, non_blocking=non_blocking)

    def record_event(self, stream: torch.cuda.Stream) -> Any:  # noqa: ANN401, D102 - as above
        return stream.record_event()

    def wait_event(self, event: torch.cuda.Event) -> None:  # noqa: D102 - as above
        torch.cuda.current_stream(self._device).wait_event(event)

    def record_stream(self, tensor: torch.Tensor) -> None:  # noqa: D102 - as above
        tensor.record_stream(torch.cuda.current_stream(self._device))


@dataclass(frozen=True, slots=True)
class Staged:
    """A batch whose copies are queued; `Stager.hand_over` makes it ready for use."""

    batch: Any
    copied: list[torch.Tensor]
    event: Any


class Stager:
    """Brings batches to a device. Thread-safe: any thread may stage, the training thread takes over.

    Args:
        device: Where batches go.
        pin: Whether memory that is asked of `empty` is pinned, where the device profits from it.
        non_blocking: Whether copies are only queued. If not, `to_device` returns when they are done; the training
            thread waits in neither case.
        unpinned: Gives memory that is not pinned: uint8 of so many bytes; by default torch's own.
        ops: What is done on the device; by default what it needs: streams on CUDA, a plain copy on others.

    Attributes:
        active: Whether batches are copied on a stream of their own.
        pinned: Whether `empty` gives pinned memory.
        keeps: Whether batches stay in the memory that they came in, as they do on the CPU.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        pin: bool,
        non_blocking: bool,
        ops: DeviceOps | None = None,
        unpinned: Callable[[int], torch.Tensor] | None = None,
    ) -> None:
        if ops is None and device.type == "cuda":
            ops = CudaOps(device)
        self._device, self._non_blocking, self._ops = device, non_blocking, ops
        self._stream: Any = None
        self._unpinned = unpinned or _torch_empty
        self._lock = threading.Lock()
        self.active = ops is not None
        self.keeps = ops is None and device.type == "cpu"
        self.pinned = ops is not None and pin

    def empty(self, nbytes: int) -> torch.Tensor:
        """New memory for a batch on its way: uint8 [nbytes] on the CPU, pinned if it should be."""
        if self._ops is not None and self.pinned:
            return self._ops.empty_pinned(nbytes)
        return self._unpinned(nbytes)

    def to_device(self, batch: object) -> Staged:
        """Copy the tensors of a batch, whatever it is made of; all else stays the same objects.

        Dicts and other mappings, lists, tuples, named tuples and dataclasses are looked into, and made anew if they
        hold a tensor that moved. A tensor that occurs twice is copied once.
        """
        copies: dict[int, torch.Tensor] = {}

        def move(tensor: torch.Tensor) -> torch.Tensor:
            if self._is_there(tensor):
                return tensor
            if id(tensor) not in copies:
                copies[id(tensor)] = self._copy(tensor)
            return copies[id(tensor)]

        moved = _mapped(batch, move)
        if self._ops is None or not copies:
            return Staged(moved, [], None)
        return Staged(moved, list(copies.values()), self._ops.record_event(self._side_stream()))

    def hand_over(self, staged: Staged) -> Any:  # noqa: ANN401 - a batch is what its user made it
        """Return the batch for use on the calling thread's current stream, which waits for the copies."""
        if self._ops is not None and staged.event is not None:
            self._ops.wait_event(staged.event)
            for tensor in staged.copied:
                self._ops.record_stream(tensor)
        return staged.batch

    def _is_there(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is on the device; one without a number stands for each of its type, and there is one CPU.

        Accelerate numbers its CPU ranks ("cpu:1"), and torch would copy from "cpu" to that.
        """
        if self._device.type == "cpu":
            return tensor.is_cpu
        return tensor.device.type == self._device.type and self._device.index in {None, tensor.device.index}

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._ops is None:
            return tensor.to(self._device, non_blocking=self._non_blocking)
        return self._ops.copy(tensor, self._side_stream(), non_blocking=self._non_blocking)

    def _side_stream(self) -> Any:  # noqa: ANN401 - the device's own object
        with self._lock:
            if self._stream is None and self._ops is not None:
                self._stream = self._ops.new_stream()
            return self._stream


Move: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


def _mapped(value: Any, move: Move) -> Any:  # noqa: ANN401 - a batch is what its user made it
    """The value with its tensors moved; itself if none of them moved."""
    if isinstance(value, torch.Tensor):
        return move(value)
    if isinstance(value, Mapping):
        return _mapping(value, move)
    if isinstance(value, list | tuple):
        return _sequence(value, move)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _dataclass(value, move)
    return value


def _mapping(value: Mapping[Any, Any], move: Move) -> Any:  # noqa: ANN401 - as above
    moved = {key: new for key, item in value.items() if (new := _mapped(item, move)) is not item}
    if not moved:
        return value
    if not isinstance(value, MutableMapping):
        return type(value)({**value, **moved})  # type: ignore[call-arg]  # as accelerate makes them
    made = copy.copy(value)  # a default dict keeps its factory, a class of its own its attributes
    for key, item in moved.items():
        made[key] = item
    return made


def _sequence(value: Any, move: Move) -> Any:  # noqa: ANN401 - as above
    items = [_mapped(item, move) for item in value]
    if all(new is item for new, item in zip(items, value, strict=True)):
        return value
    if isinstance(value, list):
        made = copy.copy(value)
        made[:] = items
        return made
    return value._make(items) if hasattr(value, "_make") else type(value)(items)


def _dataclass(value: Any, move: Move) -> Any:  # noqa: ANN401 - as above
    names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    moved = {name: new for name in names if (new := _mapped(item := getattr(value, name), move)) is not item}
    if not moved:
        return value
    made = copy.copy(value)
    for name, item in moved.items():
        object.__setattr__(made, name, item)  # a frozen one too: this copy is not in use yet
    return made
