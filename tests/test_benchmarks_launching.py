import time
from pathlib import Path

import msgspec
import pytest

import launching
from launching import FailedRankError, KilledError, Limits, run_ranks

pytestmark = pytest.mark.ranks

_PROGRAM = """
import os, sys, time
sys.path.insert(0, {folder!r})
import msgspec
from answering import serve

class Plan(msgspec.Struct):
    word: str

class Answer(msgspec.Struct):
    text: str
    pid: int

rank = int(os.environ["RANK"])

def work(plan, tell):
    {work}
    return Answer(plan.word + os.environ["RANK"] + "/" + os.environ["WORLD_SIZE"], os.getpid())

status = serve(Plan, work)
{after}
sys.exit(status)
"""


class Plan(msgspec.Struct):
    word: str


class Answer(msgspec.Struct):
    text: str
    pid: int


@pytest.fixture
def launch(tmp_path):
    """Run two ranks that do some work, and something after they answered."""

    def run(work="pass", after="", **limits):
        program = tmp_path / "program.py"
        program.write_text(_PROGRAM.format(folder=str(Path(launching.__file__).parent), work=work, after=after))
        told = []
        answers = run_ranks(program, Plan("rank "), ranks=2, answer=Answer, tell=told.append, **limits)
        return answers, told

    return run


def test_every_rank_gets_the_plan_and_its_place_and_answers(launch):
    answers, told = launch("tell('hello') if rank == 0 else None")
    assert [answer.text for answer in answers] == ["rank 0/2", "rank 1/2"]
    assert told == ["hello"]


def test_the_threads_of_a_rank_are_limited_and_foreign_settings_do_not_reach_it(launch, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    work = "assert os.environ['OMP_NUM_THREADS'] == '1' and not any('ACCELERATE' in name for name in os.environ)"
    assert len(launch(work)[0]) == 2


def test_a_rank_that_fails_is_named_with_its_words(launch):
    with pytest.raises(FailedRankError, match="rank 1: ValueError: no more memory"):
        launch("if rank: raise ValueError('no more memory')")


def test_a_rank_that_ends_without_an_answer_is_named_with_its_last_words(launch):
    with pytest.raises(FailedRankError, match="rank 1: ended with status 7: gone"):
        launch("if rank: os.write(2, b'gone'), os._exit(7)")


def test_of_a_rank_that_native_code_ended_it_is_told_where_it_was(launch):
    words = r"rank 1: ended with status -6: gone; Fatal Python error: Aborted;.*File .* in work; "
    with pytest.raises(FailedRankError, match=words):
        launch("if rank: os.write(2, b'gone\\n'), os.abort()")


def test_ranks_that_say_nothing_are_given_up_and_ended(launch, tmp_path):
    with pytest.raises(FailedRankError, match=r"said anything for 0\.5 s"):
        launch(f"open({str(tmp_path)!r} + f'/{{os.getpid()}}.pid', 'w'); time.sleep(60)", limits=Limits(silence_s=0.5))
    pids = [int(path.stem) for path in tmp_path.glob("*.pid")]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_ranks_are_killed_at_the_moment_that_was_asked_for(launch, tmp_path):
    begin = time.monotonic()
    with pytest.raises(KilledError):
        launch(
            f"open({str(tmp_path)!r} + f'/{{os.getpid()}}.pid', 'w'); time.sleep(60)", limits=Limits(kill_after_s=1.0)
        )
    assert 1.0 <= time.monotonic() - begin < 30
    pids = [int(path.stem) for path in tmp_path.glob("*.pid")]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_rank_that_fails_after_its_answer_is_told(launch):
    with pytest.raises(FailedRankError, match="rank 0: answered, then ended with status 3: late"):
        launch(after="os.write(2, b'late') if rank == 0 else None; status = 0 if rank else 3")


def test_what_a_rank_started_ends_with_it(launch, tmp_path):
    popen = "import subprocess; child = subprocess.Popen(['sleep', '60'])"
    launch(f"{popen}; open({str(tmp_path)!r} + '/%d.pid' % child.pid, 'w')")
    started = [int(path.stem) for path in tmp_path.glob("*.pid")]
    assert len(started) == 2
    until = time.monotonic() + 20
    while any(map(runs, started)):
        assert time.monotonic() < until
        time.sleep(0.02)


def runs(pid):
    """Whether a process runs; one that ended and that nobody asked for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
