"""Ranks on two hosts: network namespaces with a cable between them, two real processes in each.

What is short here is longer with `pytest --proof`, where that option exists.
"""

import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from namespaces import MAIN_PORT, HostsJob, names_left, two_hosts
from packed import SIZE, make_packed
from stream.loader import StreamLoader

pytestmark = pytest.mark.ranks

RANKS, NEAR, FAR = range(4), (0, 1), (2, 3)
TRANSPORT = "ours"
TIMEOUT_S = 8.0  # of the process group: no wait of ours may depend on it
PORT, OTHER_PORT = MAIN_PORT + 1, MAIN_PORT + 2
STOP_S = 15.0
STALL_S, STALL_PROOF_S = 20.0, 60.0
REPORT_S = 10.0  # within which both sides tell of a cut cable
SAMPLES, STEP = 53, 12  # 4 whole steps and 5 rows
SIDE, BATCH, STEPS = 224, 16, 20
ROW_BYTES = 3 * SIDE * SIDE
PORTION_BYTES = BATCH // 4 * ROW_BYTES


@dataclass(frozen=True)
class Sound:
    """What came of the job whose cable is never cut: `found[rank][case]`, and what was counted outside of it."""

    found: list[dict[str, Any]]
    to_far_bytes: int
    to_near_bytes: int
    blocked: tuple[bool, bool]
    limited: int

    def steps(self, case, epoch=0):
        """Keys of each step over all ranks, padding included."""
        portions = zip(*(rank[case]["epochs"][epoch] for rank in self.found), strict=True)
        return [[key for portion in step for key in portion] for step in portions]


def pictures(name, steps=STEPS, **more):
    made = {"transport": TRANSPORT, **more.pop("made", {})}
    sizes = {"rows": steps * BATCH, "side": SIDE, "batch_size": BATCH, "shuffle": None}
    return {"name": name, "made": made, **sizes, "marks": ["begin", "end"], "waits": ["begin"], **more}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_packed(tmp_path_factory.mktemp("packed"), SAMPLES)


@pytest.fixture(scope="module")
def proof(pytestconfig):
    return pytestconfig.getoption("--proof", default=False)


@pytest.fixture(scope="module", autouse=True)
def patient(tmp_path_factory, proof):
    """The future of a job that is made to wait; it does little but wait, so the other jobs run beside it."""
    folder, stall_s = tmp_path_factory.mktemp("patient"), STALL_PROOF_S if proof else STALL_S
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(made_to_wait, folder, stall_s)


@pytest.fixture(scope="module")
def sound(made, tmp_path_factory):
    with two_hosts() as network:
        packed = {"url": made.url, "batch_size": STEP, "shuffle": "window", "epochs": 2}
        cases = [
            {"name": "packed", "made": {"transport": TRANSPORT}, **packed},
            pictures("plain"),
            pictures("filtered", made={"port": PORT}),
            pictures("limited", made={"port": PORT}),
        ]
        config = {"timeout_s": 60, "cases": cases}
        with HostsJob(network, "hosts.py", config, tmp_path_factory.mktemp("sound")) as job:
            to_far, to_near = counted(job, "plain")
            blocked = with_filter(job)
            for host in network.hosts:
                host.limit("100mbit")
            passed(job, "limited")
            return Sound(job.found(), to_far, to_near, blocked, network.near.limited())


def passed(job, case):
    job.wait_for(f"{case} begin")
    job.go(f"{case} begin")
    job.wait_for(f"{case} end")


def counted(job, case):
    """Bytes that went over the cable during a case, to the far host and back."""
    far = job.network.far
    job.wait_for(f"{case} begin")
    before = far.received_bytes(), far.sent_bytes()
    passed(job, case)
    return far.received_bytes() - before[0], far.sent_bytes() - before[1]


def with_filter(job):
    """Run a case while new connections reach the job's main port and ours alone; whether another port was blocked."""
    network = job.network
    job.wait_for("filtered begin")
    before = network.reaches(OTHER_PORT)
    for host in network.hosts:
        host.allow_only([MAIN_PORT, PORT], job.established(host))
    after = network.reaches(OTHER_PORT)
    passed(job, "filtered")
    return before, after


def lone(made, epoch):
    loader = StreamLoader(made.url, batch_size=STEP, image_size=SIZE, shuffle="window", seed=3)
    loader.set_epoch(epoch)
    return [batch["key"] for batch in loader]


@pytest.mark.parametrize("epoch", [0, 1])
def test_steps_hold_the_keys_that_one_host_gets(sound, made, epoch):
    first = [key for step in lone(made, epoch) for key in step]
    padding = -SAMPLES % STEP % len(RANKS)
    steps = [step[:] for step in lone(made, epoch)]
    steps[-1] += first[:padding]
    assert sound.steps("packed", epoch) == steps


