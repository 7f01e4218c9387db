"""A batch as one header and one buffer, and back."""

import gc
import pickle
import weakref
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from batches import (
    ARRAY_DTYPES,
    EVERY_DTYPE,
    Example,
    Frozen,
    Pair,
    array_strides,
    batches,
    check_same,
    drawn_array,
    drawn_tensor,
    tensor_strides,
)
from stream.errors import SourceError
from stream.owning import owned
from stream.wire import ALIGNMENT, copied, pack, unpack, write

EXAMPLES = 1_500
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")


def empty(size):
    return torch.empty(size, dtype=torch.uint8)


def written(batch):
    """Header and buffer of a batch; the bytes between the pieces are none of ours."""
    packed = pack(batch)
    buffer = np.full(packed.size, 0xA5, np.uint8)
    write(packed, buffer)
    return packed.header, buffer


def there_and_back(batch, *, make=empty):
    return unpack(*written(batch), empty=make)


def round_trips(examples):
    """Send so many random batches there and back, into memory of their own and as views of the buffer."""

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(batches())
    def every_batch_comes_back(batch):
        header, buffer = written(batch)
        check_same(unpack(header, buffer, empty=empty), batch)
        check_same(unpack(memoryview(header), buffer), batch)
        check_same(owned(batch), batch)

    every_batch_comes_back()


def test_any_batch_comes_back_as_it_was():
    round_trips(EXAMPLES)


def test_the_batch_of_a_loader_comes_back():
    batch = {
        "image": drawn_tensor((4, 5, 7, 3), torch.uint8, 1).permute(0, 3, 1, 2),
        "caption": [f"Ein Hund läuft {number}. \N{DOG}" for number in range(4)],
        "key": [f"{number:012d}" for number in range(4)],
    }
    back = there_and_back(batch)
    check_same(back, batch)
    assert back["image"].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", EVERY_DTYPE, ids=str)
@pytest.mark.parametrize("shape", [(), (5,), (2, 0, 3), (2, 3, 4)], ids=str)
def test_every_dtype_comes_back(dtype, shape):
    check_same(there_and_back(drawn_tensor(shape, dtype, 3)), drawn_tensor(shape, dtype, 3))


@pytest.mark.parametrize("dtype", ARRAY_DTYPES)
@pytest.mark.parametrize("order", "CF")
def test_every_dtype_of_an_array_comes_back_in_its_order(dtype, order):
    array = np.asarray(drawn_array((3, 4), dtype, 3), order=order)
    back = there_and_back([array, array[1, 1]])
    check_same(back, [array, array[1, 1]])
    assert back[0].flags.f_contiguous == (order == "F")
    assert back[0].flags.writeable


def test_one_call_gives_the_memory_of_the_whole_batch_and_all_of_it_are_views():
    batch = {"a": torch.ones(30, 5), "b": [np.ones(70), torch.ones(300, dtype=torch.int16)], "c": bytes(600)}
    given_out = []

    def make(size):
        given_out.append(empty(size))
        return given_out[-1]

    back = there_and_back(batch, make=make)
    (memory,) = given_out
    assert memory.numel() == pack(batch).size
    for start in (back["a"].data_ptr(), back["b"][0].ctypes.data, back["b"][1].data_ptr()):
        assert memory.data_ptr() <= start < memory.data_ptr() + memory.numel()


def test_what_is_small_does_not_keep_the_whole_batch():
    """Nor is the whole batch pickled with it."""
    batch = {
        "image": torch.zeros(100_000, dtype=torch.uint8),
        "label": torch.arange(8).view(2, 4).t(),
        "weights": np.arange(6.0).reshape(2, 3)[::-1, ::-1],
        "one": np.broadcast_to(np.float32(3), (4, 5)),
        "none": np.zeros((0, 3)),
    }
    header, buffer = written(batch)
    back = unpack(header, buffer)
    buffer[:] = 255
    assert (back["image"] == 255).all()
    for name in ("label", "weights", "one", "none"):
        np.testing.assert_array_equal(np.asarray(back[name]), np.asarray(batch[name]))
    assert back["label"].untyped_storage().nbytes() == 64
    assert back["label"].stride() == batch["label"].stride()
    assert back["weights"].strides == batch["weights"].strides
    assert back["one"].strides == (0, 0)
    assert len(pickle.dumps(back["label"])) < 1_000


