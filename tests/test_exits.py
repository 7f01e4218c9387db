"""How ranks end, in real processes: by themselves, with an error of the user's, by Ctrl-C, and killed.

Each launch is a job of its own; `pytest --proof` ends 50 jobs in each way. The ranks are started without torchrun,
which would end the survivors of a killed one.
"""

import time

import pytest

from packed import jpeg_of, make_packed
from ranks import run_ranks, start_ranks
from running import RunningJob, abstract_sockets

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(1800)]

PORTION = 6
GOOD_STEPS = 2
TOLD_WITHIN_S = 2.0
LEFT_WITHIN_S = 8.0
TCP = {"same_host": False}


def bad_row(ranks):
    """As exits.py has it: in the third step, in the last rank's portion."""
    return GOOD_STEPS * PORTION * ranks + PORTION * (ranks - 1)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    return make_packed(tmp_path_factory.mktemp("packed"), 240).url


@pytest.fixture(scope="module")
def corrupt(tmp_path_factory):
    """A dataset for each number of ranks, the bad row's image of which is cut off."""
    return {
        ranks: make_packed(
            tmp_path_factory.mktemp("corrupt"), 120, images={bad_row(ranks): jpeg_of(bad_row(ranks))[:300]}
        ).url
        for ranks in (2, 4)
    }


ENDS = [
    {"name": "an epoch to its end"},
    {"name": "left by break", "breaks_at": 7},
    {"name": "held", "breaks_at": 3, "held": True},
    {"name": "held, with workers", "breaks_at": 3, "held": True, "made": {"workers": 1}},
    {"name": "held, by TCP", "breaks_at": 3, "held": True, "made": TCP},
    {
        "name": "held, decoded in a process",
        "breaks_at": 3,
        "held": True,
        "made": {"decode_in": "process"},
        "packed": True,
    },
]


@pytest.mark.parametrize("end_training", [True, False], ids=["end_training", "no end_training"])
def test_ranks_end_cleanly_with_loaders_in_all_states(url, full, tmp_path, end_training):
    config = {"do": "ends", "end_training": end_training}
    for number in range(full(3, 50)):
        asked = [case for case in ENDS if not case.get("packed") or number % 3 == 0]  # which takes long to start
        cases = [{**case, "url": url if case.get("packed") else None} for case in asked]
        ended = start_ranks("exits.py", 2, {**config, "cases": cases}, tmp_path / str(number))
        assert [(rank.code, rank.text) for rank in ended] == [(0, "")] * 2, f"exit {number}"
        assert [rank.found["steps"] for rank in ended] == [40 + 7 + 3 * (len(cases) - 2)] * 2


KINDS = {
    "decode": ("DecodeError", ".jpg: OSError: Truncated File Read"),
    "decode in a process": ("DecodeError", ".jpg: OSError: Truncated File Read"),
    "collate on the ranks": ("LookupError", "the row is bad"),
    "collate on the reader": ("LookupError", "the row is bad"),
    "dataset": ("OSError", "the row is bad"),
    "dataset, by TCP": ("OSError", "the row is bad"),
    "dataset in a worker": ("OSError", "the row is bad"),
    "interrupt in the dataset": ("KeyboardInterrupt", "the row is bad"),
    "Ctrl-C on the reader": ("KeyboardInterrupt", ""),
    "Ctrl-C on another rank": ("KeyboardInterrupt", ""),
    "nothing": (None, None),
}
OF_OURS = {"decode", "decode in a process"}
"""Whose time of failing nobody notes."""


def cases_of(url, corrupt, ranks):
    stalled = {"bad": "wait"}
    asked = {
        "decode": {"url": corrupt[ranks]},
        "decode in a process": {"url": corrupt[ranks], "made": {"decode_in": "process"}},
        "collate on the ranks": {"url": url, "collate": True},
        "collate on the reader": {"collate": True},
        "dataset": {"bad": "raise"},
        "dataset, by TCP": {"bad": "raise", "made": TCP},
        "dataset in a worker": {"bad": "raise", "made": {"workers": 1}},
        "interrupt in the dataset": {"bad": "ctrl-c"},
        "Ctrl-C on the reader": {**stalled, "rank": 0},
        "Ctrl-C on another rank": {**stalled, "rank": ranks - 1},
        "nothing": {},
    }
    return [{"name": name, "url": None, **case} for name, case in asked.items()]


