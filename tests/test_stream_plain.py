"""A batch as tensors that may be cut, and back."""

from collections import OrderedDict, UserDict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stream.errors import SourceError, StreamError
from stream.plain import pack, pack_fault, unpack

NAMES = st.text(max_size=5)
ITEMS = st.one_of(st.text(), st.integers(), st.booleans(), st.none(), st.binary(), st.lists(st.text(), max_size=3))
DTYPES = st.sampled_from([torch.uint8, torch.int16, torch.int64, torch.float32, torch.bool])


def images(rows, *, height=5, width=7):
    """A batch as the loader makes it: [B, 3, H, W] over HWC memory."""
    count = rows * height * width * 3
    memory = (torch.arange(count) % 251).to(torch.uint8).reshape(rows, height, width, 3)
    return memory.permute(0, 3, 1, 2)


def cut(packed, ranks):
    """What each rank has after the stock dispatcher sent the whole step: its slice of every tensor."""
    rows = {len(tensor) for tensor in packed.values()}
    assert len(rows) == 1
    share, rest = divmod(rows.pop(), ranks)
    assert rest == 0
    sent = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in packed.items()}
    return [{name: t[rank * share : (rank + 1) * share] for name, t in sent.items()} for rank in range(ranks)]


def joined(parts):
    """The leaves of the ranks put together again."""
    first = parts[0]
    if isinstance(first, dict):
        assert all(list(part) == list(first) for part in parts)
        return {name: joined([part[name] for part in parts]) for name in first}
    if isinstance(first, torch.Tensor):
        assert len({(part.dtype, part.stride()) for part in parts}) == 1
        return torch.cat(parts)
    return type(first)(value for part in parts for value in part)


def check_equal(left, right):
    assert type(left) is type(right)
    if isinstance(left, dict):
        assert list(left) == list(right)
        for name in left:
            check_equal(left[name], right[name])
    elif isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype
        assert torch.equal(left, right)
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            check_equal(one, other)
    else:
        assert left == right


@st.composite
def leaves(draw, rows):
    kind = draw(st.sampled_from(["tensor", "list", "tuple", "loose", "empty"]))
    if kind == "empty":
        return {}
    if kind == "tensor":
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        order = draw(st.permutations(range(1, len(shape) + 1)))
        values = torch.arange(rows * torch.Size(shape).numel()) % 3
        return values.reshape(rows, *shape).to(draw(DTYPES)).permute(0, *order)
    if kind == "loose":
        return [torch.full(draw(st.lists(st.integers(0, 3), max_size=2)), n, dtype=draw(DTYPES)) for n in range(rows)]
    values = draw(st.lists(ITEMS, min_size=rows, max_size=rows))
    return values if kind == "list" else tuple(values)


@st.composite
def cases(draw):
    ranks = draw(st.integers(1, 4))
    rows = ranks * draw(st.integers(1, 3))
    flat = st.dictionaries(NAMES, leaves(rows), max_size=3)
    nested = st.dictionaries(NAMES, st.one_of(leaves(rows), flat), max_size=4)
    return draw(nested), rows, ranks, draw(st.integers(0, rows))


@given(cases())
def test_any_batch_cut_over_any_ranks_comes_back(case):
    batch, rows, ranks, real_rows = case
    unpacked = [unpack(part) for part in cut(pack(batch, rows=rows, real_rows=real_rows), ranks)]
    assert [found for _, found in unpacked] == [real_rows] * ranks
    check_equal(joined([part for part, _ in unpacked]), batch)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_batch_of_the_loader_comes_back(ranks):
    batch = {
        "image": images(12),
        "caption": [f"Ein Hund läuft {number}. " for number in range(12)],
        "key": [f"{number:012d}" for number in range(12)],
    }
    parts = [unpack(part)[0] for part in cut(pack(batch, rows=12, real_rows=7), ranks)]
    assert all(part["image"].is_contiguous(memory_format=torch.channels_last) for part in parts)
    assert all(part["image"].stride() == batch["image"].stride() for part in parts)
    check_equal(joined(parts), batch)


def test_images_of_their_own_sizes_come_back_with_their_strides():
    sizes = [(3, 4), (1, 1), (9, 2), (2, 9)]
    full = [images(1, height=height, width=width)[0] for height, width in sizes]
    parts = [unpack(part)[0]["image"] for part in cut(pack({"image": full}, rows=4, real_rows=4), 2)]
    for back, image in zip(parts[0] + parts[1], full, strict=True):
        assert torch.equal(back, image)
        assert back.stride() == image.stride()


