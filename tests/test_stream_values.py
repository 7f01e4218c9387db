"""The values of one row as msgpack and back."""

import enum
import math
from collections import OrderedDict
from datetime import UTC, datetime
from fractions import Fraction
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stream.errors import SourceError
from stream.values import ValueReader, ValueWriter

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(), inner, max_size=3),
    ),
    max_leaves=12,
)


def there_and_back(value):
    writer = ValueWriter()
    message = msgspec.msgpack.encode(writer.value(("x", 0), value))
    loose = torch.full((3, max(writer.size, 1)), 255, dtype=torch.uint8)
    for start, flat in writer.tensors:
        loose[1, start : start + len(flat)] = flat
    reader = ValueReader(loose)
    reader.row = 1
    return msgspec.msgpack.decode(message, ext_hook=reader.hook)


def kinds(value):
    """The value with the type of each part beside it, since True == 1 == 1.0 and (1,) travels as an extension."""
    if isinstance(value, list | tuple):
        return type(value), [kinds(item) for item in value]
    if isinstance(value, dict):
        return dict, [(key, kinds(item)) for key, item in value.items()]
    return type(value), value


@given(VALUES)
def test_a_value_comes_back_as_it_was(value):
    assert kinds(there_and_back(value)) == kinds(value)


@pytest.mark.parametrize("value", [-(2**63) - 1, -(2**63), 2**64 - 1, 2**64, -(2**64), 2**127, -(2**127), 10**400])
def test_integers_of_any_size_come_back(value):
    assert there_and_back(value) == value


def test_numbers_that_are_none_come_back():
    back = there_and_back([math.nan, math.inf, -math.inf, -0.0])
    assert math.isnan(back[0])
    assert back[1:] == [math.inf, -math.inf, 0.0]
    assert math.copysign(1, back[3]) == -1


def test_the_order_of_keys_is_kept():
    assert list(there_and_back({"b": 1, "a": 2, "": 3})) == ["b", "a", ""]


def test_tensors_come_back_wherever_they_are():
    value = {"boxes": torch.ones(2, 4), "parts": (torch.tensor(3), [torch.zeros(0, 5, dtype=torch.int16)])}
    back = there_and_back(value)
    assert torch.equal(back["boxes"], value["boxes"])
    assert torch.equal(back["parts"][0], torch.tensor(3))
    assert back["parts"][1][0].shape == (0, 5)
    assert back["parts"][1][0].dtype == torch.int16


@given(st.lists(st.sampled_from([torch.uint8, torch.int16, torch.float64, torch.complex128]), max_size=5))
def test_each_tensor_of_a_row_is_aligned(dtypes):
    tensors = [torch.ones(3, dtype=dtype) for dtype in dtypes]
    for back, tensor in zip(there_and_back(tensors), tensors, strict=True):
        assert torch.equal(back, tensor)
        assert back.storage_offset() * back.itemsize % 16 == 0


def test_an_image_keeps_its_strides():
    image = torch.arange(30, dtype=torch.uint8).reshape(5, 2, 3).permute(2, 0, 1)
    back = there_and_back(image)
    assert torch.equal(back, image)
    assert back.stride() == image.stride()


class Size(NamedTuple):
    height: int
    width: int


class Colour(enum.IntEnum):
    RED = 1


ODD = [
    (np.float64(1.0), r"numpy\.float64.*pass float\(value\)"),
    (np.int64(1), r"numpy\.int64.*value\.item\(\)"),
    (np.zeros(3), r"numpy\.ndarray.*torch\.from_numpy\(value\)"),
    (bytearray(b"x"), r"bytearray.*pass bytes\(value\)"),
    (memoryview(b"x"), r"memoryview.*pass bytes\(value\)"),
    (Colour.RED, r"Colour.*pass int\(value\)"),
    (OrderedDict(a=1), r"OrderedDict.*pass dict\(value\)"),
    (Size(1, 2), r"Size.*pass tuple\(value\)"),
    ({1, 2}, r"set.*pass text, bytes, numbers"),
    (datetime(2024, 1, 1, tzinfo=UTC), r"datetime.*pass text"),
    (Fraction(1, 2), r"Fraction.*pass text"),
    (object(), r"object.*pass text"),
    ({1: "a"}, "key 1; only keys that are text"),
    ("\ud800", "half of a surrogate pair"),
    ({"\ud800": 1}, "half of a surrogate pair"),
    (torch.eye(2).to_sparse(), "sparse"),
]


@pytest.mark.parametrize(("value", "problem"), ODD, ids=[type(value).__name__ for value, _ in ODD])
def test_what_would_not_come_back_as_itself_is_refused(value, problem):
    with pytest.raises(SourceError, match=problem):
        there_and_back(value)


def test_the_place_in_the_batch_is_named():
    with pytest.raises(SourceError) as caught:
        there_and_back([{"a": (1, object())}])
    assert caught.value.where == "batch['x'][0][0]['a'][1]"


def test_a_list_that_holds_itself_is_refused():
    endless = []
    endless.append(endless)
    with pytest.raises(SourceError, match="more than 64 levels deep"):
        there_and_back(endless)


def test_an_extension_of_others_is_refused():
    with pytest.raises(ValueError, match="extension 9"):
        ValueReader(None).hook(9, memoryview(b""))
