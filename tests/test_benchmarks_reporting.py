import json

import msgspec
import pytest

from launching import FailedRankError
from report import Spread
from reporting import head, origin, ratio_cell, reached, reported


class Found(msgspec.Struct):
    number: int


def test_a_report_begins_with_machine_date_and_command():
    came = origin("python benchmarks/x.py --ranks 2")
    assert came.date.endswith(" UTC")
    assert came.machine.cpu in head(came)
    assert head(came).endswith("\n\n`python benchmarks/x.py --ranks 2`")


def test_a_ratio_is_told_with_its_spread():
    assert ratio_cell(Spread(2.0, 1.5, 2.345)) == "2.00 (1.50-2.35)"
    assert ratio_cell(None) == ""


def test_a_goal_that_is_missed_cannot_be_overlooked():
    assert (reached(good=True), reached(good=False)) == ("reached", "MISSED")


def test_what_was_measured_is_written_and_told(tmp_path, capsys):
    path = tmp_path / "a.json"
    assert reported("x.py", lambda: Found(3), lambda found: f"number {found.number}\n", path) == 0
    assert json.loads(path.read_text()) == {"number": 3}
    assert capsys.readouterr().out == "number 3\n"


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (FailedRankError(1, "it died"), 1, "x.py: rank 1: it died"),
        (OSError("no space"), 1, "x.py: no space"),
        (KeyboardInterrupt(), 130, "x.py: interrupted"),
    ],
)
def test_what_failed_is_told_and_nothing_is_written(error, status, words, tmp_path, capsys):
    def measure():
        raise error

    assert reported("x.py", measure, str, tmp_path / "a.json") == status
    told = capsys.readouterr()
    assert words in told.err
    assert not told.out
    assert not list(tmp_path.iterdir())
