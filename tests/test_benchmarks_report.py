import msgspec
import pytest

from benchmark_cases import config, result, row
from report import NOTHING_TO_PIN, Check, Result, Spread, mark_best, to_markdown


def lines_of_table(text):
    return [line for line in text.splitlines() if line.startswith("|")]


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_spread_is_the_median_between_the_extremes():
    assert Spread.of([3.0, 1.0, 10.0]) == Spread(3.0, 1.0, 10.0)


def test_the_best_of_each_mode_and_number_of_ranks_is_marked():
    rows = [row(500), row(600, prefetch=4), row(550, "shard"), row(900, ranks=1)]
    assert [one.best for one in mark_best(rows)] == [False, True, True, True]


def test_a_row_that_pins_for_nobody_is_not_the_best():
    rows = [row(500), row(600, pin=True)]
    assert [one.best for one in mark_best(rows)] == [True, False]


def test_a_row_that_pins_for_nobody_is_the_best_where_there_is_no_other():
    assert [one.best for one in mark_best([row(600, pin=True)])] == [True]


def test_a_row_that_pins_for_an_accelerator_can_be_the_best():
    rows = [row(500), row(600, pin=True, unpinnable=False)]
    assert [one.best for one in mark_best(rows)] == [False, True]


def test_a_failed_row_is_never_the_best():
    assert [one.best for one in mark_best([row(0, failed="it died"), row(1, prefetch=4)])] == [False, True]


def test_the_table_is_markdown_with_equally_many_cells_a_line():
    table = lines_of_table(to_markdown(result([row(500), row(0, "shard", failed="a | b\nc")])))
    assert len(table) == 4
    assert {line.count("|") for line in table} == {15}
    assert set(table[1]) <= set("|-:")


def test_the_table_has_every_figure_of_a_row():
    table = lines_of_table(to_markdown(result(mark_best([row(512, workers=1, prefetch=4)]))))
    assert cells(table[2]) == [
        *("dispatch", "2", "1", "4", "off", "512", "502-522", "51%", "0.25", "61.5", "1,412", "165.0", "150.6"),
        "**best of dispatch**",
    ]


def test_a_failed_row_tells_why():
    table = lines_of_table(to_markdown(result([row(0, failed="rank 1: OptionError: no")])))
    assert cells(table[2])[-1] == "FAILED: rank 1: OptionError: no"


def test_common_advice_and_useless_pinning_are_remarked():
    table = lines_of_table(to_markdown(result([row(500, advice=True, pin=True)])))
    assert cells(table[2])[-1] == f"common advice; {NOTHING_TO_PIN}"


def test_the_head_names_machine_date_command_and_both_decoders():
    text = to_markdown(result([row(500)]))
    for part in (
        "Some CPU, 2 cores, 16 GiB, no accelerator",
        "2026-01-02 03:04 UTC",
        "`python benchmarks/run.py --data packed`",
        "200 samples of 165 kB, repeated under new keys to 4,200",
        "Decode ceiling: 1,000 images/s by 2 threads (980-1,020)",
        "Pillow instead: 800 images/s",
    ):
        assert part in text


def test_the_best_row_is_told_beside_the_common_advice_and_what_it_cannot_be_told_from():
    rows = mark_best([row(600), row(585, prefetch=4), row(500, workers=2, pin=True, advice=True)])
    text = to_markdown(result(rows))
    assert (
        "Best of dispatch on 2 ranks: 600 samples/s with 0 workers, prefetch 2, pin off; "
        "1 of the 2 other rows overlap its spread. "
        "Common advice: 500 samples/s with 2 workers, prefetch 2, pin on."
    ) in text


@pytest.mark.parametrize(
    "spoiled",
    [
        {"rows": [row(0, failed="it died")]},
        {"checks": [Check(config=config(), rows=3, padding=0, problem="1 samples did not come")]},
        {"problems": ["after the last job: rank 0 ended with status -6"]},
    ],
)
def test_a_result_with_a_fault_is_not_sound_and_says_so(spoiled):
    bad = result(**{"rows": [row(500)], **spoiled})
    assert not bad.sound
    assert any(word in to_markdown(bad) for word in ("FAILED", "PROBLEM"))


def test_a_result_without_faults_is_sound():
    assert result([row(500)], checks=[Check(config=config(), rows=3, padding=1)]).sound


def test_a_result_comes_back_from_its_json():
    made = result(mark_best([row(500), row(0, "shard", failed="it died")]))
    assert msgspec.json.decode(msgspec.json.encode(made), type=Result) == made
