"""Containers taken apart and put together, and the walk through a batch."""

import dataclasses
import enum
import sys
import types
from collections import Counter, OrderedDict, UserDict, defaultdict
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import pytest
import torch

from batches import Encoding, Example, Frozen, Pair
from stream.containers import (
    DATACLASS,
    MAPPING,
    NAMED,
    NATIVE,
    ORDERED,
    SIZE,
    Attribute,
    Unfit,
    Walk,
    build,
    refuse,
    take,
)
from stream.errors import SourceError

Item = TypeVar("Item")


@dataclasses.dataclass
class Slotted:
    __slots__ = ("a", "b")
    a: int
    b: int


@dataclasses.dataclass
class Boxed(Generic[Item]):
    item: Item


@dataclasses.dataclass
class Derived(Example):
    score: float = 0.5

    def __post_init__(self):
        raise RuntimeError("a class is never set up again")


@dataclasses.dataclass
class Output(OrderedDict):
    logits: int = 0


class Strict(UserDict):
    def __init__(self, data, *, tokenizer):
        super().__init__(data)
        self.tokenizer = tokenizer


class Colour(enum.Enum):
    RED = 1


class StrictPair(NamedTuple("StrictPair", [("first", int)])):  # noqa: SLOT002 - what it is about
    """A named tuple whose instances have attributes of their own."""


def again(value):
    taken = take(value)
    return build(taken.code, taken.words, list(taken.parts))


CONTAINERS = [
    (1, "a"),
    (),
    torch.Size([2, 3]),
    {1, "a"},
    frozenset({(1, 2)}),
    {1: "a", (2, None): "b", b"c": 3.0, np.int64(5): 1},
    OrderedDict(b=1, a=2),
    defaultdict(list, a=1),
    defaultdict(None, {1: 2}),
    UserDict(b=1, a=2),
    Encoding({1: 2}),
    Pair(1, [2]),
    Example(1, "text"),
    Frozen(3),
    Slotted(1, 2),
    Boxed[int](3),
]


@pytest.mark.parametrize("value", CONTAINERS, ids=lambda value: type(value).__name__)
def test_a_container_is_the_same_after_it_was_taken_apart(value):
    back = again(value)
    assert type(back) is type(value)
    assert back == value
    assert list(back) == list(value) if not dataclasses.is_dataclass(value) else True
    assert getattr(back, "default_factory", 0) is getattr(value, "default_factory", 0)


def test_a_dataclass_keeps_what_was_set_beside_its_fields():
    value = Example(1)
    value.extra = 5
    assert again(value).extra == 5


def test_a_field_that_was_never_set_stays_unset():
    value = Example(1)
    del value.image
    assert "image" not in vars(again(value))


def test_a_dataclass_comes_back_without_its_own_setup():
    value = object.__new__(Derived)
    value.__dict__.update(image=1, caption=2, hidden=3, score=4.0)
    assert again(value) == value


def test_the_path_into_a_class_is_its_attributes():
    assert list(take(Example(1, 2)).steps) == ["image", "caption", "hidden"]
    assert {type(step) for step in [*take(Example(1)).steps, *take(Pair(1, 2)).steps]} == {Attribute}


def local():
    @dataclasses.dataclass
    class Local:
        value: int = 1

    return Local()


def nameless():
    kind = dataclasses.make_dataclass("Nowhere", ["value"])
    kind.__module__ = __name__
    return kind(1)


