"""The cost of an order, measured in small."""

import order_scale


def test_each_shuffle_is_measured_in_a_process_of_its_own(capsys):
    assert order_scale.main(["--shards", "50", "--rows", "100", "--looks", "100"]) == 0
    said = capsys.readouterr().out
    assert "A manifest of 50 shards and 5,000 rows" in said
    assert [line.split("|")[1].strip() for line in said.splitlines() if line.startswith("| ")][1:] == [
        "window",
        "full",
        "none",
    ]
    assert "row_us:" in said


def test_a_process_that_fails_is_told(capsys, monkeypatch):
    monkeypatch.setattr(order_scale, "_SHUFFLES", ("sideways",))
    assert order_scale.main(["--shards", "5", "--rows", "10", "--looks", "100"]) == 1
    assert "measuring shuffle sideways failed: " in capsys.readouterr().err
