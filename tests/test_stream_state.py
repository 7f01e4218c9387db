"""What a saved position carries, and when it is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.errors import OptionError
from stream.state import UNKNOWN, VERSION, Place, digest_of

SHARDS = [("made-000000.tar", 6, "0" * 32), ("made-000001.tar", 5, "1" * 32)]


def place(**changed):
    fields = {
        "digest": digest_of(SHARDS),
        "subset": "all",
        "shuffle": "window",
        "seed": 3,
        "window_shards": 4,
        "captions": "first",
        "epoch": 2,
        "position": 17,
        "quarantine": (3, 5),
        **changed,
    }
    return Place(**fields)


PLACES = st.builds(
    Place,
    digest=st.text(),
    subset=st.text(),
    shuffle=st.sampled_from([None, "window", "full"]),
    seed=st.integers(0, 2**63 - 1),
    window_shards=st.integers(1, 2**40),
    captions=st.sampled_from(["first", "random", "all", "each"]),
    epoch=st.integers(0, 2**53),
    position=st.integers(0, 2**53),
    quarantine=st.lists(st.integers(0, 2**53), max_size=4).map(tuple),
)


@given(PLACES)
def test_a_place_comes_back_from_json(saved):
    assert Place.from_dict(json.loads(json.dumps(saved.to_dict())), now=saved) == saved


def test_the_fields_are_plain_and_named():
    assert place().to_dict() == {
        "digest": digest_of(SHARDS),
        "subset": "all",
        "shuffle": "window",
        "seed": 3,
        "window_shards": 4,
        "captions": "first",
        "epoch": 2,
        "position": 17,
        "quarantine": [3, 5],
        "version": VERSION,
    }


def test_a_place_of_another_epoch_and_position_is_taken():
    assert Place.from_dict(place().to_dict(), now=place(epoch=0, position=0)) == place()


@pytest.mark.parametrize(
    ("name", "other", "expected"),
    [
        ("digest", digest_of(SHARDS[:1]), "other data"),
        ("digest", UNKNOWN, "other data"),
        ("subset", "0" * 32, "other rows of the data"),
        ("shuffle", None, "another order"),
        ("shuffle", "full", "another order"),
        ("seed", 4, "another order"),
        ("window_shards", 5, "another order"),
        ("captions", "each", "every caption a row"),
    ],
)
def test_a_state_of_other_data_or_another_order_is_refused(name, other, expected):
    for saved, now in ((place(**{name: other}), place()), (place(), place(**{name: other}))):
        with pytest.raises(OptionError, match=expected) as refused:
            Place.from_dict(saved.to_dict(), now=now)
        assert refused.value.option == f"state[{name!r}]"
        assert refused.value.got == getattr(saved, name)
        assert repr(getattr(now, name)) in str(refused.value)


@pytest.mark.parametrize(
    ("name", "other"), [("digest", UNKNOWN), ("subset", "0" * 32), ("shuffle", None), ("seed", 4), ("captions", "each")]
)
def test_without_strict_other_data_begin_at_the_same_position(name, other):
    saved = place(**{name: other})
    assert Place.from_dict(saved.to_dict(), now=place(), strict=False) == saved


def test_without_strict_a_state_must_still_be_one():
    with pytest.raises(OptionError, match="reads version 1"):
        Place.from_dict({**place().to_dict(), "version": 2}, now=place(), strict=False)


@pytest.mark.parametrize("shuffle", [None, "full"])
def test_the_window_does_not_matter_where_the_order_has_none(shuffle):
    saved = place(shuffle=shuffle, window_shards=9)
    assert Place.from_dict(saved.to_dict(), now=place(shuffle=shuffle)) == saved


def test_captions_that_leave_the_rows_alone_do_not_matter():
    saved = place(captions="random")
    assert Place.from_dict(saved.to_dict(), now=place(captions="all")) == saved


@pytest.mark.parametrize("version", [0, 2, "1", 1.0, True, None])
def test_another_version_is_refused_before_its_fields_are_read(version):
    with pytest.raises(OptionError, match=r"state\['version'\].*reads version 1"):
        Place.from_dict({"version": version, "epoch": "later"}, now=place())


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("digest", 5, "Expected `str`, got `int`"),
        ("shuffle", "some", "Invalid enum value 'some'"),
        ("seed", -1, "Expected `int` >= 0"),
        ("seed", 2**63, "Expected `int` <= 9223372036854775807"),
        ("seed", True, "Expected `int`, got `bool`"),
        ("window_shards", 0, "Expected `int` >= 1"),
        ("captions", None, "got `null`"),
        ("epoch", "2", "Expected `int`, got `str`"),
        ("epoch", -1, "Expected `int` >= 0"),
        ("position", 1.5, "Expected `int`, got `float`"),
        ("position", -1, "Expected `int` >= 0"),
        ("quarantine", [1, -1], "Expected `int` >= 0"),
        ("quarantine", 3, "Expected `array`, got `int`"),
    ],
)
def test_a_wrong_type_or_value_is_refused_by_field(name, value, expected):
    with pytest.raises(OptionError, match=expected) as refused:
        Place.from_dict({**place().to_dict(), name: value}, now=place())
    assert (refused.value.option, refused.value.got) == (f"state[{name!r}]", value)


@pytest.mark.parametrize("name", list(place().to_dict()))
def test_a_missing_field_is_refused(name):
    found = place().to_dict()
    del found[name]
    with pytest.raises(OptionError, match=f"has no '{name}'"):
        Place.from_dict(found, now=place())


def test_an_unknown_field_is_refused():
    with pytest.raises(OptionError, match=r"state\['filter'\]='cats': version 1 has no such field"):
        Place.from_dict({**place().to_dict(), "filter": "cats"}, now=place())


@pytest.mark.parametrize("data", [None, [], "state", 1])
def test_what_is_no_dict_is_refused(data):
    with pytest.raises(OptionError, match="must be the dict that a loader saved"):
        Place.from_dict(data, now=place())


def test_a_place_in_a_source_without_index_is_taken_with_a_doubt():
    saved = place(digest=UNKNOWN)
    assert Place.from_dict(saved.to_dict(), now=saved) == saved
    assert "position 17 of epoch 2 is restored by counting" in saved.doubt
    assert place().doubt is None


def test_a_digest_is_lower_case_hex_and_never_changes():
    assert digest_of(SHARDS) == "994487b675d57bae454f683604f0da64"
    assert digest_of([]) != digest_of(SHARDS)


@pytest.mark.parametrize(
    "other",
    [
        SHARDS[::-1],
        SHARDS[:1],
        [("made-000002.tar", 6, "0" * 32), SHARDS[1]],
        [("made-000000.tar", 7, "0" * 32), SHARDS[1]],
        [("made-000000.tar", 6, "2" * 32), SHARDS[1]],
    ],
)
def test_each_name_count_digest_and_their_order_make_the_digest(other):
    assert digest_of(other) != digest_of(SHARDS)
