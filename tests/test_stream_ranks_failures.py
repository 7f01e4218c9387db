"""What fails while reading for two real processes: named on every rank, no hang, nothing left behind."""

from pathlib import Path

import pytest

from packed import jpeg_of, key_of, make_packed
from ranks import run_ranks, start_ranks

pytestmark = pytest.mark.ranks

SAMPLES = 53
RANKS = 2
CAUSES = ("corrupt image", "flipped bit", "missing shard", "failing collate")
every_cause = pytest.mark.parametrize("cause", CAUSES)
both_modes = pytest.mark.parametrize("mode", ["dispatch", "shard"])
workers = pytest.mark.parametrize("workers", [0, 2])

# Sample 19 is in step 1, in the portion of rank 1.
NAMED = {
    "corrupt image": f"{key_of(19)}.jpg",
    "flipped bit": key_of(19),
    "missing shard": "made-000003.tar",
    "failing collate": "no word for sample 19",
}
KINDS = dict(zip(CAUSES, ("DecodeError", "ChecksumError", "FileNotFoundError", "LookupError"), strict=True))


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """The URL of a dataset for each cause."""
    folder = tmp_path_factory.mktemp("broken")
    good = make_packed(folder / "good", SAMPLES)
    corrupt = make_packed(folder / "corrupt", SAMPLES, images={19: jpeg_of(19)[:300]})
    flipped = make_packed(folder / "flipped", SAMPLES)
    flip(flipped.tars(), jpeg_of(19))
    missing = make_packed(folder / "missing", SAMPLES)
    Path(missing.tars()[3]).unlink()
    made = dict(zip(CAUSES, (corrupt, flipped, missing, good), strict=True))
    return {"good": good.url} | {cause: dataset.url for cause, dataset in made.items()}


def flip(tars, image):
    [path] = [path for path in map(Path, tars) if image in path.read_bytes()]
    data = bytearray(path.read_bytes())
    data[data.index(image) + 50] ^= 4
    path.write_bytes(data)


@pytest.fixture(scope="module")
def found(broken, tmp_path_factory):
    """What each rank found, by case; after all failures one epoch without any, in each mode."""
    cases = [case(cause, mode, count, broken) for cause in CAUSES for mode in ("dispatch", "shard") for count in (0, 2)]
    cases += [case("unequal collate", mode, 0, broken) for mode in ("dispatch", "shard")]
    cases += [case("good", mode, 2, broken) for mode in ("dispatch", "shard")]
    return run_ranks("failures.py", RANKS, {"cases": cases}, tmp_path_factory.mktemp("job"))


def case(cause, mode, count, broken):
    collate = {"failing collate": "refuse", "unequal collate": "unequal"}.get(cause)
    url = broken.get(cause, broken["good"])
    return {"name": f"{cause} {mode} {count}", "url": url, "mode": mode, "workers": count, "collate": collate}


@every_cause
@workers
def test_dispatched_every_rank_raises_the_same_error_at_the_same_step(found, cause, workers):
    ranks = [rank[f"{cause} dispatch {workers}"] for rank in found]
    assert {rank["kind"] for rank in ranks} == {KINDS[cause]}
    assert len({rank["text"] for rank in ranks}) == 1
    assert NAMED[cause] in ranks[0]["text"]
    assert [rank["keys"] for rank in ranks] == [[list(map(key_of, range(6)))], [list(map(key_of, range(6, 12)))]]


@every_cause
@workers
def test_in_shard_mode_the_rank_that_reads_it_raises_and_the_other_goes_on(found, cause, workers):
    good, failed = (rank[f"{cause} shard {workers}"] for rank in found)
    assert failed["kind"] == KINDS[cause]
    assert NAMED[cause] in failed["text"]
    assert failed["keys"] == [list(map(key_of, range(6, 12)))]
    if cause != "missing shard":  # whose other rows are in the portion of rank 0
        assert (good["kind"], len(good["keys"]), good["epoch"]) == (None, 5, 1)


@every_cause
@both_modes
@workers
def test_a_failure_leaves_nothing_behind(found, cause, mode, workers):
    for rank in found:
        told = rank[f"{cause} {mode} {workers}"]
        assert (told["left"], told["registered"]) == ([], False)


def test_dispatched_a_collate_that_gives_another_number_of_rows_is_an_error(found):
    for rank in found:
        text = rank["unequal collate dispatch 0"]["text"]
        assert "another number of rows than the 6 it was given (batch['key'] has 1)" in text


@both_modes
def test_after_failures_the_job_can_go_on(found, mode):
    ranks = [rank[f"good {mode} 2"] for rank in found]
    assert [rank["kind"] for rank in ranks] == [None, None]
    keys = [
        key for portions in zip(*(rank["keys"] for rank in ranks), strict=True) for part in portions for key in part
    ]
    assert keys == [key_of(number % SAMPLES) for number in range(SAMPLES + 1)]


@both_modes
def test_a_script_that_catches_nothing_ends_on_every_rank(broken, tmp_path, mode):
    ended = start_ranks("uncaught.py", RANKS, {"url": broken["corrupt image"], "mode": mode}, tmp_path, limit_s=60)
    assert [(rank.killed, rank.code != 0) for rank in ended] == [(False, True)] * RANKS
    assert NAMED["corrupt image"] in ended[1].text
