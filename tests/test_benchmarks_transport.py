import json

import msgspec
import pytest

import transport
from report import Spread
from transport import Line, Transport, goals, lines, to_markdown
from transport_plan import Plan, Turn

PLAN = Plan(
    ranks=2,
    rows=4,
    side=8,
    dtypes=["uint8"],
    arms=["stock", "scatter", "ours"],
    rounds=2,
    seconds=0.01,
    warmup_steps=1,
)
PORTION = 2 * 3 * 8 * 8


def turn(arm, seconds, received=PORTION, steps=10):
    return Turn(dtype="uint8", arm=arm, steps=steps, seconds=seconds, received_bytes=received)


@pytest.mark.ranks
def test_a_run_gives_a_line_for_each_way_and_what_it_received(tmp_path, capsys):
    out = tmp_path / "transport.json"
    words = ["--ranks", "2", "--batch-size", "8", "--image-size", "16", "--rounds", "2", "--seconds", "0.02", "--json"]
    assert transport.main([*words, str(out)]) == 0
    result = msgspec.json.decode(out.read_bytes(), type=Transport)
    assert [(line.dtype, line.arm) for line in result.lines] == [
        (dtype, arm) for dtype in ("float32", "uint8") for arm in ("stock", "scatter", "ours")
    ]
    for line in result.lines:
        assert 0 < line.rows_per_s.low <= line.rows_per_s.median <= line.rows_per_s.high
        assert line.ranks == len(line.received) == 2
        assert (line.over_stock is None) == (line.arm == "stock")
        # Portions are small here, so messages count: beside the 16 kB of one with floats they are little
        portions = {"stock": 2, "scatter": 1, "ours": 1}[line.arm]
        assert portions <= line.received[1] < portions + (0.1 if line.dtype == "float32" else 0.4)
    assert result.origin.command.startswith("python benchmarks/transport.py --ranks 2")
    told = capsys.readouterr()
    assert sum(line.startswith("| ") for line in told.out.splitlines()) == 7
    assert "round 2 of 2" in told.err


@pytest.mark.ranks
def test_a_rank_that_fails_ends_the_program_with_status_1(tmp_path, monkeypatch, capsys):
    program = tmp_path / "rank.py"
    program.write_text("import sys; sys.exit('no such memory')")
    monkeypatch.setattr(transport, "_RANK", program)
    assert transport.main(["--ranks", "2"]) == 1
    assert "transport.py: rank 0: ended with status 1: no such memory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--batch-size", "6", "--ranks", "4"], "--batch-size 6 cannot be split over 4 ranks"),
        (["--transport", "smoke"], "'smoke' is none of stock, scatter, ours"),
        (["--dtypes", "float64"], "'float64' is none of float32, uint8"),
        (["--ranks", "1"], "no whole number of 2 or more"),
        (["--json", "/no/such/folder/a.json"], "cannot be written"),
    ],
)
def test_wrong_arguments_are_refused(words, problem, capsys):
    with pytest.raises(SystemExit) as ended:
        transport.main(words)
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err


def test_the_slowest_rank_counts_and_ratios_are_those_of_one_round():
    # Round 1: 40 rows in 4 s and in 1 s; round 2, backwards: in 2 s and in 8 s
    slow = [turn("stock", 4), turn("ours", 1), turn("ours", 2), turn("stock", 8)]
    fast = [turn("stock", 1), turn("ours", 0.5), turn("ours", 0.5), turn("stock", 1)]
    plan = msgspec.structs.replace(PLAN, arms=["stock", "ours"])
    stock, ours = lines(plan, [slow, fast])
    assert stock.rows_per_s == Spread(7.5, 5.0, 10.0)
    assert ours.rows_per_s == Spread(30.0, 20.0, 40.0)
    assert ours.over_stock == Spread(4.0, 4.0, 4.0)
    assert ours.over_scatter is None


def test_the_round_in_which_most_was_received_counts():
    turns = [turn("scatter", 1, PORTION), turn("scatter", 1, 2 * PORTION)]
    (line,) = lines(msgspec.structs.replace(PLAN, arms=["scatter"]), [turns, turns])
    assert line.received == [2.0, 2.0]


def line(ratio, **changes):
    known = {"ranks": 2, "dtype": "uint8", "arm": "ours", "rows_per_s": Spread(9.0, 8.0, 10.0), "received": [0.0, 1.0]}
    return Line(over_stock=Spread(ratio, ratio, ratio), over_scatter=Spread(1.8, 1.0, 2.0), **{**known, **changes})


@pytest.mark.parametrize(("ratio", "word"), [(5.0, "reached"), (4.99, "MISSED")])
def test_each_goal_is_told_as_reached_or_missed(ratio, word):
    assert goals([line(ratio)]) == [
        f"Ours over stock dispatch, uint8, 2 ranks: {ratio:.2f}, at least 5 wanted: {word}.",
        "Ours over scatter, uint8, 2 ranks: 1.80, at least 1.8 wanted: reached.",
    ]


def test_other_ways_and_other_numbers_of_ranks_have_no_goal_over_stock():
    assert goals([line(1.0, arm="scatter")]) == []
    assert len(goals([line(1.0, ranks=3)])) == 1


def test_the_table_holds_rates_ratios_and_what_was_received():
    machine = {"cpu": "C", "cores": 2, "memory_gib": 1.0, "accelerator": "none", "load": 0.0}
    versions = {"python": "3", "torch": "2", "accelerate": "1"}
    text = json.dumps({"date": "D", "command": "X", "machine": machine | versions})
    came = msgspec.json.decode(text, type=transport.Origin)
    said = to_markdown(Transport(origin=came, rows=4, side=8, rounds=2, lines=[line(6.0)]))
    row = next(one for one in said.splitlines() if one.startswith("| ours"))
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        "ours",
        "uint8",
        "2",
        "9",
        "8-10",
        "6.00 (6.00-6.00)",
        "1.80 (1.00-2.00)",
        "0.000 1.000",
    ]
