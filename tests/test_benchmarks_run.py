import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import run
from benchmark_cases import config, make_images
from report import Result

RUN = Path(run.__file__)
SHORT = ["--seconds", "0.2", "--warmup", "0.05", "--batch-size", "8", "--image-size", "32"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "packed")


@pytest.fixture(scope="module")
def tiny(data, tmp_path_factory):
    """A real run of both modes on two ranks: (completed process, folder with f.json and p.png)."""
    out = tmp_path_factory.mktemp("out")
    words = [
        "--data",
        data,
        "--rows",
        "30",
        "--workers",
        "0",
        "--prefetch",
        "2",
        "--pin-memory",
        "off",
        "--repeats",
        "2",
    ]
    done = subprocess.run(
        [sys.executable, str(RUN), *words, *SHORT, "--json", out / "f.json", "--plot", out / "p.png"],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    return done, out


@pytest.fixture(scope="module")
def result(tiny):
    return msgspec.json.decode((tiny[1] / "f.json").read_bytes(), type=Result)


@pytest.mark.ranks
def test_the_json_has_every_row_with_every_figure(result):
    assert [row.config for row in result.rows] == [
        config("dispatch"),
        config("shard"),
        config("dispatch", workers=2, pin=True),
        config("shard", workers=2, pin=True),
    ]
    for row in result.rows:
        assert row.failed is None
        assert len(row.windows) == 2
        for spread in (row.samples_per_s, row.first_batch_s, row.wait_ms, row.peak_mib):
            assert 0 < spread.low <= spread.median <= spread.high
        assert row.share_of_ceiling == row.samples_per_s.median / result.ceiling.images_per_s
        assert row.encoded_bytes == result.dataset.encoded_bytes > 1000
        assert row.delivered_bytes > 3 * 32 * 32


@pytest.mark.ranks
def test_the_common_advice_is_measured_beside_the_grid_and_marked(result):
    assert [row.common_advice for row in result.rows] == [False, False, True, True]
    assert [row.in_grid for row in result.rows] == [True, True, False, False]


@pytest.mark.ranks
def test_the_best_row_of_each_mode_is_marked(result):
    assert [row.config for row in result.rows if row.best] == [config("dispatch"), config("shard")]


@pytest.mark.ranks
def test_the_ceiling_is_measured_before_and_after_each_repeat_and_pillow_beside_it(result):
    assert len(result.ceiling.medians) == 3
    assert result.ceiling.images_per_s > 0
    assert result.pillow.images_per_s > 0


@pytest.mark.ranks
def test_machine_date_command_and_dataset_are_kept(result, data):
    assert result.machine.cores >= 1
    assert result.machine.torch.startswith("2.")
    assert result.command.startswith("python benchmarks/run.py --data")
    assert (result.dataset.samples, result.dataset.rows, result.dataset.url) == (24, 48, data)


@pytest.mark.ranks
def test_each_mode_was_checked_to_deliver_every_row_once(result):
    assert [(check.config.mode, check.rows, check.problem) for check in result.checks] == [
        ("dispatch", 48, None),
        ("shard", 48, None),
    ]


@pytest.mark.ranks
def test_the_table_is_on_standard_output_and_progress_on_standard_error(tiny):
    done, _ = tiny
    assert sum(line.startswith("| ") for line in done.stdout.splitlines()) == 5
    assert "[10/10, 0.0 min left]" in done.stderr


@pytest.mark.ranks
def test_the_picture_is_written(tiny):
    assert (tiny[1] / "p.png").read_bytes().startswith(b"\x89PNG")


def test_data_that_is_no_dataset_ends_with_status_2(capsys, tmp_path):
    assert run.main(["--data", str(tmp_path)]) == 2
    assert "run.py: --data cannot be read" in capsys.readouterr().err


def test_a_failed_row_is_in_the_table_and_the_status_is_1(data, capsys, monkeypatch):
    def fail(setting, plan, outcome, tell):
        for job in plan:
            tell(job, "it died")
            outcome.faults[job.config] = "it died"

    monkeypatch.setattr(run, "run_jobs", fail)
    words = ["--data", data, "--rows", "0", "--workers", "0", "--prefetch", "2", "--pin-memory", "off", "--no-advice"]
    assert run.main([*words, *SHORT, "--seconds", "0.02", "--repeats", "1", "--mode", "shard"]) == 1
    told = capsys.readouterr()
    assert "FAILED: it died" in told.out
    assert "shard ranks=2 workers=0 prefetch=2 pin=off: it died" in told.err


def test_ctrl_c_ends_with_status_130(data, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "run_jobs", interrupted)
    assert run.main(["--data", data, "--rows", "0", *SHORT, "--seconds", "0.02"]) == 130
