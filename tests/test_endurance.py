"""Thousands of steps in real processes: every row is its own, memory stays, rings stay within the budget.

Each case runs over shared memory and over TCP, in 2 and in 4 ranks; `pytest --proof` runs 10,000 steps.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from packed import BITS, make_packed
from pictures import png
from ranks import start_ranks

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(3600)]

MIB = 2**20
LINKS = {"memory": "shared memory", "tcp": "TCP"}
GROWTH = 1.05
LARGE = 20 * 10**6
SAMPLES, LARGE_SAMPLE = 120, 100


@dataclass(frozen=True, kw_only=True)
class Case:
    """`epoch` and `steps` count steps of one epoch and of all, every `large_every` rows of a
    portion one is large, `budget` is a rank's."""

    steps: tuple[int, int]
    epoch: int
    budget: int = 4 * MIB
    portion: int = 8
    words: int = 5_000
    large_words: int = LARGE // 8
    large_every: int = 0
    sleep_s: float = 0.0
    breaks_after: int = -1
    packed: bool = False


CASES = {
    "one long epoch": Case(steps=(500, 10_000), epoch=10_000),
    "a slow rank, 3 epochs": Case(steps=(180, 3_000), epoch=60, words=500, sleep_s=0.003),
    "breaks and begins again": Case(steps=(200, 10_000), epoch=50, words=2_000, breaks_after=13),
    "20 MB among thumbnails": Case(steps=(150, 10_000), epoch=50, budget=24 * MIB, words=500, large_every=201),
    "a PNG of 20 MB among JPEGs": Case(steps=(30, 1_000), epoch=10, budget=24 * MIB, portion=6, packed=True),
}
SLOWEST_STEP_S = 0.25


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    image = large_png(LARGE_SAMPLE)
    assert len(image) >= LARGE
    return make_packed(tmp_path_factory.mktemp("packed"), SAMPLES, images={LARGE_SAMPLE: image}).url


def large_png(number):
    """A picture of the number's strips, with noise that no compression makes small."""
    height, width = 2048, 4096
    strips = np.array([155 * (number >> bit & 1) for bit in reversed(range(BITS))], dtype=np.uint8)
    pixels = np.random.default_rng(0).integers(0, 101, (height, width, 3), dtype=np.uint8)
    pixels += np.repeat(strips, width // BITS)[None, :, None]
    rows = np.pad(pixels.reshape(height, -1), ((0, 0), (1, 0)))
    return png(width, height, depth=8, colour=2, rows=rows.tobytes())


@pytest.fixture(scope="module")
def ran(url, full, tmp_path_factory):
    """`ran(ranks)[rank][case, link]` is what a rank found; each number of ranks is one job."""
    found: dict[int, Any] = {}

    def run(ranks):
        if ranks not in found:
            cases = [
                case_of(f"{name} {link}", case, full(*case.steps), link=link, url=url, ranks=ranks)
                for name, case in CASES.items()
                for link in LINKS
            ]
            found[ranks] = None  # one that fails is not run again for each test
            limit_s = 60 + SLOWEST_STEP_S * sum(case["steps"] for case in cases)
            ended = start_ranks(
                "endurance.py", ranks, {"cases": cases}, tmp_path_factory.mktemp("job"), limit_s=limit_s
            )
            assert [(rank.code, rank.text) for rank in ended] == [(0, "")] * ranks
            found[ranks] = [rank.found for rank in ended]
        assert found[ranks] is not None, f"the job of {ranks} ranks failed before"
        return found[ranks]

    return run


def case_of(name, case, steps, *, link, url, ranks):
    portion = case.portion * 2 // ranks if case.packed else case.portion
    made = {key: getattr(case, key) for key in vars(case) if key != "packed"}
    told = {"name": name, "steps": steps, "portion": portion, "same_host": link == "memory"}
    return {**made, **told, "url": url if case.packed else None}


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("name", CASES)
class TestEndurance:
    def test_every_batch_is_its_rows_when_it_comes_and_when_it_is_let_go(self, ran, full, name, link, ranks):
        for rank in told(ran(ranks), name, link):
            assert (rank["wrong"], rank["steps"]) == ([], full(*CASES[name].steps))

    def test_memory_stays(self, ran, name, link, ranks):
        for rank in told(ran(ranks), name, link):
            if rank["steps"] > 100:
                # How many large portions are on their way at once varies by one
                beside_kib = 0 if CASES[name].budget == 4 * MIB else LARGE // 1024
                assert rank["after_kib"] <= GROWTH * rank["before_kib"] + beside_kib

    def test_rings_stay_within_the_budget_and_so_does_what_is_lent(self, ran, name, link, ranks):
        reader, *others = told(ran(ranks), name, link)
        budget = CASES[name].budget
        assert len(reader["rings"]) == len(reader["lent"]) == ranks - 1
        if link == "memory":
            assert all(ring + lent > 0 for ring, lent in zip(reader["rings"], reader["lent"], strict=True))
            assert max(reader["rings"]) <= budget
            assert max(reader["lent"]) <= budget
            assert max(rank["shared_kib"] for rank in others) * 1024 <= 2 * budget

    def test_it_runs_over_the_link_that_it_is_named_for_and_leaves_nothing(self, ran, name, link, ranks):
        reader, *others = told(ran(ranks), name, link)
        assert all(LINKS[link] in rank["described"] for rank in others)
        assert [rank["left"] for rank in (reader, *others)] == [[]] * ranks


def told(found, name, link):
    return [rank[f"{name} {link}"] for rank in found]
