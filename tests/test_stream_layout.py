"""Tensors as rows of bytes and back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stream.layout import from_rows, refusal, to_rows

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


def numbered(shape, dtype=torch.uint8):
    """A tensor whose bytes tell one place from another, also for types that arithmetic does not know."""
    items = torch.Size(shape).numel()
    if dtype is torch.bool:
        return (torch.arange(items) % 3 == 0).reshape(shape)
    data = torch.arange(items * dtype.itemsize) % 53
    return data.to(torch.uint8).view(dtype).reshape(shape)


def same(left, right):
    """Whether two tensors agree in dtype, shape and bits."""
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        return False
    bits = [tensor.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8) for tensor in (left, right)]
    return torch.equal(*bits)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 2, 3), (4, 0), (4, 1, 1)])
def test_every_dtype_comes_back_from_any_run_of_rows(dtype, shape):
    tensor = numbered(shape, dtype)
    data, layout = to_rows(tensor)
    assert data.dtype == torch.uint8
    assert data.shape == (4, tensor[0].numel() * dtype.itemsize)
    assert data.is_contiguous()
    for start, stop in [(0, 4), (0, 1), (1, 3), (3, 4)]:
        assert same(from_rows(data[start:stop], layout), tensor[start:stop])


PERMUTED = {
    "channels_last": numbered((2, 5, 7, 3)).permute(0, 3, 1, 2),
    "one channel": numbered((2, 5, 7, 1)).permute(0, 3, 1, 2),
    "one pixel": numbered((2, 1, 1, 3)).permute(0, 3, 1, 2),
    "one row": numbered((1, 5, 7, 3)).permute(0, 3, 1, 2),
    "transposed rows": numbered((2, 7, 5)).transpose(1, 2),
    "part of a larger one": numbered((9, 5, 3))[4:6],
}


@pytest.mark.parametrize("tensor", PERMUTED.values(), ids=PERMUTED)
def test_a_tensor_without_gaps_keeps_its_strides_and_its_memory(tensor):
    data, layout = to_rows(tensor)
    assert data.data_ptr() == tensor.data_ptr()
    back = from_rows(data, layout)
    assert same(back, tensor)
    assert back.stride() == tensor.stride()
    assert back.data_ptr() == tensor.data_ptr()


def test_a_slice_of_a_channels_last_batch_is_channels_last():
    data, layout = to_rows(numbered((4, 5, 7, 3)).permute(0, 3, 1, 2))
    assert from_rows(data[2:4], layout).is_contiguous(memory_format=torch.channels_last)


GAPS = {
    "every second": numbered((2, 10))[:, ::2],
    "columns": numbered((2, 10))[:, 3:7],
    "rows apart": numbered((4, 3))[::2],
    "rows not first": numbered((3, 2)).t(),
    "expanded": numbered((1, 3)).expand(2, 3),
    "overlapping": numbered((5,)).unfold(0, 4, 1),
}


@pytest.mark.parametrize("tensor", GAPS.values(), ids=GAPS)
def test_any_other_tensor_comes_back_contiguous(tensor):
    data, layout = to_rows(tensor)
    back = from_rows(data, layout)
    assert same(back, tensor)
    assert back.is_contiguous()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(lambda shape: shape[0] > 0), st.data())
def test_any_permuted_and_cut_tensor_comes_back(shape, data):
    tensor = numbered(shape, torch.int16).permute(data.draw(st.permutations(range(len(shape)))))
    cuts = tuple(slice(data.draw(st.integers(0, 1)), None, data.draw(st.integers(1, 2))) for _ in shape)
    tensor = tensor[cuts]
    if tensor.shape[0] == 0:
        return
    rows, layout = to_rows(tensor)
    back = from_rows(rows, layout)
    assert same(back, tensor)
    assert back.stride() == tensor.stride() or back.is_contiguous()


def test_conjugate_and_negative_views_come_back_with_their_values():
    tensor = torch.tensor([[1 + 2j], [3 - 4j]])
    for view in (tensor.conj(), tensor.conj().imag):
        data, layout = to_rows(view)
        assert torch.equal(from_rows(data, layout), view)


def test_gradients_stay_behind():
    data, layout = to_rows(torch.ones(2, requires_grad=True))
    assert not from_rows(data, layout).requires_grad


def test_a_subclass_becomes_a_plain_tensor():
    data, layout = to_rows(torch.nn.Parameter(torch.ones(2), requires_grad=False))
    assert type(from_rows(data, layout)) is torch.Tensor


def test_what_has_no_plain_bytes_is_refused_with_what_to_do():
    assert "to_dense" in refusal(torch.eye(3).to_sparse())
    assert "meta" in refusal(torch.empty(3, device="meta"))
    assert "a list" in refusal(torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged))
    assert refusal(torch.ones(3)) is None


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_a_quantized_tensor_is_refused():
    tensor = torch.quantize_per_tensor(torch.ones(2), scale=1.0, zero_point=0, dtype=torch.quint8)
    assert "dequantize" in refusal(tensor)
