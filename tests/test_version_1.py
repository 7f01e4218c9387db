"""What version 1 of the order and the state meant, kept in files: a later version must still give it.

The files are never written anew. A change that breaks this test changes which rows a saved position means.
"""

import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from stream.draws import draw, row_seed
from stream.mix import Mix, MixOrder
from stream.order import Order
from stream.permutation import Permutation, derive_key
from stream.shares import Shares
from stream.state import Place

DATA = Path(__file__).resolve().parent / "data"
VECTORS = json.loads((DATA / "order-v1.json").read_text())
STATES = json.loads((DATA / "state-v1.json").read_text())


def digest(rows):
    return sha256(np.asarray(rows).astype("<i8").tobytes()).hexdigest()


@pytest.mark.parametrize(
    "case", VECTORS["orders"], ids=lambda case: f"{case['shuffle']} {case['seed']} {case['epoch']}"
)
def test_an_order_is_what_it_was(case):
    order = Order(
        case["shard_rows"],
        shuffle=case["shuffle"],
        seed=case["seed"],
        epoch=case["epoch"],
        window_shards=case["window_shards"],
    )
    rows = order.rows(0, len(order))
    assert rows[: len(case["first"])].tolist() == case["first"]
    assert digest(rows) == case["sha256"]


@pytest.mark.parametrize("case", VECTORS["far"], ids=lambda case: case["shuffle"])
def test_rows_far_inside_an_order_are_what_they_were(case):
    order = Order([10_000] * 100_000, shuffle=case["shuffle"], seed=0, epoch=3, window_shards=4)
    assert order.rows_at(np.array(case["positions"], dtype=np.int64)).tolist() == case["rows"]


@pytest.mark.parametrize("case", VECTORS["permutations"], ids=lambda case: str(case["n"]))
def test_a_permutation_is_what_it_was(case):
    permutation = Permutation(case["n"], key=derive_key(*case["words"]))
    assert permutation.forward(np.array(case["values"], dtype=np.int64)).tolist() == case["images"]


@pytest.mark.parametrize("case", VECTORS["mixtures"], ids=lambda case: case["until"])
def test_a_mixture_is_what_it_was(case):
    mix = Mix(Shares(case["weights"]), case["until"])
    order = MixOrder(mix, case["shard_rows"], shuffle="window", seed=case["seed"], epoch=case["epoch"], window_shards=2)
    rows = order.rows(0, len(order))
    assert (len(order), rows[: len(case["first"])].tolist(), digest(rows)) == (
        case["rows"],
        case["first"],
        case["sha256"],
    )


@pytest.mark.parametrize(
    "case", VECTORS["draws"], ids=lambda case: f"{case['seed']} {case['epoch']} {case['position']}"
)
def test_a_draw_is_what_it_was(case):
    place = {name: case[name] for name in ("seed", "epoch", "position")}
    assert (draw(5, **place), row_seed(**place)) == (case["of_5"], case["row_seed"])


@pytest.mark.parametrize("state", STATES, ids=lambda state: f"{state['shuffle']} {state['captions']}")
def test_a_state_is_read_as_what_it_says(state):
    place = Place.from_dict(state, now=Place(**{**state, "epoch": 0, "position": 0}))
    assert place.to_dict() == state
