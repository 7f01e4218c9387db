"""Finished batches cut by rows."""

from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from stream.columns import check_rows, rows_of, sure_rows, take_rows
from stream.errors import SourceError

Pair = namedtuple("Pair", ["image", "label"])  # noqa: PYI024 - as users write it


@dataclass(frozen=True)
class Batch:
    image: torch.Tensor
    scale: float


def plain(value):
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.tolist()
    if isinstance(value, dict | UserDict):
        return {name: plain(inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


IMAGES = torch.arange(6).reshape(3, 2)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ({"a": IMAGES, "b": ["x", "y", "z"]}, {"a": [[2, 3], [4, 5]], "b": ["y", "z"]}),
        ((IMAGES, np.arange(3)), [[[2, 3], [4, 5]], [1, 2]]),
        ([IMAGES, ("x", "y", "z")], [[[2, 3], [4, 5]], ["y", "z"]]),
        (["x", "y", "z"], ["y", "z"]),
        (IMAGES, [[2, 3], [4, 5]]),
        (
            {"a": {"b": IMAGES}, "c": (IMAGES, [None] * 3)},
            {"a": {"b": [[2, 3], [4, 5]]}, "c": [[[2, 3], [4, 5]], [None] * 2]},
        ),
        (
            {"a": IMAGES, "scale": torch.tensor(2.0), "name": "x", "n": 3},
            {"a": [[2, 3], [4, 5]], "scale": 2.0, "name": "x", "n": 3},
        ),
    ],
)
def test_columns_are_cut_and_all_else_belongs_to_every_row(batch, expected):
    assert rows_of(batch) == sure_rows(batch) == 3
    assert plain(take_rows(batch, [1, 2])) == expected


def test_a_list_of_tensors_is_split_and_its_tensors_stay_whole():
    images = [torch.zeros(3, 4, 5), torch.ones(3, 2, 2), torch.ones(3, 9, 9)]
    found = take_rows({"image": images, "id": torch.arange(3)}, [0, 2])
    assert found["image"][0] is images[0]
    assert found["image"][1] is images[2]


@pytest.mark.parametrize("make", [OrderedDict, UserDict, lambda batch: defaultdict(list, batch)])
def test_a_mapping_keeps_its_class(make):
    batch = make({"a": IMAGES})
    found = take_rows(batch, [0])
    assert type(found) is type(batch)
    assert found["a"].tolist() == [[0, 1]]
    assert batch["a"] is IMAGES


def test_named_tuples_and_dataclasses_keep_their_class():
    pair = take_rows(Pair(IMAGES, np.arange(3)), [2])
    assert isinstance(pair, Pair)
    assert plain(pair) == [[[4, 5]], [2]]
    batch = take_rows(Batch(IMAGES, 0.5), [2])
    assert (batch.image.tolist(), batch.scale) == ([[4, 5]], 0.5)


def test_rows_may_repeat_as_padding_does():
    assert take_rows(IMAGES, [2, 0]).tolist() == [[4, 5], [0, 1]]
    assert take_rows(np.arange(3), [2, 0, 1]).tolist() == [2, 0, 1]


def test_neighbouring_rows_are_a_view():
    assert take_rows(IMAGES, [1, 2]).data_ptr() == IMAGES[1].data_ptr()


def test_columns_that_disagree_are_refused_by_their_names():
    batch = {"input_ids": torch.zeros(4, 7), "patches": torch.zeros(9, 16)}
    assert rows_of(batch) is None
    with pytest.raises(
        SourceError, match=r"^batch\['patches'\]: .*batch\['input_ids'\] has 4.*batch\['patches'\] has 9"
    ):
        sure_rows(batch)


@pytest.mark.parametrize("batch", [{"loss": torch.tensor(1.0)}, {}, "text", None, 7])
def test_a_batch_without_columns_is_refused(batch):
    assert rows_of(batch) is None
    with pytest.raises(SourceError, match="has no column of rows to split"):
        sure_rows(batch)


def test_a_list_of_samples_is_refused_since_it_could_be_either():
    batch = [{"a": torch.zeros(2)}, {"a": torch.ones(2)}]
    with pytest.raises(SourceError, match="is a list of dicts"):
        sure_rows(batch)


@pytest.mark.parametrize(
    "batch",
    [
        {"image": torch.zeros(3, 2), "patches": torch.zeros(9, 2)},
        [torch.zeros(2, 5), torch.zeros(2, 7), torch.zeros(2, 9)],
        {"loss": torch.tensor(0.0)},
        "text",
    ],
)
def test_a_batch_that_may_have_as_many_rows_as_it_was_made_of_passes(batch):
    check_rows(batch, 3)


@pytest.mark.parametrize("batch", [{"image": torch.zeros(2, 2)}, [torch.zeros(4, 5), torch.zeros(4)], ["x"]])
def test_a_batch_of_another_number_of_rows_than_it_was_made_of_is_refused(batch):
    with pytest.raises(SourceError, match="returned another number of rows than the 3 it was given"):
        check_rows(batch, 3)
