"""The faults side by side: every row is there, stock shows what it is said to do, and the lines say so."""

import re
from pathlib import Path

import pytest

from fault_cases.making import Verdict
from fault_cases.runner import ALL
from faults import FaultLine, not_run, run_faults

TESTS = Path(__file__).parent
ROWS = [
    f"{family}{number}" for family, rows in (("A", 16), ("B", 9), ("C", 4), ("D", 7)) for number in range(1, rows + 1)
]


def ids_with_files():
    found = []
    for path in TESTS.glob("test_faults_*.py"):
        found += [
            (one.upper(), path.name) for one in re.findall(r"^def test_([a-d]\d+)_", path.read_text(), re.MULTILINE)
        ]
    return found


def test_every_row_of_the_list_is_a_fault_that_can_be_run():
    assert sorted({fault.partition("-")[0] for fault in ALL}) == sorted(ROWS)


def test_every_row_of_the_list_has_a_test_of_its_id():
    assert {one for one, _ in ids_with_files()} == set(ROWS)


def test_each_fault_that_is_not_run_on_stock_says_why():
    assert set(not_run()) == {
        "A3-default",
        "A6",
        "A7",
        "A8",
        "B1",
        "B2",
        "B3",
        "B5",
        "B6",
        "C1",
        "C2",
        "C3-packed",
        "C4",
    }


def test_a_line_shows_both_sides():
    line = FaultLine("A0", "a fault", Verdict(right=False, words="lost 3\nrows"), Verdict(right=True, words="x" * 200))
    assert str(line).splitlines() == [
        "A0   a fault",
        "     stock: WRONG; lost 3 rows",
        f"     ours:  right; {'x' * 110}...",
    ]


@pytest.mark.ranks
def test_stock_shows_each_fault_and_ours_none():
    told = []
    lines = run_faults(2, told.append)
    assert [line.id for line in lines] == [fault for fault in ALL if fault not in not_run() and fault != "D7"]
    assert told == [str(line) for line in lines]
    assert [line.id for line in lines if line.stock.right] == []
    assert [(line.id, line.ours.words) for line in lines if not line.ours.right] == []


@pytest.mark.ranks
def test_a_fault_that_ends_the_ranks_costs_its_own_line_only():
    lines = run_faults(2, lambda _: None, only=["A13", "A1", "A16"], ours="installed")
    assert [line.id for line in lines] == ["A1", "A13", "A16"]
