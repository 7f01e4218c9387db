"""Kill trials: what is wrong is found, and real ones are right."""

from pathlib import Path

import msgspec
import pytest

import kill_trials
import run
from kill_trials_plan import LATEST, LEDGER, Ledger, latest, ledger_of
from packed import make_packed

KEYS = ["a", "b", "c"]
SAMPLES = 29


@pytest.mark.parametrize(
    ("counted", "problem"),
    [
        ([["c", "a", "b"], ["a", "b", "c"]], None),
        ([["a", "b", "c"]], "1 epochs counted, not 2"),
        ([["a", "b", "c"], ["a", "b"]], "epoch 1: 0 keys counted twice or more, 1 never"),
        ([["a", "b", "c", "a"], ["a", "b", "c"]], "epoch 0: 1 keys counted twice or more, 0 never"),
        ([["a", "b", "b"], ["a", "b", "c"]], "epoch 0: 1 keys counted twice or more, 1 never"),
    ],
)
def test_every_key_counts_once_an_epoch(counted, problem):
    assert kill_trials.wrong_with(counted, KEYS, 2) == problem


def test_the_latest_checkpoint_is_the_one_that_was_named_last(tmp_path):
    assert latest(tmp_path) is None
    ledger = Ledger(epochs=[["a"], []], launches=2)
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / LEDGER).write_bytes(msgspec.json.encode(ledger))
    (tmp_path / LATEST).write_text("one")
    assert ledger_of(latest(tmp_path)) == ledger


@pytest.mark.ranks
def test_real_trials_count_every_sample_exactly_once_an_epoch(tmp_path, capsys):
    """The first accumulates gradients over 4 steps."""
    made = make_packed(tmp_path, SAMPLES)
    words = ["--kill-trials", "1", "--data", made.url, "--epochs", "2", "--step-s", "0.2"]
    assert run.main([*words, "--kill-after-s", "4", "8"]) == 0
    said = capsys.readouterr().out
    assert "0 of 1 trials are wrong." in said
    assert f"{SAMPLES} {SAMPLES}" in said


@pytest.mark.ranks
def test_a_rank_that_fails_makes_its_trial_wrong(tmp_path, capsys):
    made = make_packed(tmp_path, SAMPLES)
    for tar in made.tars():
        data = Path(tar).read_bytes()
        Path(tar).write_bytes(data[:600] + bytes(64) + data[664:])
    words = ["--kill-trials", "1", "--data", made.url, "--epochs", "1", "--kill-after-s", "60", "61"]
    assert run.main(words) == 1
    said = capsys.readouterr().out
    assert "1 of 1 trials are wrong." in said
    assert "ChecksumError" in said


def test_data_that_cannot_be_read_is_wrong_usage(tmp_path, capsys):
    assert run.main(["--kill-trials", "1", "--data", str(tmp_path)]) == 2
    assert "--data cannot be read" in capsys.readouterr().err
