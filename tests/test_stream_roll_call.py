"""stream/roll_call.py: who has not begun, and where the ranks do not agree."""

from types import SimpleNamespace

import pytest

from stream.carry import raised
from stream.errors import OptionError
from stream.protocol import Begin
from stream.roll_call import disagreement, missing


def peers(*facts):
    return [SimpleNamespace(rank=rank, begun=said and Begin(0, said)) for rank, said in enumerate(facts)]


def test_ranks_that_have_not_begun_are_missing():
    assert missing(peers({"a": "1"}, None, None)) == [1, 2]
    assert missing(peers({"a": "1"}, {"a": "1"})) == []


def test_ranks_that_say_the_same_agree():
    assert disagreement(peers({"a": "1", "b": "2"}, {"b": "2", "a": "1"})) is None


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ([{"seed": "0"}, {"seed": "1"}], "seed='0': the ranks do not agree: 0 on rank 0; 1 on rank 1."),
        ([{"a": "x"}, {"a": "y"}, {"a": "y"}], "a='x': the ranks do not agree: x on rank 0; y on ranks 1, 2."),
        ([{"a": "x", "b": "1"}, {"a": "x", "b": "2"}], "b='1': the ranks do not agree: 1 on rank 0; 2 on rank 1."),
        ([{"a": "x"}, {"a": "x", "b": "2"}], "b='nothing': the ranks do not agree: nothing on rank 0; 2 on rank 1."),
    ],
)
def test_what_differs_is_named_with_values_and_ranks(facts, words):
    error = raised(disagreement(peers(*facts)))
    assert isinstance(error, OptionError)
    assert str(error).startswith(words)