@pytest.fixture(scope="module")
def failed(url, corrupt, tmp_path_factory):
    """`failed(ranks)` is what each rank found, and when each case failed; one job for each number of ranks."""
    jobs = {}

    def run(ranks):
        if ranks not in jobs:
            jobs[ranks] = None  # one that fails is not run again for each test
            folder = tmp_path_factory.mktemp("failing")
            found = run_ranks("exits.py", ranks, {"do": "errors", "cases": cases_of(url, corrupt, ranks)}, folder)
            times = {path.stem: float(path.read_text()) for path in folder.glob("*.failed")}
            jobs[ranks] = found, times
        assert jobs[ranks] is not None, f"the job of {ranks} ranks failed before"
        return jobs[ranks]

    return run


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", KINDS)
class TestErrors:
    def test_every_rank_raises_the_same_error_at_the_same_step(self, failed, name, ranks):
        found, _ = failed(ranks)
        kind, words = KINDS[name]
        assert {rank[name]["kind"] for rank in found} == {kind}
        assert len({rank[name]["text"] for rank in found}) == 1
        if kind is None:
            assert [rank[name]["steps"] for rank in found] == [40] * ranks
        else:
            assert words in found[0][name]["text"]
            assert [rank[name]["steps"] for rank in found] == [GOOD_STEPS] * ranks

    def test_every_rank_raises_it_in_time(self, failed, name, ranks):
        found, times = failed(ranks)
        if KINDS[name][0] is not None and name not in OF_OURS:
            assert max(rank[name]["at"] for rank in found) - times[name] < TOLD_WITHIN_S

    def test_nothing_is_left_and_the_ranks_still_understand_each_other(self, failed, name, ranks):
        for rank in failed(ranks)[0]:
            assert rank[name]["left"] == []
            assert not rank[name]["registered"]
            assert rank[name]["gathered"] == list(range(ranks))


KILLS = {
    "rows": {},
    "rows, by TCP": {"made": TCP},
    "workers": {"made": {"workers": 2}, "beside": True},
    "a decoding process": {"made": {"decode_in": "process"}, "packed": True, "beside": True},
}
ALL = [(name, ranks, dead) for name in KILLS for ranks in (2, 4) for dead in range(ranks)]
SMALL = [("a decoding process", 2, 0), ("workers", 4, 0), ("rows", 4, 1), ("rows, by TCP", 4, 2), ("workers", 4, 3)]


def pytest_generate_tests(metafunc):
    if "dead" in metafunc.fixturenames:
        metafunc.parametrize(("name", "ranks", "dead"), ALL if metafunc.config.getoption("--proof") else SMALL)


def test_a_killed_rank_is_named_by_the_others_and_leaves_nothing(url, tmp_path, name, ranks, dead):
    case = {"name": name, **KILLS[name], "url": url if KILLS[name].get("packed") else None}
    with RunningJob("exits.py", ranks, {"do": "killed", "case": case}, tmp_path) as job:
        job.wait_for("amid")
        names = job.socket_names()
        assert bool(names) == (case.get("made") != TCP)
        assert len(job.belonging()) > ranks or not case.get("beside")
        killed_at = job.kill(dead)
        found = [job.found(rank) for rank in range(ranks) if rank != dead]
        for rank in found:
            assert rank["kind"] == "RankError"
            assert f"rank {dead}" in rank["text"]
            assert (rank["left"], rank["memory"], rank["sockets"]) == ([], [], [])
        assert 0 < max(rank["at"] for rank in found) - killed_at < TOLD_WITHIN_S
        assert what_remains(job, names, killed_at + LEFT_WITHIN_S) == ([], set(), [])


def what_remains(job, names, until):
    """Processes, names of sockets and files of a job, once there are none or the time is up."""
    while True:
        processes = [" ".join(process.info["cmdline"] or []) for process in job.belonging()]
        sockets = names & {name for _, name in abstract_sockets()}
        left = processes, sockets, sorted(path.name for path in job.files.iterdir())
        if not any(left) or time.monotonic() > until:
            return left
        time.sleep(0.05)
