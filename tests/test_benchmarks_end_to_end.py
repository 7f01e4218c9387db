import msgspec
import pytest

import end_to_end
from benchmark_cases import make_images
from end_to_end import EndToEnd, goals, lines, shares, to_markdown
from end_to_end_plan import Turn, Waiting
from report import Spread
from reporting import origin

SMALL = ["--rows", "60", "--batch-size", "4", "--image-size", "32", "--rounds", "1", "--steps", "2"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "packed")


@pytest.mark.ranks
def test_a_run_gives_a_line_for_each_way_and_the_waits_of_each_rank(data, tmp_path, capsys):
    out = tmp_path / "end.json"
    assert end_to_end.main(["--data", data, *SMALL, "--ceiling-seconds", "0.05", "--json", str(out)]) == 0
    result = msgspec.json.decode(out.read_bytes(), type=EndToEnd)
    over = {line.arm: set(line.over) for line in result.lines}
    assert over == {
        "ceiling": set(),
        "ours-uint8": {"ceiling", "stock-uint8", "pillow-uint8"},
        "ours-float32": {"ceiling", "stock-float32", "pillow-float32"},
        **{f"{kind}-{pixels}": {"ceiling"} for kind in ("stock", "pillow") for pixels in ("uint8", "float32")},
    }
    assert all(line.images_per_s.median > 0 for line in result.lines)
    assert len(result.waits) == 2
    assert all(0 < share.median < 1 for share in result.waits)
    assert result.sleep_s.median > 0
    told = capsys.readouterr()
    assert sum(line.startswith("| ") for line in told.out.splitlines()) == 8
    assert "With a step that sleeps 1.1 times the loading of one step" in told.out
    assert "round 1 of 1" in told.err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--batch-size", "5"], "--batch-size 5 cannot be split over 2 ranks"),
        (["--ways", "ours"], "'ours' is none of ceiling, ours-uint8"),
        (["--sleeps", "-1"], "no time above 0"),
    ],
)
def test_wrong_arguments_are_refused(words, problem, data, capsys):
    with pytest.raises(SystemExit) as ended:
        end_to_end.main(["--data", data, *words])
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err


def test_data_that_is_no_dataset_or_too_small_ends_with_status_2(data, tmp_path, capsys):
    assert end_to_end.main(["--data", str(tmp_path)]) == 2
    assert end_to_end.main(["--data", data, *SMALL, "--steps", "6"]) == 2
    told = capsys.readouterr().err
    assert "end_to_end.py: --data cannot be read" in told
    assert "an epoch has 15 steps of 4; 6 steps to measure need 10 more around them" in told


def turn(arm, rows, seconds):
    return Turn(arm=arm, rows=rows, seconds=seconds)


def test_rows_of_all_ranks_count_over_the_seconds_of_the_slowest():
    first = [turn("ceiling", 100, 1), turn("ours-uint8", 40, 1)]
    second = [turn("ceiling", 0, 0), turn("ours-uint8", 40, 2)]
    ceiling, ours = lines(["ceiling", "ours-uint8"], [first, second])
    assert (ceiling.images_per_s.median, ours.images_per_s.median) == (100, 40)
    assert ours.over == {"ceiling": Spread(0.4, 0.4, 0.4)}
    assert goals([ceiling, ours]) == ["ours-uint8 over ceiling: 0.40, at least 0.95 wanted: MISSED."]


def test_a_wait_is_a_share_of_the_time_of_its_rank():
    waiting = [[Waiting(sleep_s=0.1, wait_s=1, seconds=10)], [Waiting(sleep_s=0.1, wait_s=0.1, seconds=10)]]
    assert [share.median for share in shares(waiting)] == [0.1, 0.01]


@pytest.mark.parametrize(("worst", "word"), [(0.019, "reached"), (0.02, "MISSED")])
def test_the_rank_that_waits_most_decides(worst, word):
    known = {"origin": origin("x"), "ranks": 2, "rows": 4, "side": 8, "samples": 9, "rounds": 1, "lines": []}
    waits = [Spread(0.001, 0, 1), Spread(worst, 0, 1)]
    said = to_markdown(EndToEnd(sleeps=1.1, sleep_s=Spread(0.05, 0.05, 0.05), waits=waits, **known))
    assert f"under 2% on every rank wanted: {word}." in said
    assert "wanted" not in to_markdown(EndToEnd(sleeps=None, sleep_s=None, waits=[], **known))
