"""What programs share: commands, messages, and answers that cannot be written."""

import subprocess
import sys
from pathlib import Path

import pytest

from packed import make_packed
from shards import programs
from shards.programs import run_command, write

ROOT = Path(__file__).resolve().parents[1]


def test_a_command_gets_the_other_arguments_and_gives_the_status():
    assert run_command("p", {"count": len}, ["count", "a", "b"]) == 2


@pytest.mark.parametrize(("arguments", "got"), [([], "no command is given"), (["x"], "'x' is no command")])
def test_what_is_no_command_is_told_with_those_there_are(arguments, got, capsys):
    assert run_command("p", {"a": len, "b": len}, arguments) == 2
    assert (
        capsys.readouterr().err
        == f"p: {got}; usage: python -m p {{a,b}} ...  (-h behind a command tells its options)\n"
    )


def test_an_answer_is_written(capsys):
    assert write("c", "answer\n")
    assert capsys.readouterr() == ("answer\n", "")


@pytest.mark.parametrize("command", ["inspect", "lint", "inspect --json", "lint --json"])
def test_an_answer_that_cannot_be_written_is_told(tmp_path, command):
    made = make_packed(tmp_path, 3)
    arguments = [sys.executable, "-m", "shards", *command.split(), made.url]
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        done = subprocess.run(arguments, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    name = command.split()[0]
    assert done.stderr == f"{name}: the answer cannot be written: No space left on device\n"
    assert done.returncode != 0


def test_a_closed_output_is_no_traceback(monkeypatch, capsys):
    class Closed:
        def write(self, text):
            raise BrokenPipeError

        def fileno(self):
            return 99

    moved = []
    monkeypatch.setattr(programs.sys, "stdout", Closed())
    monkeypatch.setattr(programs.os, "dup2", lambda one, other: moved.append(other))
    assert write("c", "x") is False
    assert moved == [99]
    assert capsys.readouterr().err == ""