def test_a_copy_has_memory_of_its_own_throughout():
    value = {"a": torch.ones(3), "b": [np.ones(2), "text"]}
    value["c"] = value["a"]
    copy = copied(value)
    value["a"].zero_()
    value["b"][0][:] = 0
    assert copy["a"].tolist() == copy["c"].tolist() == [1, 1, 1]
    assert copy["b"][0].tolist() == [1, 1]
    thing = object()
    assert copied(thing) is thing


def test_without_new_memory_the_batch_lies_over_the_buffer():
    header, buffer = written([torch.zeros(3), np.zeros(3)])
    tensor, array = unpack(header, buffer)
    buffer[:] = 255
    assert tensor.isnan().all()
    assert np.isnan(array).all()


def test_a_batch_is_never_laid_over_memory_that_is_read_only():
    header, buffer = written(torch.zeros(3))
    buffer.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        unpack(header, buffer)
    check_same(unpack(header, buffer, empty=empty), torch.zeros(3))


def test_with_memory_of_its_own_a_batch_forgets_the_buffer():
    header, buffer = written([torch.zeros(3), np.zeros(3), bytes(1_000), bytearray(1_000)])
    back = unpack(header, buffer, empty=empty)
    buffer[:] = 255
    check_same(back, [torch.zeros(3), np.zeros(3), bytes(1_000), bytearray(1_000)])


def test_every_piece_starts_at_a_multiple_of_64_bytes():
    packed = pack([torch.ones(n) for n in (1, 0, 17, 33)] + [np.ones(n, "i1") for n in (3, 65)] + [bytes(999)])
    assert len(packed.pieces) == 6
    assert all(start % ALIGNMENT == 0 for start, _ in packed.pieces)
    ends = [start + len(piece) for start, piece in packed.pieces]
    assert all(end <= start for end, (start, _) in zip(ends, packed.pieces[1:], strict=False))
    assert packed.size == ends[-1]
    assert ALIGNMENT == 64


def test_packing_copies_no_values():
    batch = [torch.ones(4, 3).t(), np.ones((3, 4), order="F"), torch.ones(2, 9)[:, :-1], bytes(5_000)]
    pieces = [piece for _, piece in pack(batch).pieces]
    assert [piece.ctypes.data for piece in pieces[:3]] == [
        batch[0].data_ptr(), batch[1].ctypes.data, batch[2].data_ptr()
    ]  # fmt: skip
    assert all(piece.dtype == np.uint8 and piece.ndim == 1 and piece.flags.c_contiguous for piece in pieces)
    assert not any(piece.flags.owndata for piece in pieces)


def test_an_expanded_tensor_travels_once():
    mask = torch.ones(1, 50).expand(1_000, 50)
    assert pack(mask).size == 200
    assert there_and_back(mask).stride() == (0, 1)


def test_gaps_are_not_sent_but_where_they_are_few():
    columns, most = torch.ones(10, 100)[:, :50], torch.ones(10, 100)[:, 1:]
    assert pack(columns).size == 10 * 50 * 4
    assert pack(most).size == (9 * 100 + 99) * 4
    assert there_and_back(columns).is_contiguous()
    assert there_and_back(most).stride() == (100, 1)


def test_a_long_byte_string_is_a_piece_and_a_short_one_is_not():
    assert [len(pack(bytes(size)).pieces) for size in (0, 512, 513)] == [0, 0, 1]
    for value in (b"", bytes(512), bytes(513), bytearray(), bytearray(b"ab")):
        check_same(there_and_back(value), value)


def test_an_empty_bytearray_and_its_like_need_no_buffer():
    assert pack([bytearray(), torch.ones(0, 3), np.ones((2, 0)), "text", None]).size == 0
    check_same(there_and_back([bytearray(), torch.ones(0, 3), np.ones((2, 0))], make=None), [
        bytearray(), torch.ones(0, 3), np.ones((2, 0))
    ])  # fmt: skip


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**100, -(10**100)])
def test_a_number_of_any_size_comes_back(number):
    check_same(there_and_back({"n": [number, 1]}), {"n": [number, 1]})