def test_tensors_travel_without_a_copy_and_come_back_as_views():
    batch = {"image": images(4)}
    packed = pack(batch, rows=4, real_rows=4)
    assert unpack(packed)[0]["image"].data_ptr() == batch["image"].data_ptr()


def test_all_that_is_sent_is_contiguous_and_cut_along_the_rows():
    batch = {
        "image": images(4),
        "n": torch.arange(4.0),
        "boxes": [torch.ones(n, 4) for n in range(4)],
        "key": list("abcd"),
    }
    packed = pack(batch, rows=4, real_rows=4)
    assert all(tensor.is_contiguous() and len(tensor) == 4 for tensor in packed.values())
    # Collectives of gloo know no other integers than these; see test_stream_layout for the dtypes.
    assert {tensor.dtype for tensor in packed.values()} == {torch.uint8, torch.int64}


def test_targets_with_tensors_in_them_come_back():
    batch = {"target": [{"boxes": torch.rand(n, 4), "labels": [n] * n, "size": (n, 4)} for n in range(4)]}
    parts = [unpack(part)[0] for part in cut(pack(batch, rows=4, real_rows=4), 4)]
    check_equal(joined(parts), batch)


def test_every_mapping_becomes_a_dict_in_the_order_of_its_names():
    batch = UserDict(inputs=OrderedDict(ids=torch.ones(2, 3), mask=torch.ones(2, 3)), b=["x", "y"], a=["z", ""])
    back, _ = unpack(pack(batch, rows=2, real_rows=2))
    check_equal(back, {"inputs": {"ids": torch.ones(2, 3), "mask": torch.ones(2, 3)}, "b": ["x", "y"], "a": ["z", ""]})


def test_a_batch_of_nothing_comes_back():
    assert unpack(pack({}, rows=2, real_rows=1)) == ({}, 1)


REFUSED = [
    ({"x": torch.ones(3, 2)}, r"batch\['x'\]: has shape \(3, 2\), but dim 0 must be the 4 rows"),
    ({"x": torch.tensor(1)}, r"batch\['x'\]: has shape \(\), but dim 0 must be the 4 rows"),
    ({"x": torch.eye(4).to_sparse()}, r"batch\['x'\]: is sparse"),
    ({"x": ["a"] * 3}, r"batch\['x'\]: has 3 values for 4 rows"),
    ({"x": {"y": "text"}}, r"batch\['x'\]\['y'\]: is of type str, which cannot be cut"),
    ({"x": 3}, r"batch\['x'\]: is of type int, which cannot be cut"),
    ({"x": np.zeros(4)}, r"batch\['x'\]: is of type ndarray, which cannot be cut.*pass a tensor"),
    ({"x": [1, 2, 3, object()]}, r"batch\['x'\]\[3\]: is of type object"),
    ({"x": {1: ["a"] * 4}}, r"batch\['x'\]: has a part named 1"),
]


@pytest.mark.parametrize(("batch", "problem"), REFUSED)
def test_what_cannot_be_carried_is_refused_with_its_place(batch, problem):
    with pytest.raises(SourceError, match=problem):
        pack(batch, rows=4, real_rows=4)


@pytest.mark.parametrize(("rows", "real_rows"), [(0, 0), (2, 3), (2, -1)])
def test_numbers_of_rows_out_of_bounds_are_refused(rows, real_rows):
    with pytest.raises(ValueError, match=f"{real_rows} real rows of {rows} rows"):
        pack({}, rows=rows, real_rows=real_rows)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_fault_is_the_same_error_on_every_rank(ranks):
    packed = pack_fault(ranks, "DecodeError: image 7.jpg: empty file, Größe 0")
    messages = set()
    for part in cut(packed, ranks):
        with pytest.raises(StreamError) as caught:
            unpack(part)
        messages.add(str(caught.value))
    assert messages == {"the reader, on rank 0: DecodeError: image 7.jpg: empty file, Größe 0"}


def test_a_fault_needs_no_text():
    with pytest.raises(SourceError, match="the reader, on rank 0"):
        unpack(pack_fault(2, ""))


def test_a_fault_with_odd_text_still_arrives():
    with pytest.raises(SourceError, match="file name \\?"):
        unpack(pack_fault(1, "file name \udc80"))
