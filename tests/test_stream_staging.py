"""stream/staging.py: what is done on a device and in which order, by a device that only notes it; and on a real one."""

import mmap
import os
import threading
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pytest
import torch

from stream.staging import CudaOps, Stager

CPU, META = torch.device("cpu"), torch.device("meta")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")


class Noted:
    """Device ops that note each call; what is "on the device" is a tensor of the meta device."""

    def __init__(self):
        self.calls, self.streams = [], 0
        self.sources = []

    def empty_pinned(self, nbytes):
        self.calls.append(("empty_pinned", nbytes))
        return torch.empty(nbytes, dtype=torch.uint8)

    def new_stream(self):
        self.streams += 1
        return f"stream {self.streams}"

    def copy(self, tensor, stream, *, non_blocking):
        self.calls.append(("copy", stream, non_blocking))
        self.sources.append(tensor)
        return tensor.to("meta")

    def record_event(self, stream):
        events = sum(call[0] == "record_event" for call in self.calls)
        self.calls.append(("record_event", stream))
        return f"event {events}"

    def wait_event(self, event):
        self.calls.append(("wait_event", event))

    def record_stream(self, tensor):
        self.calls.append(("record_stream", id(tensor)))


Pair = namedtuple("Pair", ["image", "label"])  # noqa: PYI024  # a plain one, as users have them


@dataclass
class Plain:
    image: Any
    label: int = 3
    later: Any = field(init=False, default=None)


@dataclass(frozen=True, slots=True)
class Frozen:
    image: Any
    label: int = 3


class Encoding(UserDict):
    """A mapping with an attribute of its own, as transformers' BatchEncoding is."""

    def __init__(self, data, kind="none"):
        super().__init__(data)
        self.kind = kind


class ReadOnly(Mapping):
    """A mapping that is made from a dict and cannot be changed."""

    def __init__(self, data):
        self._data = dict(data)

    def __getitem__(self, key):
        return self._data[key]

    def __iter__(self):
        return iter(self._data)

    def __len__(self):
        return len(self._data)


class Rows(list):
    """A list with a name."""

    name = "rows"


def tensor():
    return torch.arange(6, dtype=torch.uint8)


def moved(batch, device=META):
    stager = Stager(device, pin=False, non_blocking=True)
    return stager.hand_over(stager.to_device(batch))


# --- order of what is done


def test_copies_go_to_the_side_stream_and_the_training_stream_waits_for_their_event_before_it_uses_them():
    ops = Noted()
    stager = Stager(META, pin=True, non_blocking=True, ops=ops)
    staged = stager.to_device({"image": tensor(), "label": tensor(), "key": ["a"]})
    assert ops.calls == [("copy", "stream 1", True), ("copy", "stream 1", True), ("record_event", "stream 1")]
    ops.calls.clear()
    batch = stager.hand_over(staged)
    uses = [("record_stream", id(batch[name])) for name in ("image", "label")]
    assert ops.calls == [("wait_event", "event 0"), *uses]
    assert batch["image"].device == META


def test_each_batch_waits_for_its_own_event_whatever_the_order():
    ops = Noted()
    stager = Stager(META, pin=True, non_blocking=True, ops=ops)
    first, second = stager.to_device([tensor()]), stager.to_device([tensor()])
    stager.hand_over(second)
    stager.hand_over(first)
    assert [call for call in ops.calls if call[0] == "wait_event"] == [
        ("wait_event", "event 1"),
        ("wait_event", "event 0"),
    ]


def test_nothing_is_begun_before_the_first_batch():
    ops = Noted()
    Stager(META, pin=True, non_blocking=True, ops=ops)
    assert (ops.streams, ops.calls) == (0, [])


