"""A pool of rank processes for each number of ranks, shared by the whole test session, and what tests ask of it.

A module that uses it says `pytest_plugins = ["rank_pool"]`. Only tests that kill ranks, or look at how they end,
start ranks of their own.
"""

from contextlib import ExitStack
from pathlib import Path

import pytest

from fault_cases.runner import ALL
from fault_pool import RankPool

TESTS = Path(__file__).resolve().parent
PATHS = (TESTS, TESTS.parent / "benchmarks", TESTS.parent / "tools")


class Pools:
    """Running ranks by their number."""

    def __init__(self):
        self._pools = {}

    def __call__(self, ranks, device="cpu"):
        if (ranks, device) not in self._pools:
            self._pools[ranks, device] = RankPool(ranks, paths=PATHS, device=device)
        return self._pools[ranks, device]

    def close(self):
        for pool in self._pools.values():
            pool.close()


@pytest.fixture(scope="session")
def pools():
    """`pools(2).call("module:function", {...})` runs a function in two ranks."""
    made = Pools()
    yield made
    made.close()


@pytest.fixture
def new_pool():
    """`new_pool(2)` is a pool of the test's own, for ranks that die or end in it."""
    with ExitStack() as made:
        yield lambda ranks: made.enter_context(RankPool(ranks, paths=PATHS))


@pytest.fixture
def ours_is_right(pools, ranks, side):
    """Run a fault in `ranks` processes, made the way that `side` says: it must be judged right, and leave nothing."""

    def look(fault, device="cpu"):
        arguments = {"fault": fault, "side": side, "device": device}
        answers = pools(ranks, device).call("fault_cases.runner:run", arguments, limit_s=ALL[fault].limit_s)
        verdict = ALL[fault].judge([answer["found"] for answer in answers])
        assert verdict.right, verdict.words
        assert [answer["left"] for answer in answers] == [[]] * ranks

    return look
