import msgspec
import pytest

import busy_main
from benchmark_cases import make_images
from busy_main import BusyMain, goals, lines
from busy_main_plan import Plan, Turn
from report import Spread

SMALL = ["--rows", "60", "--batch-size", "4", "--image-size", "32", "--rounds", "1", "--steps", "2"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "packed")


@pytest.mark.ranks
def test_a_run_gives_a_line_for_each_way_of_decoding(data, tmp_path, capsys):
    out = tmp_path / "busy.json"
    assert busy_main.main(["--data", data, *SMALL, "--ranks", "1", "--json", str(out)]) == 0
    result = msgspec.json.decode(out.read_bytes(), type=BusyMain)
    assert [line.decode_in for line in result.lines] == ["thread", "process"]
    for line in result.lines:
        assert line.kept.median == pytest.approx(line.busy_per_s.median / line.calm_per_s.median)
        assert line.slowed.median > -1
        assert line.python_ms.median > 0
    told = capsys.readouterr()
    assert sum(line.startswith("| ") for line in told.out.splitlines()) == 3
    assert told.out.count("wanted") == 2
    assert "round 1 of 1" in told.err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--batch-size", "5", "--ranks", "2"], "--batch-size 5 cannot be split over 2 ranks"),
        (["--decode-in", "dream"], "'dream' is none of thread, process"),
        (["--steps", "0"], "no whole number of 1 or more"),
    ],
)
def test_wrong_arguments_are_refused(words, problem, data, capsys):
    with pytest.raises(SystemExit) as ended:
        busy_main.main(["--data", data, *words])
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err


def test_data_that_is_no_dataset_or_too_small_ends_with_status_2(data, tmp_path, capsys):
    assert busy_main.main(["--data", str(tmp_path)]) == 2
    assert busy_main.main(["--data", data, *SMALL, "--steps", "8"]) == 2
    told = capsys.readouterr().err
    assert "busy_main.py: --data cannot be read" in told
    assert "an epoch has 15 steps of 4; 8 steps to measure need 8 more around them" in told


def turn(calm_s, busy_s, python_s):
    return Turn(decode_in="process", calm_s=calm_s, busy_s=busy_s, python_s=python_s, alone_s=0.1)


def test_the_slowest_rank_counts():
    known = {"rounds": 1, "warmup_steps": 0, "steps": 10, "side": 8}
    plan = Plan(data="", ranks=2, rows=4, decode_in=["process"], **known)
    (line,) = lines(plan, [[turn(1, 2, 0.11)], [turn(2, 4, 0.1)]])
    assert (line.calm_per_s.median, line.busy_per_s.median, line.kept.median) == (20, 10, 0.5)
    assert line.slowed.median == pytest.approx(0.1)
    assert line.python_ms.median == pytest.approx(100)


@pytest.mark.parametrize(("kept", "slowed", "words"), [(0.9, 0.05, ["reached"] * 2), (0.89, 0.051, ["MISSED"] * 2)])
def test_each_goal_is_told_as_reached_or_missed(kept, slowed, words):
    one = Spread(1, 1, 1)
    line = busy_main.Line(
        decode_in="process",
        calm_per_s=one,
        busy_per_s=one,
        python_ms=one,
        kept=Spread(kept, 0, 1),
        slowed=Spread(slowed, 0, 1),
    )
    assert [said.rstrip(".").rpartition(" ")[2] for said in goals([line])] == words
    assert goals([msgspec.structs.replace(line, decode_in="thread")]) == []