@pytest.mark.parametrize("case", ["plain", "filtered", "limited"])
def test_pictures_arrive_whole_and_in_order_whatever_the_cable_is_like(sound, case):
    keys = [f"{row:012d}" for row in range(STEPS * BATCH)]
    assert sound.steps(case) == [keys[start : start + BATCH] for start in range(0, len(keys), BATCH)]
    assert [rank[case]["true"] for rank in sound.found] == [True] * 4


def test_the_other_host_is_served_by_tcp_and_the_own_by_shared_memory(sound):
    lines = sound.found[0]["plain"]["described"].splitlines()
    reached = [line.lower() for line in lines if line.startswith("rank ")]
    assert reached[1] == "rank 1: shared memory"
    for rank in FAR:
        assert re.fullmatch(rf"rank {rank}: tcp( 10\.77\.0\.[12]:\d+)?", reached[rank])


def test_each_rank_receives_its_portions_and_no_more_than_2_percent_beside(sound):
    for rank in (1, *FAR):
        received = sound.found[rank]["plain"]["received_bytes"]
        assert STEPS * PORTION_BYTES <= received <= 1.02 * STEPS * PORTION_BYTES


def test_the_cable_carries_the_remote_portions_and_no_more_than_2_percent_beside(sound):
    portions = STEPS * PORTION_BYTES * len(FAR)
    assert portions <= sound.to_far_bytes
    assert sound.to_far_bytes + sound.to_near_bytes <= 1.02 * portions


def test_only_the_main_port_and_the_own_are_needed(sound):
    assert sound.blocked == (True, False)  # another port is reached without the filter and not with it
    assert "error" not in sound.found[0]["filtered"]


def test_a_link_of_100_mbit_slows_and_breaks_nothing(sound):
    assert sound.limited > 0
    assert all("error" not in rank["limited"] for rank in sound.found)


def test_nothing_of_a_closed_loader_is_left_on_any_host(sound):
    cases = ("packed", "plain", "filtered", "limited")
    assert [[rank[case]["left"] for case in cases] for rank in sound.found] == [[[]] * 4] * 4


@pytest.mark.parametrize("cut", ["unplug", "cut_silently"])
def test_a_cut_cable_is_reported_on_both_sides_by_an_error_that_names_the_rank(cut, tmp_path):
    case = pictures("cut", steps=4000, side=64, step_s=0.02, marks=["step 5"], waits=[])
    with two_hosts() as network, HostsJob(network, "hosts.py", {"timeout_s": 60, "cases": [case]}, tmp_path) as job:
        job.wait_for("cut step 5")
        getattr(network, cut)()
        cut_at = time.monotonic()
        found = job.found(limit_s=60)
    told = [rank["cut"] for rank in found]
    for rank in RANKS:
        dead = r"\brank 0\b" if rank in FAR else r"\brank [23]\b"
        assert re.search(dead, told[rank]["text"]), told[rank]["text"]
        assert told[rank]["error_at"] - cut_at <= REPORT_S
        assert not told[rank]["left"]


def made_to_wait(folder, stall_s):
    """Run a job whose reader stalls at step 4 and of which ranks 1 and 3 are stopped at step 8."""
    case = pictures("patient", side=64, step_s=0.02, marks=["step 8"], waits=["step 8"])
    case["stalls"] = {str(4 * BATCH): stall_s}
    with two_hosts() as network:
        config = {"timeout_s": TIMEOUT_S, "cases": [case]}
        with HostsJob(network, "hosts.py", config, folder) as job:
            job.wait_for("patient step 8", limit_s=stall_s + 60)
            stopped = [job.processes[rank] for rank in (1, 3)]
            for process in stopped:
                process.send_signal(signal.SIGSTOP)
            job.go("patient step 8")
            time.sleep(STOP_S)
            for process in stopped:
                process.send_signal(signal.SIGCONT)
            return job.found()


def test_a_stalled_reader_and_stopped_ranks_are_waited_for_longer_than_the_groups_timeout(patient):
    found = patient.result()
    assert [rank["timeout_s"] for rank in found] == [TIMEOUT_S] * 4
    keys = [f"{row:012d}" for row in range(STEPS * BATCH)]
    for rank, told in enumerate(found):
        assert "error" not in told["patient"], told["patient"]["text"]
        portions = [keys[start : start + 4] for start in range(4 * rank, len(keys), BATCH)]
        assert told["patient"]["epochs"] == [portions]
        waits = [later - earlier for earlier, later in pairwise(told["patient"]["at"])]
        assert waits[4] > TIMEOUT_S  # for the reader
        assert max(waits[5:]) > TIMEOUT_S  # for the stopped


def test_the_hosts_of_a_test_end_with_it():
    with two_hosts() as network:
        names = {host.name for host in network.hosts}
        assert names <= set(names_left())
    assert not names & set(names_left())
