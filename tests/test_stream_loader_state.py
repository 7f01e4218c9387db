"""The state of a prepared loader: as bytes, as a dictionary, and what is refused."""

import pickle

import pytest
import torch

from stream.errors import OptionError, SourceError
from stream.loader_state import LoaderState

FULL = LoaderState(
    epoch=3,
    steps=2,
    position=17,
    finished=True,
    generators={"torch": torch.get_rng_state(), "sampler": torch.Generator().manual_seed(5).get_state()},
    source={"deep": [1, None, ("a", 2**70)], "bytes": b"x" * 5000},
    rest=4,
)


def same(one, other):
    tensors = all(torch.equal(one.generators[name], other.generators[name]) for name in FULL.generators)
    plain = [{**found.to_dict(), "generators": None} for found in (one, other)]
    return tensors and plain[0] == plain[1]


def test_a_state_comes_back_from_bytes():
    assert same(LoaderState.unpacked(FULL.packed()), FULL)


def test_a_state_comes_back_from_its_dictionary():
    assert same(LoaderState.from_dict(FULL.to_dict()), FULL)


def test_the_dictionary_says_the_end_in_the_name_that_accelerate_knows():
    assert FULL.to_dict()["_iterator_finished"] is True


def test_generators_take_a_state_that_was_packed_and_pickled():
    state = pickle.loads(pickle.dumps(LoaderState.unpacked(FULL.packed()).to_dict()))
    generator = torch.Generator().manual_seed(6)
    generator.set_state(state["generators"]["sampler"])
    assert torch.equal(torch.rand(9, generator=generator), torch.rand(9, generator=torch.Generator().manual_seed(5)))


@pytest.mark.parametrize("state", [{}, {"_num_yielded": 3}, {**FULL.to_dict(), "more": 1}])
def test_what_is_no_such_state_is_refused(state):
    with pytest.raises(OptionError, match="state"):
        LoaderState.from_dict(state)


def test_a_source_whose_state_cannot_be_carried_is_told_where():
    with pytest.raises(SourceError, match=r"the dataset's state_dict\(\)\['odd'\]"):
        LoaderState(epoch=0, source={"odd": object()}).packed()