@pytest.mark.parametrize("text", ["", "\N{DOG} läuft", "a\0b", "file\udc80.jpg", "\ud800"])
def test_text_of_any_kind_comes_back(text):
    check_same(there_and_back({"t": [text], text: 1}), {"t": [text], text: 1})


def test_conjugate_and_negative_views_come_back_with_their_values():
    view = torch.tensor([[1 + 2j], [3 - 4j]]).conj()
    back = there_and_back([view, view.imag])
    assert torch.equal(back[0], view.resolve_conj())
    assert torch.equal(back[1], view.imag.resolve_neg())


def test_gradients_and_subclasses_of_tensors_stay_behind():
    sent = [torch.ones(2, requires_grad=True), torch.nn.Parameter(torch.ones(2))]
    for back in (there_and_back(sent), owned(sent)):
        assert [type(tensor) for tensor in back] == [torch.Tensor] * 2
        assert not any(tensor.requires_grad for tensor in back)


def test_an_array_mapped_from_a_file_comes_back_as_an_array(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(10))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    for back in (there_and_back(mapped), owned(mapped)):
        assert type(back) is np.ndarray
        assert back.tolist() == list(range(10))
        assert back.flags.writeable


def test_what_was_packed_may_be_written_again_and_again():
    packed = pack([torch.arange(5), bytes(range(256)) * 4])
    first, second = (np.zeros(packed.size, np.uint8) for _ in range(2))
    write(packed, first)
    write(packed, second)
    assert np.array_equal(first, second)


def test_a_longer_buffer_is_as_good_and_a_shorter_one_is_refused():
    packed = pack(torch.arange(5))
    longer = np.empty(packed.size + 100, np.uint8)
    write(packed, longer)
    check_same(unpack(packed.header, longer, empty=empty), torch.arange(5))
    with pytest.raises(ValueError, match="39 bytes is too short for a batch of 40 bytes"):
        write(packed, longer[:39])
    with pytest.raises(ValueError, match="39 bytes is too short for a batch of 40 bytes"):
        unpack(packed.header, longer[:39], empty=empty)


def test_a_batch_that_is_let_go_frees_its_memory_at_once():
    memory = []

    def make(size):
        tensor = empty(size)
        memory.append(weakref.ref(tensor.untyped_storage()))
        return tensor

    gc.disable()
    try:
        back = there_and_back({"a": (torch.ones(3), [Pair(np.ones(2), 1)])}, make=make)
        views = weakref.ref(back["a"][0])
        del back
        assert views() is None
        assert memory[0]() is None
    finally:
        gc.enable()


def cyclic():
    knot = []
    knot.append(knot)
    return knot


def local():
    class Local:
        pass

    return Local()


REFUSED = [
    ({"x": torch.eye(3).to_sparse()}, r"^batch\['x'\]: is sparse \(torch.sparse_coo\); pass .to_dense\(\)"),
    ({"x": [1, torch.ones(2, device="meta")]}, r"^batch\['x'\]\[1\]: is on device \"meta\""),
    ({"x": (object(),)}, r"^batch\['x'\]\[0\]: is of type object, which would not arrive as itself"),
    (Example(1, object()), r"^batch.caption: is of type object"),
    ([Frozen({"k": Pair(1, {5: object()})})], r"^batch\[0\].value\['k'\].second\[5\]: is of type object"),
    ({"x": local()}, r"^batch\['x'\]: is of type test_stream_wire.local.<locals>.Local"),
    ({"x": np.array([None])}, r"^batch\['x'\]: has dtype object; pass a list"),
    ({"x": np.ma.ones(3)}, r"^batch\['x'\]: is a MaskedArray; pass numpy.asarray"),
    ({"x": np.zeros(2, "i4,f4")}, r"^batch\['x'\]: has dtype .*pass a dict with an array for each field"),
    ({"x": np.zeros(2, "i4,f4")[0]}, r"^batch\['x'\]: has dtype .*pass a dict"),
    ({"x": cyclic()}, r"^batch\['x'\]\[0\]\[0\]\[0\]: has values more than 64 levels deep"),
    ({"x": memoryview(b"a")}, r"^batch\['x'\]: is of type memoryview.*pass bytes\(value\)"),
    (OrderedDict({"x": {object: 1}}), r"^batch\['x'\]: has the key <class 'object'>; keys must be text"),
    (object(), r"^batch: is of type object"),
]


