from pathlib import Path

import pytest

import launching
import measure
from benchmark_cases import config, make_images, setting
from measure import Launch, Outcome, RankError, run_jobs
from messages import Job, Plan, Shot

pytestmark = pytest.mark.ranks

_READY = """
import json, os, sys, time
sys.stdin.read()
print(json.dumps({"type": "Ready", "device": "cpu"}), flush=True)
rank = os.environ["RANK"]
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "packed", 26)


@pytest.fixture
def ranks_that(tmp_path, monkeypatch):
    """Put other ranks in place of the real ones: they join, then run this code."""

    def replace(code):
        program = tmp_path / "rank.py"
        program.write_text(_READY + code)
        monkeypatch.setattr(measure, "_RANK", program)

    return replace


def jobs(*configs):
    return [Job(number=number, config=one) for number, one in enumerate(configs)]


def plan(*configs, **changes):
    return Plan(setting=setting("nowhere", 24, **changes), ranks=2, jobs=jobs(*configs))


def outcome_of(*configs, **changes):
    outcome, told = Outcome(), []
    run_jobs(setting("nowhere", 24, **changes), jobs(*configs), outcome, lambda job, answer: told.append(answer))
    return outcome, told


def outcome_with(data, rows, known):
    outcome = Outcome()
    run_jobs(setting(data, rows), known, outcome, lambda job, answer: None)
    return outcome


def test_two_ranks_measure_and_deliver_every_sample_once_in_both_modes(data):
    modes = [config("dispatch"), config("shard")]
    whole = [Job(number=number + 2, config=one, whole_epoch=True) for number, one in enumerate(modes)]
    outcome = outcome_with(data, 26, [*jobs(*modes), *whole])
    assert (outcome.faults, outcome.problems, outcome.devices) == ({}, [], {2: "cpu"})
    assert {number: len(keys) for number, keys in outcome.epochs.items()} == {2: 2, 3: 2}
    for keys in outcome.epochs.values():
        assert sorted(keys[0] + keys[1]) == [f"{number:012d}" for number in range(26)]
    for shot in outcome.shots.values():
        assert shot.samples_per_s > 0
        assert shot.peak_mib > 20


def test_a_configuration_that_fails_is_told_and_the_others_are_measured(data):
    bad, good = config("shard", workers=-1), config("shard")
    outcome = outcome_with(data, 26, jobs(good, bad, good, bad))
    assert list(outcome.shots) == [0, 2]
    assert list(outcome.faults) == [bad]
    assert "OptionError" in outcome.faults[bad]
    assert "workers" in outcome.faults[bad]


def test_a_rank_that_dies_fails_the_configuration_with_its_last_words(ranks_that):
    ranks_that("sys.exit('no more memory' if rank == '1' else time.sleep(60))")
    outcome, told = outcome_of(config())
    assert outcome.faults == {config(): "rank 1 ended with status 1: no more memory"}
    assert told == [outcome.faults[config()]]


def test_ranks_that_are_silent_for_too_long_are_ended(ranks_that):
    ranks_that("time.sleep(60)")
    outcome, _ = outcome_of(config(), patience_s=0.3)
    assert "silent for too long" in outcome.faults[config()]


def test_ranks_that_do_not_start_are_ended_too(ranks_that, tmp_path, monkeypatch):
    ranks_that("")
    (tmp_path / "rank.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(measure, "_START_LIMIT_S", 0.3)
    outcome, _ = outcome_of(config(), config("shard"))
    assert len(outcome.faults) == 2


def test_ranks_that_never_join_fail_all_configurations(ranks_that, tmp_path, monkeypatch):
    ranks_that("")
    (tmp_path / "rank.py").write_text("raise SystemExit('cannot start')")
    outcome, _ = outcome_of(config(), config("shard"))
    assert len(outcome.faults) == 2
    assert all("cannot start" in problem for problem in outcome.faults.values())


def test_a_bad_end_after_the_last_job_is_a_problem_of_the_run(ranks_that):
    ranks_that(
        "print(json.dumps({'type': 'Window', 'job': 0, 'samples': 8, 'epochs': 1, 'seconds': 1.0, 'first_s': 0.1,"
        "'delivered_bytes': 3.0, 'waits_ms': [1.0]}), flush=True); time.sleep(0.5); os.abort()"
    )
    outcome, _ = outcome_of(config())
    assert isinstance(outcome.shots[0], Shot)
    assert len(outcome.problems) == 1
    assert "ended with status -6" in outcome.problems[0]


def alive(session):
    """The processes of a session that still run; an orphan that nobody has waited for yet does not."""
    stats = [path.read_text().rpartition(")")[2].split() for path in Path("/proc").glob("[0-9]*/stat")]
    return [stat for stat in stats if int(stat[3]) == session and stat[0] != "Z"]


def test_leaving_a_launch_ends_its_ranks_and_their_children(ranks_that):
    ranks_that("import subprocess; subprocess.run(['sleep', '60'])")
    with Launch(plan(config(), patience_s=0.3)) as launch:
        pids = [process.pid for process in launch._processes]
        with pytest.raises(RankError):
            launch.answer(jobs(config())[0])
    assert not [pid for pid in pids if alive(pid)]


def test_a_launchers_settings_do_not_reach_the_ranks(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv("HOME", "/home/somebody")
    known = launching.environment(1, 2, 4567)
    assert "ACCELERATE_USE_DEEPSPEED" not in known
    assert (known["RANK"], known["WORLD_SIZE"], known["MASTER_PORT"]) == ("1", "2", "4567")
    assert (known["OMP_NUM_THREADS"], known["HOME"]) == ("1", "/home/somebody")


def test_jobs_of_a_faulty_configuration_are_not_left():
    outcome = Outcome(faults={config(): "it died"}, epochs={3: []})
    known = jobs(config(), config("shard"), config(), config(prefetch=4))
    assert [job.number for job in outcome.left(known)] == [1]
