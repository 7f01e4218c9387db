"""Tensors and arrays as one run of bytes and back."""

import numpy as np
import pytest
import torch

from batches import check_array, check_tensor, drawn_array, drawn_tensor
from stream.spans import (
    array_over,
    array_problem,
    array_span,
    dtype_problem,
    own_array,
    own_tensor,
    plain,
    tensor_bytes,
    tensor_over,
    tensor_problem,
    tensor_span,
)

WHOLE = drawn_tensor((4, 5, 6), torch.int32, 1)
TENSORS = {
    "contiguous": WHOLE,
    "permuted": WHOLE.permute(2, 0, 1),
    "part": WHOLE[1:3],
    "expanded": WHOLE[:1].expand(4, 5, 6),
    "overlapping": drawn_tensor((9,), torch.int32, 1).unfold(0, 4, 1),
    "few gaps": drawn_tensor((3, 20), torch.int32, 1)[:, 1:],
    "0-d": drawn_tensor((), torch.int32, 1),
}


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_a_tensor_with_few_gaps_shares_its_memory_and_keeps_its_strides(tensor):
    data, strides = tensor_span(tensor)
    assert data.data_ptr() == tensor.data_ptr()
    assert strides == tensor.stride()
    assert data.numel() == tensor_bytes(tensor.shape, strides, tensor.itemsize)
    check_tensor(tensor_over(data, tensor.dtype, tensor.shape, strides), tensor)


def test_a_tensor_with_many_gaps_is_copied_without_them():
    tensor = WHOLE[:, ::2]
    data, strides = tensor_span(tensor)
    assert data.numel() == tensor.nbytes
    assert not torch.equal(torch.tensor(data.data_ptr()), torch.tensor(tensor.data_ptr()))
    check_tensor(tensor_over(data, tensor.dtype, tensor.shape, strides), tensor)


def test_a_gap_for_eight_values_is_sent_and_one_for_seven_is_closed():
    nine, eight = drawn_tensor((9, 9), torch.uint8, 1)[:, 1:], drawn_tensor((40, 8), torch.uint8, 1)[:, 1:]
    assert tensor_span(nine)[1] == (9, 1)
    assert tensor_span(eight)[1] == (7, 1)


def test_an_empty_tensor_has_no_bytes_and_keeps_its_strides():
    tensor = WHOLE.permute(2, 0, 1)[:, :0]
    data, strides = tensor_span(tensor)
    assert data.numel() == 0
    assert tensor_bytes(tensor.shape, strides, 4) == 0
    assert tensor_over(data, tensor.dtype, tensor.shape, strides).stride() == tensor.stride()


def test_a_dtype_that_torch_cannot_copy_has_its_gaps_closed_too():
    data, strides = tensor_span(drawn_tensor((4, 6), torch.int4, 1)[:, ::2])
    assert data.numel() == 12
    assert strides == (3, 1)


def test_a_plain_tensor_stays_the_same_object():
    assert plain(WHOLE) is WHOLE


ROWS = drawn_array((4, 5, 6), "i4", 1)
ARRAYS = {
    "contiguous": ROWS,
    "fortran": np.asfortranarray(ROWS),
    "permuted": ROWS.transpose(2, 0, 1),
    "part": ROWS[1:3],
    "reversed": ROWS[::-1],
    "all reversed": ROWS[::-1, ::-1, ::-1].transpose(1, 0, 2),
    "broadcast": np.broadcast_to(ROWS[0], (7, 5, 6)),
    "few gaps": drawn_array((3, 20), ">f8", 1)[:, 1:],
    "few gaps reversed": drawn_array((3, 20), ">f8", 1)[:, :0:-1],
    "0-d": drawn_array((), "f4", 1),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_an_array_with_few_gaps_shares_its_memory_and_keeps_its_strides(array):
    data, start, strides = array_span(array)
    assert np.shares_memory(data, array)
    assert strides == array.strides
    check_array(array_over(data.copy(), start, array.dtype, array.shape, strides), array)


def test_an_array_with_many_gaps_is_copied_without_them():
    for array in (ROWS[:, ::2], ROWS[:, ::-2], np.asfortranarray(ROWS)[::3]):
        data, start, strides = array_span(array)
        assert (data.nbytes, start) == (array.nbytes, 0)
        assert not np.shares_memory(data, array)
        check_array(array_over(data, start, array.dtype, array.shape, strides), array)


def test_a_field_of_records_is_copied_out_of_them():
    records = np.zeros(5, "i4,i1")
    records["f0"] = range(5)
    data, start, strides = array_span(records["f0"])
    assert array_over(data, start, np.dtype("i4"), (5,), strides).tolist() == [0, 1, 2, 3, 4]
    assert data.nbytes == 20


def test_an_empty_array_keeps_its_shape_and_strides():
    array = ROWS.transpose(2, 0, 1)[:, :0]
    data, start, strides = array_span(array)
    back = array_over(data, start, array.dtype, array.shape, strides)
    assert (back.shape, back.strides, back.dtype) == (array.shape, array.strides, array.dtype)


def test_text_of_no_width_comes_back():
    array = np.ndarray((2,), "U0")
    back = array_over(np.empty(0, np.uint8), 0, array.dtype, (2,), (0,))
    assert back.tolist() == ["", ""]


class Wrapper(torch.Tensor):
    """A tensor without memory, as DTensor is one."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return NotImplemented


def test_a_tensor_without_memory_is_refused():
    assert tensor_problem(Wrapper(torch.ones(3))) == "is a Wrapper without values of its own; pass a plain tensor"
    assert tensor_problem(torch.nn.Parameter(torch.ones(3))) is None


def test_a_fake_tensor_is_refused():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(3)
    assert "without values of its own" in tensor_problem(fake)


def test_sparse_tensors_are_refused():
    assert "to_dense" in tensor_problem(torch.eye(3).to_sparse())


def test_an_array_of_another_class_is_refused():
    assert "pass numpy.asarray" in array_problem(np.ma.ones(3))
    assert array_problem(np.ones(3)) is None


def test_dtypes_that_do_not_come_back_by_their_names_are_refused():
    assert "pass a list" in dtype_problem(np.dtype(object))
    assert "for each field" in dtype_problem(np.dtype("i4,f4"))
    assert "pass a list" in dtype_problem(np.dtypes.StringDType())
    assert dtype_problem(np.dtype(">U3")) is None


def bytes_of(count):
    return torch.empty(count, dtype=torch.uint8)


def test_what_owns_its_memory_is_the_same_object_and_what_does_not_is_copied():
    assert own_tensor(WHOLE, bytes_of) is WHOLE
    assert own_tensor(WHOLE[1:], bytes_of).untyped_storage().nbytes() == WHOLE[1:].nbytes
    array = np.ones((4, 5))
    assert own_array(array) is array
    assert own_array(array.T).base is array
    assert not np.shares_memory(own_array(array[1:]), array)
    check_array(own_array(array[::-1]), array[::-1])
