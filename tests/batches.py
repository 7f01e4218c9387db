"""Random batches of any structure, and what it means that one came back."""

import dataclasses
import struct
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st

EVERY_DTYPE = sorted(
    {
        found
        for found in map(torch.__dict__.get, dir(torch))
        if isinstance(found, torch.dtype) and not str(found).startswith(("torch.qint", "torch.quint"))
    },
    key=str,
)
ARRAY_DTYPES = [
    "?",
    "u1",
    "i2",
    ">i4",
    "u4",
    "<i8",
    "f2",
    ">f4",
    "f8",
    "g",
    "F",
    "D",
    "S3",
    "<U2",
    ">U2",
    "M8[s]",
    "m8[ns]",
    "V5",
]


class Pair(NamedTuple):
    first: Any
    second: Any


Old = namedtuple("Old", "boxes labels")  # noqa: PYI024 - the old form is among what users have


@dataclasses.dataclass
class Example:
    image: Any
    caption: Any = None
    hidden: Any = dataclasses.field(default=None, init=False, repr=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    value: Any


class Encoding(UserDict):
    """As transformers' BatchEncoding: a mapping that is no dict."""


def drawn_tensor(shape, dtype, seed):
    """A tensor of random bits, NaNs of every kind among them."""
    items = torch.Size(shape).numel()
    generator = torch.Generator().manual_seed(seed)
    data = torch.randint(0, 256, (items * dtype.itemsize,), generator=generator, dtype=torch.uint8)
    return ((data % 2) if dtype is torch.bool else data).view(dtype).reshape(shape)


def drawn_array(shape, dtype, seed):
    """An array of random values: bits where all bits are values, letters where they are text."""
    dtype = np.dtype(dtype)
    random = np.random.default_rng(seed)
    if dtype.kind in "SU":
        return random.choice(np.array(["", "a", "bc", "ä" if dtype.kind == "U" else "d"]), shape).astype(dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(bool)
    size = int(np.prod(shape))
    return random.integers(0, 256, size * dtype.itemsize, dtype=np.uint8).view(dtype).reshape(shape)


SHAPES = st.lists(st.integers(0, 4), max_size=4)
SEEDS = st.integers(0, 2**16)


@st.composite
def laid_out(draw, value, *, reverse):
    """The value with other strides: permuted, cut, expanded, reversed."""
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["permute", "cut", "expand", "part"]))
        if kind == "permute":
            order = draw(st.permutations(range(value.ndim)))
            value = value.permute(order) if isinstance(value, torch.Tensor) else value.transpose(order)
        elif kind == "cut" and value.ndim:
            steps = st.sampled_from([1, 1, 2, 3, -1] if reverse else [1, 1, 2, 3])
            value = value[tuple(slice(None, None, draw(steps)) for _ in range(value.ndim))]
        elif kind == "expand" and value.ndim < 5:
            shape = (draw(st.integers(0, 3)), *value.shape)
            value = value.expand(shape) if isinstance(value, torch.Tensor) else np.broadcast_to(value, shape)
        elif kind == "part" and value.ndim:
            value = value[..., draw(st.integers(0, 1)) :]
    return value


@st.composite
def tensors(draw):
    return draw(laid_out(drawn_tensor(draw(SHAPES), draw(st.sampled_from(EVERY_DTYPE)), draw(SEEDS)), reverse=False))


@st.composite
def arrays(draw):
    array = drawn_array(draw(SHAPES), draw(st.sampled_from(ARRAY_DTYPES)), draw(SEEDS))
    return draw(laid_out(np.asarray(array, order=draw(st.sampled_from("CF"))), reverse=True))


@st.composite
def scalars(draw):
    return drawn_array((1,), draw(st.sampled_from(ARRAY_DTYPES)), draw(SEEDS))[0]


TEXT = st.text(st.characters(codec=None), max_size=6)  # half surrogate pairs among them
PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-(2**200), 2**200), st.floats(), st.complex_numbers(), TEXT
)
BYTES = st.one_of(st.binary(max_size=8), st.integers(500, 600).map(bytes), st.binary(max_size=600).map(bytearray))
KEYS = st.one_of(TEXT, st.integers(), st.binary(max_size=3), st.none(), st.tuples(st.integers(), TEXT), st.floats())
LEAVES = st.one_of(PLAIN, PLAIN, BYTES, tensors(), tensors(), arrays(), scalars())


