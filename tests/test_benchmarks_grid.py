import pytest

import grid
from arguments import parse
from benchmark_cases import config
from measure import Outcome
from messages import Shot
from report import NOTHING_TO_PIN


def found(*words):
    return grid.entries(parse(["--data", "packed", *words]))


def shot(rate):
    return Shot(
        samples_per_s=rate,
        first_s=0.2,
        wait_ms=50.0,
        wait_mean_ms=60.0,
        peak_mib=300.0,
        delivered_bytes=150_000.0,
        steps=20,
        epochs=0,
    )


def test_the_grid_of_the_issue_has_48_rows_with_the_advice_among_them():
    entries = found("--prefetch", "1,2,4,8", "--workers", "0,1,2", "--pin-memory", "on,off", "--ranks", "2")
    assert len({entry.config for entry in entries}) == len(entries) == 48
    assert [entry.config for entry in entries if entry.common_advice] == [
        config("dispatch", workers=2, pin=True),
        config("shard", workers=2, pin=True),
    ]


def test_the_advice_is_added_where_the_grid_lacks_it():
    entries = found("--prefetch", "4", "--workers", "0", "--pin-memory", "off", "--ranks", "1,2", "--mode", "shard")
    assert [(entry.config, entry.in_grid) for entry in entries] == [
        (config("shard", ranks=1, prefetch=4), True),
        (config("shard", ranks=2, prefetch=4), True),
        (config("shard", ranks=1, workers=1, pin=True), False),
        (config("shard", ranks=2, workers=2, pin=True), False),
    ]


def test_the_advice_can_be_left_out():
    entries = found("--prefetch", "4", "--workers", "0", "--pin-memory", "off", "--no-advice")
    assert [entry.config for entry in entries] == [config("dispatch", prefetch=4), config("shard", prefetch=4)]


def test_each_number_of_ranks_has_its_own_plan_in_every_repeat():
    turns = grid.turns(found("--ranks", "1,2"), repeats=2)
    assert [[{job.config.ranks for job in plan} for plan in turn] for turn in turns] == [[{1}, {2}], [{2}, {1}]]


def test_every_configuration_is_measured_once_in_every_repeat():
    entries = found()
    turns = grid.turns(entries, repeats=3)
    assert len(turns) == 3
    for (plan,) in turns:
        measured = [job.config for job in plan if not job.whole_epoch]
        assert len(measured) == len(entries)
        assert set(measured) == {entry.config for entry in entries}


def test_jobs_have_numbers_of_their_own():
    numbers = [job.number for turn in grid.turns(found("--ranks", "1,2"), repeats=3) for plan in turn for job in plan]
    assert len(set(numbers)) == len(numbers)


def test_repeats_go_to_and_fro_and_the_modes_take_turns():
    (there,), (back,) = grid.turns(found("--no-advice"), repeats=2)
    there = [job.config for job in there if not job.whole_epoch]
    assert [job.config for job in back] == there[::-1]
    assert [one.mode for one in there] == ["dispatch", "shard"] * (len(there) // 2)


def test_one_whole_epoch_of_each_mode_comes_first():
    (first,), (second,) = grid.turns(found(), repeats=2)
    assert [(job.config.mode, job.config.workers) for job in first if job.whole_epoch] == [
        ("dispatch", 2),
        ("shard", 2),
    ]
    assert [job.whole_epoch for job in first[:3]] == [True, True, False]
    assert not any(job.whole_epoch for job in second)


def made_rows(device="cpu", faults=None):
    entries = found("--mode", "shard", "--workers", "2", "--prefetch", "2", "--no-advice")
    jobs = [job for (plan,) in grid.turns(entries, repeats=3) for job in plan]
    rates = iter([100.0, 10.0, 20.0, 120.0, 110.0, 15.0])
    shots = {job.number: shot(next(rates)) for job in jobs if not job.whole_epoch}
    outcome = Outcome(shots=shots, faults=faults or {}, devices={2: device})
    return grid.rows(entries, grid.Done(jobs, outcome), ceiling=200.0, encoded_bytes=9000.0)


def test_a_row_is_the_median_of_its_own_windows():
    on, off = made_rows()
    assert (off.samples_per_s.low, off.samples_per_s.median, off.samples_per_s.high) == (100.0, 110.0, 120.0)
    assert (on.samples_per_s.low, on.samples_per_s.median, on.samples_per_s.high) == (10.0, 15.0, 20.0)
    assert off.share_of_ceiling == 0.55
    assert len(off.windows) == 3


def test_pinning_without_an_accelerator_is_measured_and_noted():
    assert [one.note for one in made_rows()] == [NOTHING_TO_PIN, ""]


def test_pinning_for_an_accelerator_needs_no_note():
    assert [one.note for one in made_rows("cuda")] == ["", ""]


def test_a_configuration_with_a_fault_has_a_row_without_figures():
    on, off = made_rows(faults={config("shard", workers=2): "it died"})
    assert off.failed == "it died"
    assert off.samples_per_s is None
    assert on.failed is None


@pytest.mark.parametrize(
    ("delivered", "problem"),
    [
        ([["a", "c"], ["b", "d"]], None),
        ([["a", "c", "e"], ["b", "d", "a"]], "1 came that are not"),
        ([["a", "c"], ["b", "b"]], "1 samples did not come"),
        ([["a", "c", "a"], ["b", "d", "b"]], "6 rows came, expected 4"),
        ([["a", "c", "d"], ["b"]], "different numbers of rows"),
    ],
)
def test_an_epoch_must_bring_each_key_once(delivered, problem):
    check = grid.partition(config(), delivered, keys=["a", "b", "c", "d"], batch_size=4)
    assert (check.problem or "ok").find(problem or "ok") >= 0


def test_padding_to_a_multiple_of_the_ranks_is_allowed_and_counted():
    check = grid.partition(config(), [["a", "c"], ["b", "a"]], keys=["a", "b", "c"], batch_size=2)
    assert (check.problem, check.padding, check.rows) == (None, 1, 3)
