import pytest

from arguments import parse


def test_lists_are_read_and_values_that_come_twice_count_once():
    options = parse(["--data", "x", "--mode", "shard", "--ranks", "1,2", "--workers", "0, 2,0", "--pin-memory", "off"])
    assert (options.mode, options.ranks, options.workers, options.pin_memory) == (["shard"], [1, 2], [0, 2], [False])


def test_without_options_both_modes_and_the_advice_are_measured():
    options = parse(["--data", "x"])
    assert (options.mode, options.prefetch, options.pin_memory) == (["dispatch", "shard"], [2, 4, 8], [True, False])
    assert (options.batch_size, options.image_size, options.seconds, options.repeats) == (64, 224, 3.0, 3)
    assert options.advice


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "--data"),
        (["--data", "x", "--mode", "both"], "'both' is no mode; write dispatch or shard"),
        (["--data", "x", "--ranks", "0"], "'0' is no whole number of 1 or more"),
        (["--data", "x", "--ranks", "1,,2"], "'' is no whole number"),
        (["--data", "x", "--workers", "-1"], "--workers"),
        (["--data", "x", "--prefetch", "two"], "'two' is no whole number"),
        (["--data", "x", "--pin-memory", "yes"], "'yes' is neither on nor off"),
        (["--data", "x", "--seconds", "0"], "'0' is no time above 0 seconds"),
        (["--data", "x", "--seconds", "nan"], "'nan' is no time"),
        (["--data", "x", "--batch-size", "9", "--ranks", "1,2"], "9 cannot be split over 2 ranks"),
        (["--data", "x", "--json", "/nowhere/at/all.json"], "cannot be written"),
        (["--data", "x", "--plot", "/"], "cannot be written"),
        (["--data", "x", "--prefetches", "2"], "unrecognized arguments"),
    ],
)
def test_a_wrong_word_is_told_and_ends_with_status_2(capsys, words, problem):
    with pytest.raises(SystemExit) as left:
        parse(words)
    assert left.value.code == 2
    assert problem in capsys.readouterr().err


def test_a_picture_without_matplotlib_is_refused_before_measuring(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("arguments.find_spec", lambda _: None)
    with pytest.raises(SystemExit):
        parse(["--data", "x", "--plot", str(tmp_path / "p.png")])
    assert "pip install -e '.[bench]'" in capsys.readouterr().err