def test_threads_that_stage_at_once_share_one_side_stream():
    ops = Noted()
    stager = Stager(META, pin=True, non_blocking=True, ops=ops)
    threads = [threading.Thread(target=stager.to_device, args=([tensor()],)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ops.streams == 1


@pytest.mark.parametrize("non_blocking", [True, False])
def test_whether_a_copy_is_only_queued_is_the_users_choice(non_blocking):
    ops = Noted()
    Stager(META, pin=True, non_blocking=non_blocking, ops=ops).to_device([tensor()])
    assert ops.calls[0] == ("copy", "stream 1", non_blocking)


def test_a_batch_without_tensors_needs_no_event():
    ops = Noted()
    stager = Stager(META, pin=True, non_blocking=True, ops=ops)
    batch = {"key": ["a", "b"], "n": 3}
    assert stager.hand_over(stager.to_device(batch)) is batch
    assert ops.calls == []


def test_a_tensor_that_occurs_twice_is_copied_once():
    ops = Noted()
    stager = Stager(META, pin=True, non_blocking=True, ops=ops)
    one = tensor()
    batch = stager.hand_over(stager.to_device({"image": one, "again": [one]}))
    assert batch["image"] is batch["again"][0]
    assert [call[0] for call in ops.calls] == ["copy", "record_event", "wait_event", "record_stream"]


def test_a_tensor_that_is_there_is_left_alone():
    ops = Noted()
    stager = Stager(META, pin=True, non_blocking=True, ops=ops)
    there = torch.empty(3, device="meta")
    batch = stager.hand_over(stager.to_device({"there": there, "here": tensor()}))
    assert batch["there"] is there
    assert ("record_stream", id(there)) not in ops.calls
    assert [call[0] for call in ops.calls].count("copy") == 1


# --- memory


def test_memory_is_pinned_where_it_should_be():
    ops = Noted()
    stager = Stager(META, pin=True, non_blocking=True, ops=ops)
    memory = stager.empty(10)
    assert ops.calls == [("empty_pinned", 10)]
    assert (memory.shape, memory.dtype, memory.device) == ((10,), torch.uint8, CPU)
    assert stager.pinned


def test_memory_is_not_pinned_where_it_should_not_be():
    ops = Noted()
    stager = Stager(META, pin=False, non_blocking=True, ops=ops)
    memory = stager.empty(10)
    assert ops.calls == []
    assert (memory.shape, memory.dtype, memory.device) == ((10,), torch.uint8, CPU)
    assert (stager.active, stager.pinned) == (True, False)


def test_views_of_one_memory_are_copied_each_with_its_strides():
    ops = Noted()
    stager = Stager(META, pin=True, non_blocking=True, ops=ops)
    image = stager.empty(2 * 4 * 5 * 3).view(2, 4, 5, 3).permute(0, 3, 1, 2)
    batch = stager.hand_over(stager.to_device({"image": image}))
    assert ops.sources[0] is image
    assert batch["image"].stride() == image.stride()


# --- a CPU, and devices without streams


def test_on_the_cpu_a_batch_comes_out_as_the_object_that_went_in():
    batch = {"image": tensor(), "rows": [tensor()], "pair": (tensor(),)}
    assert moved(batch, CPU) is batch


@pytest.mark.parametrize("device", [CPU, META])
def test_without_streams_the_stager_is_not_active_and_pins_nothing(device):
    stager = Stager(device, pin=True, non_blocking=True)
    assert (stager.active, stager.pinned) == (False, False)
    assert not stager.empty(4).is_pinned()


def test_on_a_device_without_streams_tensors_are_copied_all_the_same():
    assert moved([tensor()])[0].device == META


# --- what a batch is made of


@pytest.mark.parametrize(
    ("batch", "image"),
    [
        (tensor(), lambda batch: batch),
        ({"image": tensor(), 3: "x"}, lambda batch: batch["image"]),
        (OrderedDict(key="x", image=tensor()), lambda batch: batch["image"]),
        (defaultdict(list, image=tensor()), lambda batch: batch["image"]),
        (Encoding({"image": tensor()}), lambda batch: batch["image"]),
        (ReadOnly({"image": tensor()}), lambda batch: batch["image"]),
        (MappingProxyType({"image": tensor()}), lambda batch: batch["image"]),
        ([1, tensor()], lambda batch: batch[1]),
        (Rows([tensor()]), lambda batch: batch[0]),
        ((tensor(), None), lambda batch: batch[0]),
        (Pair(tensor(), 3), lambda batch: batch.image),
        (Plain(tensor()), lambda batch: batch.image),
        (Frozen(tensor()), lambda batch: batch.image),
        ({"a": [Pair([Frozen({"b": tensor()})], 1)]}, lambda batch: batch["a"][0].image[0].image["b"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_tensors_move_and_what_holds_them_keeps_its_type(batch, image):
    before = image(batch)
    after = moved(batch)
    assert type(after) is type(batch)
    assert image(after).device == META
    assert image(batch) is before  # what went in is not changed
    assert before.device == CPU


def test_all_that_is_no_tensor_stays_the_same_object():
    held = {"keys": ["a"], "set": {1}, "array": object(), "none": None, "pair": Pair(1, "x"), "type": Plain}
    after = moved({**held, "image": tensor()})
    assert all(after[name] is value for name, value in held.items())
    assert list(after) == [*held, "image"]


def test_attributes_factories_and_late_fields_stay():
    assert moved(Encoding({"image": tensor()}, kind="clip")).kind == "clip"
    assert moved(defaultdict(list, image=tensor())).default_factory is list
    row = Plain(tensor())
    row.later = [tensor()]
    after = moved(row)
    assert (after.label, after.later[0].device) == (3, META)


# --- a real device


@needs_cuda
def test_cuda_a_batch_arrives_as_it_was_on_the_current_stream():
    device = torch.device("cuda", torch.cuda.current_device())
    stager = Stager(device, pin=True, non_blocking=True)
    memory = stager.empty(2**24)
    assert memory.is_pinned()
    for number in range(20):
        memory.fill_(number)
        batch = stager.hand_over(stager.to_device({"image": memory.view(2**12, 2**12), "key": ["a"]}))
        assert batch["image"].device == device
        assert bool((batch["image"] == number).all())


@needs_cuda
def test_cuda_memory_that_the_training_stream_still_reads_is_not_overwritten_by_the_next_copy():
    device = torch.device("cuda", torch.cuda.current_device())
    stager = Stager(device, pin=True, non_blocking=True)
    sums = []
    for number in range(30):
        source = stager.empty(2**24).fill_(number)
        image = stager.hand_over(stager.to_device([source]))[0]
        torch.cuda._sleep(5_000_000)
        sums.append(image.sum(dtype=torch.int64))
        del image
    assert [int(total) for total in sums] == [number * 2**24 for number in range(30)]


@needs_cuda
def test_cuda_strides_stay_when_a_batch_is_copied():
    device = torch.device("cuda", torch.cuda.current_device())
    stager = Stager(device, pin=True, non_blocking=True)
    image = stager.empty(2 * 4 * 5 * 3).view(2, 4, 5, 3).permute(0, 3, 1, 2)
    copied = stager.hand_over(stager.to_device(image))
    assert copied.stride() == image.stride()
    assert torch.equal(copied.cpu(), image)


@needs_cuda
def test_cuda_the_copy_does_not_hold_up_the_thread_that_hands_over():
    ops = CudaOps(torch.device("cuda", torch.cuda.current_device()))
    side = ops.new_stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(2_000_000_000)
    event = ops.record_event(side)
    ops.wait_event(event)
    assert not event.query()
    torch.cuda.synchronize()
    assert event.query()


@needs_cuda
def test_cuda_a_memory_file_can_be_registered_and_copied_from_without_a_pinned_copy():
    """Whether the ring of a rank may be read by the device itself: page-locked after it was mapped."""
    fd = os.memfd_create("stream-test", os.MFD_CLOEXEC)
    os.ftruncate(fd, 2**24)
    memory = torch.frombuffer(mmap.mmap(fd, 2**24), dtype=torch.uint8)
    os.close(fd)
    memory.copy_(torch.arange(2**24) % 251)
    runtime = torch.cuda.cudart()
    assert int(runtime.cudaHostRegister(memory.data_ptr(), memory.numel(), 0)) == 0
    try:
        assert memory.is_pinned()
        copied = memory.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        assert torch.equal(copied.cpu(), memory)
    finally:
        assert int(runtime.cudaHostUnregister(memory.data_ptr())) == 0


def test_a_numbered_cpu_is_the_cpu_and_nothing_is_copied():
    given = {"image": torch.zeros(4)}
    staged = Stager(torch.device("cpu:1"), pin=True, non_blocking=True).to_device(given)
    assert staged.batch["image"] is given["image"]