@pytest.mark.parametrize(("batch", "problem"), REFUSED)
@pytest.mark.parametrize("how", [pack, owned])
def test_what_cannot_be_carried_is_refused_with_its_place(batch, problem, how):
    with pytest.raises(SourceError, match=problem):
        how(batch)


def test_a_nested_tensor_is_refused():
    nested = torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    with pytest.raises(SourceError, match=r"batch\['n'\]: is a nested tensor; pass a list"):
        pack({"n": nested})


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_a_quantized_tensor_is_refused():
    with pytest.raises(SourceError, match=r"is quantized; pass \.dequantize"):
        pack(torch.quantize_per_tensor(torch.ones(2), scale=1.0, zero_point=0, dtype=torch.quint8))


def test_a_part_with_text_beyond_unicode_does_not_hide_what_is_wrong_elsewhere():
    with pytest.raises(SourceError, match=r"batch\[1\]: is of type object"):
        pack(["\udc80", object()])


def test_what_a_newer_version_sends_is_refused():
    header = (0).to_bytes(8, "little") + b"\xd4\x7f\x00"  # extension 127 with one byte
    with pytest.raises(SourceError, match="extension 127, which is unknown; run the same version"):
        unpack(header, np.empty(0, np.uint8), empty=empty)


def test_an_owned_batch_shares_what_has_memory_of_its_own():
    batch = {"a": torch.ones(3), "b": [np.ones(3)], "c": bytearray(3), "d": np.float32(1)}
    back = owned(batch)
    assert back is not batch
    assert back["b"] is not batch["b"]
    assert back["a"] is batch["a"]
    assert back["b"][0] is batch["b"][0]
    assert back["c"] is batch["c"]
    assert back["d"] is batch["d"]


def test_an_owned_batch_copies_what_would_pin_more_than_itself():
    tensor, array = torch.ones(8, 3, 4).permute(0, 2, 1)[2:4], np.ones((8, 3, 4))[2:4]
    expanded = torch.ones(1, 5).expand(4, 5)
    over_torch, wide = torch.ones(10).numpy()[2:], torch.ones(4, 100)[:, :3]
    back = owned([tensor, array, expanded, over_torch, wide])
    check_same(back, [tensor, array, expanded, over_torch, wide])
    assert back[0].untyped_storage().nbytes() == tensor.nbytes
    assert back[1].base is None or back[1].base.nbytes == array.nbytes
    assert back[2] is expanded
    assert not np.shares_memory(back[3], over_torch)
    assert back[4].untyped_storage().nbytes() == wide.nbytes


def test_an_array_over_a_whole_tensor_is_owned_and_one_over_bytes_is_not():
    whole, read_only = torch.ones(10).numpy(), np.frombuffer(bytes(80))
    back = owned([whole, read_only])
    assert back[0] is whole
    assert back[1].flags.writeable
    assert not np.shares_memory(back[1], read_only)


def test_the_strides_that_are_promised_are_those_of_a_copy_by_the_library():
    rows = drawn_tensor((6, 4), torch.float32, 1)
    assert tensor_strides(rows.t()) == (1, 4)
    assert tensor_strides(rows[::2].t()) == (1, 4)
    assert array_strides(rows.numpy().T[:, ::2]) == (4, 16)


def test_what_stands_in_a_batch_twice_has_two_memories_everywhere():
    tensor, array = torch.ones(3), np.ones(3)
    for back in (owned([tensor, tensor, array, array]), there_and_back([tensor, tensor, array, array])):
        back[0].zero_()
        back[2][:] = 0
        assert [one.sum() for one in back] == [0, 3, 0, 3]


def test_an_array_is_writable_everywhere():
    for array in (np.broadcast_to(np.ones(3), (2, 3)), np.frombuffer(bytes(8), np.uint8)):
        for back in (owned([array]), there_and_back([array])):
            assert back[0].flags.writeable
