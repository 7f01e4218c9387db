"""What importing the packages costs, measured."""

import import_time


def test_a_statement_is_timed_in_fresh_interpreters():
    spent, loaded = import_time.measure(import_time.Case("import fractions", "", ("torch",)), 2)
    assert 0 < spent.low <= spent.median <= spent.high
    assert loaded == []


def test_what_was_loaded_though_it_must_not_be_is_told():
    case = import_time.Case("import fractions", "", ("torch", "fractions"))
    assert import_time.measure(case, 1)[1] == ["fractions"]


def test_importing_loads_nothing_that_may_never_be_used(capsys):
    assert import_time.main(["--repeats", "1"]) == 0
    table = capsys.readouterr().out
    assert table.count("| none |") == len(import_time.CASES)
