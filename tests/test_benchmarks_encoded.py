import msgspec
import pytest

import encoded
from benchmark_cases import make_images
from encoded import Encoded, Line, goals, lines
from encoded_plan import Plan, Turn
from report import Spread


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "packed")


@pytest.mark.ranks
def test_a_run_gives_a_line_for_each_way(data, tmp_path, capsys):
    out = tmp_path / "encoded.json"
    words = f"--rows 60 --batch-size 4 --rounds 2 --passes 1 --on {tmp_path} --json {out}".split()
    assert encoded.main(["--data", data, *words]) == 0
    result = msgspec.json.decode(out.read_bytes(), type=Encoded)
    assert [line.arm for line in result.lines] == ["copy", "preadv", "ours", "ours-verified"]
    assert result.samples == 72
    for line in result.lines:
        assert 0 < line.mb_per_s.low <= line.mb_per_s.median
        assert set(line.over) == {"copy", "preadv"} - {line.arm}
    for alone, ours in zip(result.lines[:2], result.lines[2:], strict=True):
        assert alone.received == [0, 0]
        assert all(1 <= share < 1.5 for share in ours.received)
    told = capsys.readouterr()
    assert sum(line.startswith("| ") for line in told.out.splitlines()) == 5
    assert "round 2 of 2" in told.err
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--batch-size", "5"], "--batch-size 5 cannot be split over 2 ranks"),
        (["--ways", "magic"], "'magic' is none of copy, preadv"),
        (["--passes", "0"], "no whole number of 1 or more"),
    ],
)
def test_wrong_arguments_are_refused(words, problem, data, capsys):
    with pytest.raises(SystemExit) as ended:
        encoded.main(["--data", data, *words])
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err


def test_data_that_is_no_dataset_or_too_small_ends_with_status_2(data, tmp_path, capsys):
    assert encoded.main(["--data", str(tmp_path)]) == 2
    assert encoded.main(["--data", data, "--rows", "30", "--batch-size", "4"]) == 2
    told = capsys.readouterr().err
    assert "encoded.py: --data cannot be read" in told
    assert "30 samples are too few for steps of 4" in told


def turn(arm, seconds, size=0, received=0):
    return Turn(arm=arm, seconds=seconds, part_bytes=size, epoch_bytes=2 * size, received_bytes=received)


def test_bytes_of_all_ranks_count_over_the_seconds_of_the_slowest():
    plan = Plan(data="", ranks=2, rows=2, arms=["copy", "ours"], rounds=1, passes=1, warmup_steps=0)
    first = [turn("copy", 2, 8_000_000), turn("ours", 1, 4_000_000, 8_800_000)]
    second = [turn("copy", 0), turn("ours", 2, 4_000_000, 8_000_000)]
    copy, ours = lines(plan, [first, second])
    assert (copy.mb_per_s.median, ours.mb_per_s.median) == (4.0, 4.0)
    assert ours.over == {"copy": Spread(1.0, 1.0, 1.0)}
    assert (copy.received, ours.received) == ([0.0, 0.0], [1.1, 1.0])


@pytest.mark.parametrize(("ratio", "word"), [(0.85, "reached"), (0.84, "MISSED")])
def test_each_goal_is_told_as_reached_or_missed(ratio, word):
    over = {"preadv": Spread(ratio, 0.1, 2.0)}
    ours = Line(arm="ours", mb_per_s=Spread(1, 1, 1), over=over, received=[1.0])
    assert goals([ours]) == [f"Ours over preadv: {ratio:.2f}, at least 0.85 wanted: {word}."]
    assert goals([msgspec.structs.replace(ours, arm="ours-verified")]) == []
