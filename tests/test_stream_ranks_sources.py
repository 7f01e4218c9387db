"""Sources that are no packed dataset, read for one and for two real processes."""

import tarfile

import pytest

from packed import captions_of, make_packed
from ranks import run_ranks

pytestmark = pytest.mark.ranks

ROWS = 29
STEP = 6


@pytest.fixture(scope="module", params=[1, 2])
def found(request, tmp_path_factory):
    """What each rank found, by case."""
    folder = tmp_path_factory.mktemp("sources")
    tarfile.open(folder / "empty.tar", "w").close()
    config = {"tars": make_packed(folder / "packed", ROWS).tars(), "empty": str(folder / "empty.tar")}
    return run_ranks("sources.py", request.param, config, folder / "job")


def told(found, name):
    """What each rank tells of a case that did not fail; nothing is left of it."""
    ranks = [rank[name] for rank in found]
    assert [(rank["error"], rank["left"]) for rank in ranks] == [(None, [])] * len(found)
    return ranks


def rows(ranks, what, epoch=0):
    """The rows of each step over all ranks, padding included."""
    steps = zip(*(rank["steps"][epoch] for rank in ranks), strict=True)
    return [[row for portion in portions for row in portion[what]] for portions in steps]


def padded(numbers, ranks):
    """The rows in steps, the last one padded with the first rows."""
    steps = [numbers[start : start + STEP] for start in range(0, len(numbers), STEP)]
    steps[-1] = steps[-1] + [numbers[place % len(numbers)] for place in range(-len(steps[-1]) % ranks)]
    return steps


@pytest.mark.parametrize(
    "name", ["webdataset", "webdataset split by node", "webdataset loader", "webdataset decoded", "sequence"]
)
def test_every_row_of_a_pipeline_reaches_one_rank_in_storage_order(found, name):
    ranks = told(found, f"dispatch {name}")
    for epoch in (0, 1):
        assert rows(ranks, "ids", epoch) == padded(list(range(ROWS)), len(found))


@pytest.mark.parametrize("name", ["webdataset", "webdataset split by node", "webdataset loader", "webdataset decoded"])
def test_pixels_of_a_pipeline_are_in_their_places_on_every_rank(found, name):
    ranks = told(found, f"dispatch {name}")
    assert rows(ranks, "images") == rows(ranks, "ids")


def test_encoded_samples_of_a_pipeline_become_the_loaders_own_batches(found):
    for rank in told(found, "dispatch webdataset"):
        assert {(step["form"], step["channels_last"]) for step in rank["steps"][0]} == {("dict", True)}


def test_decoded_samples_of_a_pipeline_are_put_together_by_torch(found):
    for rank in told(found, "dispatch webdataset decoded"):
        for step in rank["steps"][0]:
            assert step["form"] == "list"
            assert step["text"] == [captions_of(number)[0] for number in step["ids"]]


@pytest.mark.parametrize("name", ["webdataset", "sequence"])
def test_a_pipeline_does_not_tell_its_length_but_the_last_step_is_known(found, name):
    for rank in told(found, f"dispatch {name}"):
        assert rank["length"] == "loader 'foreign' reads a source of unknown length"
        assert [(step["last"], step["remainder"]) for step in rank["steps"][0]] == [(False, -1)] * 4 + [(True, 5)]


@pytest.mark.parametrize("name", ["webdataset of one", "sequence of one"])
def test_fewer_rows_than_ranks_are_repeated_and_the_remainder_says_so(found, name):
    for rank in told(found, f"dispatch {name}"):
        assert [(step["ids"], step["last"], step["remainder"]) for step in rank["steps"][0]] == [([0], True, 1)]


@pytest.mark.parametrize(
    "name", ["dispatch webdataset of none", "dispatch sequence of none", "dispatch list of none", "shard list of none"]
)
def test_a_source_without_rows_is_an_empty_epoch(found, name):
    for rank in told(found, name):
        assert rank["steps"] == [[], []]


def test_a_pipeline_that_checks_for_emptiness_itself_is_an_error_on_every_rank(found):
    for rank in found:
        assert "No samples found in dataset" in rank["dispatch webdataset of none, checked"]["error"]
        assert rank["dispatch webdataset of none, checked"]["left"] == []


def test_a_sequence_that_fails_is_an_error_on_every_rank_behind_the_good_steps(found):
    ranks = [rank["dispatch sequence that fails"] for rank in found]
    assert {rank["error"] for rank in ranks} == {"OSError: the connection was reset"}
    assert rows(ranks, "ids") == padded(list(range(12)), len(found))
    assert [rank["left"] for rank in ranks] == [[]] * len(found)


@pytest.mark.parametrize("mode", ["dispatch", "shard"])
@pytest.mark.parametrize("name", ["map", "map of many", "list"])
def test_every_row_of_a_map_style_dataset_reaches_one_rank_in_both_modes(found, mode, name):
    ranks = told(found, f"{mode} {name}")
    for epoch in (0, 1):
        assert rows(ranks, "ids", epoch) == padded(list(range(ROWS)), len(found))
        assert rows(ranks, "text", epoch) == [[f"row {n}" for n in step] for step in rows(ranks, "ids", epoch)]
    assert [rank["length"] for rank in ranks] == [5] * len(found)


def test_a_sequence_is_refused_in_shard_mode(found):
    for rank in found:
        assert rank["shard sequence"]["error"].startswith("OptionError: mode='shard': every rank asks for its own rows")