REFUSED = [
    (local(), "is of the local class test_stream_containers.local.<locals>.Local.*define it in a module"),
    (nameless(), "is of class test_stream_containers.Nowhere, which is not found under this name"),
    (Output(1), r"is of type test_stream_containers.Output, which is more than its fields; pass dict\(value\)"),
    (Strict({}, tokenizer=1), r"is of type test_stream_containers.Strict.*pass dict\(value\)"),
    (Counter("aab"), r"is of type collections.Counter, .*pass dict\(value\)"),
    (Colour.RED, r"is of type test_stream_containers.Colour, .*pass value.value"),
    (np.str_, "is of type type"),
    (types.SimpleNamespace(a=1), "is of type types.SimpleNamespace, which would not arrive as itself"),
    (defaultdict(lambda: 1), r"is a defaultdict of <function.*pass dict\(value\)"),
    ({frozenset({object}): 1}, "has the key <class 'object'>"),
    ({1, torch.ones(1)}, "has the key tensor"),
    (range(3), "is of type range"),
    (type("Text", (str,), {})("a"), r"pass str\(value\)"),
]


@pytest.mark.parametrize(("value", "problem"), REFUSED, ids=lambda value: type(value).__name__)
def test_what_would_come_back_as_something_else_is_refused(value, problem):
    with pytest.raises(Unfit, match=problem):
        take(value)


def test_a_named_tuple_with_attributes_of_its_own_is_refused():
    value = StrictPair(1)
    value.extra = 2
    with pytest.raises(Unfit, match=r"pass tuple\(value\)"):
        take(value)


def test_a_class_defined_anew_is_carried_as_it_is_now(monkeypatch):
    module = types.ModuleType("cell")
    monkeypatch.setitem(sys.modules, "cell", module)
    for _ in range(2):  # as a cell of a notebook that runs twice
        module.Cell = dataclasses.make_dataclass("Cell", ["value"])
        module.Cell.__module__ = "cell"
        assert type(again(module.Cell(1))) is module.Cell


@pytest.mark.parametrize(("module", "name"), [("no_such_module", "Pair"), ("batches", "NoSuchClass")])
def test_a_class_that_a_rank_does_not_have_is_named(module, name):
    with pytest.raises(SourceError, match=f"batch: has a {module}.{name}, which this rank cannot find"):
        build(NAMED, [module, name], [1, 2])


@pytest.mark.parametrize("code", [NAMED, DATACLASS, MAPPING])
@pytest.mark.parametrize("name", ["Popen", "run"])
def test_a_message_makes_nothing_but_what_its_code_says(code, name):
    with pytest.raises(SourceError, match="which is another class on this rank; run the same code"):
        build(code, ["subprocess", name], [])


def test_codes_tell_containers_apart():
    assert take(torch.Size([1])).code == SIZE
    assert take(OrderedDict()).code == ORDERED


class Doubler(Walk):
    """Doubles bytes, keeps lists."""

    leaves = {bytes: "doubled", list: "listed"}  # noqa: RUF012 - a table

    def doubled(self, value):
        return value * 2

    def listed(self, values):
        return self.each(range(len(values)), values)

    def container(self, value):
        return build(*self.parts(value))


def test_a_walk_meets_every_leaf():
    assert Doubler().value([b"a", ("x", {None: b"b"}), 3]) == [b"aa", ("x", {None: b"bb"}), 3]


def test_a_walk_passes_over_plain_values():
    class Lost(Walk):
        pass

    assert all(Lost().value(value) == value for value in ("a", 1, 2.0, True, None))
    assert {str, int, float, bool, type(None)} == NATIVE


def test_a_walk_knows_where_it_is():
    with pytest.raises(SourceError, match=r"^batch\[1\]\[0\].first\['k'\]: is of type object"):
        Doubler().value([b"", (Pair({"k": object(), 5: 1}, b""),)])


def test_64_levels_are_walked_and_one_more_is_refused():
    deep = b""
    for _ in range(64):
        deep = [deep]
    assert Doubler().value(deep) == deep
    with pytest.raises(SourceError, match="more than 64 levels deep"):
        Doubler().value([deep])


def test_a_path_shortens_long_keys():
    with pytest.raises(SourceError) as caught:
        refuse(["x" * 1_000, Attribute("y"), 3], "is bad")
    assert str(caught.value) == "batch['" + "x" * 39 + "].y[3]: is bad"
