"""Which program the command line of run.py asks for."""

import pytest

import programs
import run


@pytest.fixture
def asked(monkeypatch):
    """The words that each of the other programs was given."""
    found = {}
    monkeypatch.setattr(programs.transport, "main", lambda words: found.setdefault("transport", words) and 0)

    def run_faults(ranks, report, *, only):
        found["faults"] = (ranks, only)
        return []

    monkeypatch.setattr(programs, "run_faults", run_faults)
    return found


def test_transport_gets_its_own_options_without_the_mode(asked):
    assert run.main(["--mode", "dispatch", "--transport", "ours,stock", "--ranks", "2,4"]) == 0
    assert asked == {"transport": ["--transport", "ours,stock", "--ranks", "2,4"]}


def test_faults_are_run_on_the_ranks_asked_for(asked, capsys):
    assert run.main(["--mode", "dispatch", "--faults", "--ranks", "4", "--only", "a1,B2"]) == 0
    assert asked == {"faults": (4, ["A1", "B2"])}
    assert "0 faults run on 4 ranks; wrong: stock 0, ours 0" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--faults", "--transport=ours"])
def test_shard_mode_has_neither(asked, flag):
    with pytest.raises(SystemExit):
        run.main(["--mode", "shard", flag])
    assert asked == {}


def test_a_grid_is_no_other_program():
    assert programs.other_program(["--data", "x", "--mode", "dispatch"]) is None
