"""tools/pack_coco.py run as a program: full disks, signals and deaths leave nothing that looks finished."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import pack_coco
from coco_cases import digests, draw, pack, refused, succeeded, tool
from shards.errors import StoreError
from shards.writer import ShardWriter


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """24 drawn images; not to be changed."""
    return draw(tmp_path_factory.mktemp("drawn"))


@pytest.fixture
def many(drawn, tmp_path):
    """10,000 records of 24 images: packing them takes a while."""
    content = json.loads(drawn[1].read_text())
    images, annotations = content["images"], content["annotations"][:1]
    content["images"] = [{**images[number % 24], "id": number} for number in range(10_000)]
    content["annotations"] = [{**annotations[0], "id": number, "image_id": number} for number in range(10_000)]
    (tmp_path / "many.json").write_text(json.dumps(content))
    return drawn[0], tmp_path / "many.json"


def test_a_full_disk_is_an_error_that_leaves_nothing(drawn, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "x", disk], capture_output=True, check=False
    ).returncode:
        pytest.skip("a small disk to fill can only be mounted by root")
    try:
        message = refused(pack(*drawn, disk / "out", "--shard-size", "16kB"), disk / "out")
    finally:
        subprocess.run(["umount", disk], check=True)
    assert "No space left on device" in message
    assert f"{disk}/out/coco-0000" in message


def test_a_limit_on_file_sizes_is_an_error_that_leaves_nothing(drawn, tmp_path):
    command = ["bash", "-c", 'ulimit -f 32; exec "$@"', "bash", *tool("pack_coco.py")]
    command += ["--images", drawn[0], "--captions", drawn[1], "--out", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "File too large" in refused(done, tmp_path / "out")


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_until(true, seconds=60):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def start(many, out, *more, **options):
    """Start the packer and return it, and its checking processes, when it has written its first shards."""
    command = tool("pack_coco.py", "--images", many[0], "--captions", many[1], "--out", out, "--workers", 2, *more)
    process = subprocess.Popen(
        [*command, "--shard-size", "300kB"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )
    wait_until(lambda: process.poll() is not None or (out.exists() and len(list(out.iterdir())) > 3))
    assert process.poll() is None
    return process, children(process.pid)


def gone(pids):
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_stop_leaves_no_files_and_no_processes(many, tmp_path, number, status):
    process, workers = start(many, tmp_path / "out")
    assert len(workers) == 2
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (status, "")
    assert err == f"pack_coco: stopped by {signal.Signals(number).name}; nothing was published\n"
    assert list((tmp_path / "out").iterdir()) == []
    assert gone(workers)


def test_ctrl_c_of_a_terminal_reaches_the_packer_alone(many, tmp_path):
    process, workers = start(many, tmp_path / "out", start_new_session=True)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.count("\n") == 1
    assert gone(workers)


def test_a_killed_checking_process_is_an_error_that_leaves_nothing(many, tmp_path):
    process, workers = start(many, tmp_path / "out")
    os.kill(workers[0], signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "a checking process was killed by signal 9 (SIGKILL) while it worked on one of 32 images, 0000000000" in err
    assert list((tmp_path / "out").iterdir()) == []
    assert gone(workers)


def test_a_killed_packer_leaves_no_processes_and_nothing_that_looks_finished(many, tmp_path):
    process, workers = start(many, tmp_path / "out")
    process.kill()
    process.communicate(timeout=60)
    wait_until(lambda: gone(workers))
    left = [path.name for path in (tmp_path / "out").iterdir()]
    assert left
    assert all(name.endswith(".part") for name in left)


def test_overwriting_takes_the_remains_of_a_killed_packer_away(many, drawn, tmp_path):
    process, _ = start(many, tmp_path / "out")
    process.kill()
    process.communicate(timeout=60)
    succeeded(pack(*drawn, tmp_path / "out", "--overwrite"))
    succeeded(pack(*drawn, tmp_path / "fresh"))
    assert digests(tmp_path / "out") == digests(tmp_path / "fresh")


def test_ctrl_c_while_publishing_comes_too_late(drawn, tmp_path, monkeypatch, capsys):
    close = ShardWriter.close

    def interrupted(writer):
        os.kill(os.getpid(), signal.SIGINT)
        return close(writer)

    monkeypatch.setattr(ShardWriter, "close", interrupted)
    assert pack_coco.main(["--images", str(drawn[0]), "--captions", str(drawn[1]), "--out", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 24


def test_a_failing_removal_does_not_hide_why_it_was_needed(drawn, tmp_path, monkeypatch, capsys):
    def fail(writer, *_):
        raise StoreError("s3://b/coco-000000.tar", "discard", "the network is down")

    monkeypatch.setattr(ShardWriter, "abort", fail)
    arguments = ["--images", str(drawn[0]), "--captions", str(drawn[1]), "--out", str(tmp_path), "--max-pixels", "9"]
    assert pack_coco.main(arguments) == 1
    message = capsys.readouterr().err
    assert "24 of 24 images are bad" in message
    assert "Removing what was written so far failed too: discard s3://b/coco-000000.tar failed: the network" in message
