"""tools/demo.py: the whole path as a program, what it refuses to take for a success, and that nothing of it runs on."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from coco_cases import run_tool, tool
from demo import MARKER, DemoError, Epoch, Results, call_command, check, claim, end, parse

HEAR_INTERRUPTS = (
    sys.executable,
    "-c",
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])",
)
"""Starts a program that hears SIGINT, also where the tests run in a shell's background and do not."""
WANTED = SimpleNamespace(ranks=2, mode="dispatch")


def results(*losses, ranks=2, mode="dispatch"):
    return Results(ranks, mode, [Epoch(loss, 10, 2.0) for loss in losses], [])


@pytest.mark.ranks
def test_the_demo_draws_packs_trains_and_tells(tmp_path):
    done = run_tool("demo.py", "--folder", tmp_path / "demo", "--images", 24)
    assert (done.returncode, done.stderr) == (0, "")
    for line in (
        "drew 24 images with captions into ",
        "images    24 (each decoded once, by ",
        "training on 2 ranks, rank 0 on cpu",
        "mode: dispatch; ",
        "epoch 2: loss ",
        "2 ranks in dispatch mode: ",
        "the demo took ",
    ):
        assert f"\n{line}" in done.stdout
    assert done.stdout.count("\n      model: ") == 3
    assert done.stdout.count("\nimage 00000000000") == 3
    assert "Warning" not in done.stdout


def test_a_former_demo_is_replaced(tmp_path):
    claim(tmp_path / "demo")
    (tmp_path / "demo" / "old").touch()
    claim(tmp_path / "demo")
    assert [path.name for path in (tmp_path / "demo").iterdir()] == [MARKER]


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "mine").touch()
    done = run_tool("demo.py", "--folder", tmp_path)
    assert done.returncode == 1
    assert done.stderr == f"demo: {tmp_path} is not empty and no demo made it; give another --folder\n"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_step_that_fails_is_an_error_that_names_its_command(capfd):
    with pytest.raises(DemoError, match=r"exit status 3 from: .* -c 'raise SystemExit\(3\)'"):
        call_command([sys.executable, "-c", "raise SystemExit(3)"])


def test_what_a_step_prints_can_go_to_a_file(tmp_path, capfd):
    call_command(["sh", "-c", "echo result; echo message >&2"], output=tmp_path / "out")
    assert (tmp_path / "out").read_text() == "result\n"
    assert capfd.readouterr() == ("message\n", "")


def test_another_number_of_ranks_is_no_success():
    with pytest.raises(DemoError, match="1 ranks trained in dispatch mode, not 2 in dispatch"):
        check(results(2.0, 1.0, ranks=1), WANTED)


def test_a_loss_that_does_not_fall_is_no_success():
    with pytest.raises(DemoError, match="the loss did not fall"):
        check(results(1.0, 1.5), WANTED)


@pytest.mark.parametrize("last", [float("nan"), 1.0])
def test_a_loss_that_is_no_smaller_is_no_success(last):
    with pytest.raises(DemoError, match="the loss did not fall"):
        check(results(1.0, last), WANTED)


def test_rate_and_losses_are_told(capsys):
    check(results(2.0, 1.0), WANTED)
    assert capsys.readouterr().out == "\n2 ranks in dispatch mode: 5 samples/s, loss 2.00 -> 1.00\n"


def test_no_ranks_are_a_usage_error(capsys):
    with pytest.raises(SystemExit):
        parse(["--ranks", "0"])
    assert "must be 1 or more" in capsys.readouterr().err


@pytest.fixture
def training(tmp_path):
    """A demo whose ranks train for a long time, and the processes that belong to it."""
    command = tool("demo.py", "--folder", tmp_path / "demo", "--images", 12, "--epochs", 10_000)
    process = subprocess.Popen([*HEAR_INTERRUPTS, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_until(lambda: process.poll() is not None or (tmp_path / "demo" / "checkpoints" / "epoch-1").exists())
        yield process, descendants(process.pid)
    finally:
        end(process)
        process.communicate()


def wait_until(true, seconds=90):
    latest = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < latest
        time.sleep(0.05)


def descendants(pid):
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*children, *(one for child in children for one in descendants(child))]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.ranks
def test_ctrl_c_ends_the_demo_and_its_ranks(training):
    process, others = training
    assert len(others) >= 3  # the launcher and two ranks
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == b"demo: stopped by SIGINT\n"
    wait_until(lambda: not any(map(is_running, others)), seconds=10)