def containers(parts):
    tables = st.one_of(st.dictionaries(TEXT, parts, max_size=3), st.dictionaries(KEYS, parts, max_size=3))
    return st.one_of(
        st.lists(parts, max_size=4),
        st.lists(TEXT, max_size=4),
        st.lists(parts, max_size=3).map(tuple),
        tables,
        tables.map(OrderedDict),
        st.tuples(st.sampled_from([list, int, None]), tables).map(lambda made: defaultdict(*made)),
        st.dictionaries(TEXT, parts, max_size=3).map(Encoding),
        st.dictionaries(TEXT, parts, max_size=3).map(UserDict),
        st.builds(Pair, parts, parts),
        st.builds(Old, parts, parts),
        st.builds(Example, parts, parts),
        st.builds(Frozen, parts),
        st.sets(KEYS, max_size=3),
        st.frozensets(KEYS, max_size=3),
        st.lists(st.integers(0, 9), max_size=3).map(torch.Size),
    )


def batches():
    return st.recursive(LEAVES, containers, max_leaves=12)


def tensor_strides(tensor):
    """The strides that a tensor is to come back with."""
    if tensor.numel() == 0:
        return tensor.stride()
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.stride() if extent <= tensor.numel() * 9 // 8 else carrier(tensor).clone().stride()


def array_strides(array):
    """The strides that an array is to come back with."""
    if array.size == 0:
        return array.strides
    low, high = np.lib.array_utils.byte_bounds(array)
    few_gaps = high - low <= array.nbytes + array.nbytes // 8
    return array.strides if few_gaps else array.copy(order="K").strides


def carrier(tensor):
    """The same bytes in a dtype that torch can copy and compare; it can do neither with int4 and its like."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
    return tensor.view(whole[tensor.itemsize])


def bits(tensor):
    return carrier(tensor).clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)


def check_tensor(back, sent):
    assert type(back) is torch.Tensor
    assert (back.dtype, back.shape, back.stride()) == (sent.dtype, sent.shape, tensor_strides(sent))
    assert torch.equal(bits(back), bits(sent))


def check_array(back, sent):
    assert type(back) is np.ndarray
    assert (back.dtype, back.shape, back.strides) == (sent.dtype, sent.shape, array_strides(sent))
    assert back.dtype.str == sent.dtype.str
    assert back.tobytes() == sent.tobytes()


def check_same(back, sent):
    """Equal in type, structure, order and bits."""
    if isinstance(sent, torch.Tensor):
        check_tensor(back, sent)
    elif isinstance(sent, np.ndarray):
        check_array(back, sent)
    else:
        assert type(back) is type(sent)
        CHECKS.get(type(sent), check_other)(back, sent)


def check_other(back, sent):
    if isinstance(sent, np.generic):
        assert (back.dtype.str, back.tobytes()) == (sent.dtype.str, sent.tobytes())
    elif dataclasses.is_dataclass(sent):
        names = [field.name for field in dataclasses.fields(sent)]
        check_parts([getattr(back, name) for name in names], [getattr(sent, name) for name in names])
    elif isinstance(sent, tuple | list):
        check_parts(back, sent)
    elif isinstance(sent, dict | UserDict):
        check_parts(list(back), list(sent))
        check_parts(list(back.values()), list(sent.values()))
        assert getattr(back, "default_factory", 0) is getattr(sent, "default_factory", 0)
    else:
        assert back == sent


def check_parts(back, sent):
    assert len(back) == len(sent)
    for one, other in zip(back, sent, strict=True):
        check_same(one, other)


def check_float(back, sent):
    assert struct.pack("<d", back) == struct.pack("<d", sent)


def check_complex(back, sent):
    assert struct.pack("<dd", back.real, back.imag) == struct.pack("<dd", sent.real, sent.imag)


def check_set(back, sent):
    assert sorted(map(repr, back)) == sorted(map(repr, sent))


CHECKS = {float: check_float, complex: check_complex, set: check_set, frozenset: check_set}
