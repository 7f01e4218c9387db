"""tools/pack_coco.py run as a program: what it publishes and what it shows."""

import json
import os
import pty
import shutil
import subprocess
import termios
import zipfile

import pytest
from PIL import Image

import pack_coco
from coco_cases import digests, draw, edit, members, pack, refused, rejected, run_tool, succeeded, tool
from plan import shuffle_key
from shards.store import open_store


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """24 drawn images; not to be changed."""
    return draw(tmp_path_factory.mktemp("drawn"))


@pytest.fixture
def own(drawn, tmp_path):
    """24 drawn images that a test may change."""
    shutil.copytree(drawn[0].parent, tmp_path / "own")
    return tmp_path / "own" / "images", tmp_path / "own" / "captions.json"


@pytest.mark.shared
def test_real_images_are_packed_with_their_bytes_and_captions(shared_data, tmp_path):
    folder, captions = shared_data / "coco/val2017", shared_data / "coco/annotations/captions_val2017_found.json"
    report = succeeded(pack(folder, captions, tmp_path / "out"))
    assert (report["images"], report["captions"], report["missing"], report["bad"]) == (200, 1001, 0, 0)
    found = members(tmp_path / "out")
    originals = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {name: data for name, data in found.items() if name.endswith(".jpg")} == originals
    content = json.loads(captions.read_text())
    by_id = sorted(content["annotations"], key=lambda annotation: annotation["id"])
    for record in content["images"]:
        texts = [annotation["caption"] for annotation in by_id if annotation["image_id"] == record["id"]]
        key = f"{record['id']:012d}"
        assert json.loads(found[f"{key}.json"])["captions"] == texts
        assert found[f"{key}.txt"].decode() == texts[0]


@pytest.mark.shared
def test_5000_real_records_with_200_images_are_refused_with_the_number_missing(shared_data, tmp_path):
    coco = shared_data / "coco"
    done = pack(coco / "val2017", coco / "annotations/captions_val2017.json", tmp_path / "out")
    message = refused(done, tmp_path / "out")
    assert "4800 of 5000 images are missing" in message
    assert "000000013291.jpg (image id 13291)" in message
    assert "... and 4790 more" in message


@pytest.mark.shared
def test_4800_missing_real_images_are_listed_where_that_is_allowed(shared_data, tmp_path):
    coco = shared_data / "coco"
    done = pack(coco / "val2017", coco / "annotations/captions_val2017.json", tmp_path / "out", "--allow-missing")
    assert (succeeded(done)["images"], succeeded(done)["missing"]) == (200, 4800)
    lines = rejected(tmp_path / "out")
    assert len(lines) == 4800
    assert {line["kind"] for line in lines} == {"missing"}


@pytest.mark.shared
def test_real_shards_are_the_same_for_any_number_of_workers(shared_data, tmp_path):
    coco = shared_data / "coco"
    for name, workers in (("a", 1), ("b", 2), ("c", 4), ("d", 4)):
        captions = coco / "annotations/captions_val2017_found.json"
        succeeded(pack(coco / "val2017", captions, tmp_path / name, "--workers", workers, "--shard-size", "8MiB"))
    assert len(digests(tmp_path / "a")) > 8
    assert digests(tmp_path / "a") == digests(tmp_path / "b") == digests(tmp_path / "c") == digests(tmp_path / "d")


@pytest.mark.parametrize("more", [(), ("--shuffle-seed", "5")])
def test_all_files_are_the_same_for_any_number_of_workers_and_any_run(own, tmp_path, more):
    (own[0] / "000000000007.jpg").write_bytes(b"torn")
    options = ("--shard-size", "60kB", "--on-bad", "skip", *more)
    for name, workers in (("a", 1), ("b", 2), ("c", 4), ("d", 4)):
        succeeded(pack(*own, tmp_path / name, "--workers", workers, *options))
    assert len(list((tmp_path / "a").glob("*.tar"))) > 2
    assert digests(tmp_path / "a") == digests(tmp_path / "b") == digests(tmp_path / "c") == digests(tmp_path / "d")


def test_the_output_has_shards_indexes_a_manifest_and_the_list_of_what_was_left_out(drawn, tmp_path):
    report = succeeded(pack(*drawn, tmp_path, "--name", "train", "--shard-size", "1GiB"))
    names = ["manifest.json", "rejected.jsonl", "train-000000.tar", "train-000000.tar.index"]
    assert sorted(digests(tmp_path)) == names
    assert report["bytes"] == (tmp_path / "train-000000.tar").stat().st_size
    assert rejected(tmp_path) == []


def test_the_report_agrees_with_the_output(drawn, tmp_path):
    report = succeeded(pack(*drawn, tmp_path, "--shard-size", "60kB"))
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert report["shards"] == len(manifest["shardlist"]) == len(list(tmp_path.glob("*.tar")))
    assert (report["images"], report["captions"]) == (manifest["nsamples"], manifest["captions"])
    assert report["image_bytes"] == sum(path.stat().st_size for path in drawn[0].iterdir())


def test_images_are_packed_by_id_or_in_the_documented_shuffle(drawn, tmp_path):
    succeeded(pack(*drawn, tmp_path / "plain"))
    succeeded(pack(*drawn, tmp_path / "shuffled", "--shuffle-seed", 5))
    plain, shuffled = (
        [int(name[:12]) for name in members(tmp_path / name) if name.endswith("txt")] for name in ("plain", "shuffled")
    )
    assert plain == list(range(1, 25))
    assert shuffled == sorted(plain, key=lambda image_id: shuffle_key(5, image_id))
    assert members(tmp_path / "plain") == members(tmp_path / "shuffled")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_gives_the_same_shards_as_its_folder(drawn, tmp_path, method):
    with zipfile.ZipFile(tmp_path / "train2017.zip", "w", method) as archive:
        for path in sorted(drawn[0].iterdir()):
            archive.write(path, f"train2017/{path.name}")
    succeeded(pack(*drawn, tmp_path / "folder"))
    succeeded(pack(tmp_path / "train2017.zip", drawn[1], tmp_path / "zip"))
    assert digests(tmp_path / "zip") == digests(tmp_path / "folder")


def test_formats_keep_their_bytes_under_their_own_suffix(own, tmp_path):
    for number, kind in ((1, "png"), (2, "webp")):
        path = own[0] / f"{number:012d}.jpg"
        with Image.open(path) as picture:
            picture.save(path.with_suffix(f".{kind}"))
        path.unlink()
    kinds = {1: "png", 2: "webp"}

    def rename(content):
        for record in content["images"]:
            record["file_name"] = f"{record['id']:012d}.{kinds.get(record['id'], 'jpg')}"

    edit(own[1], rename)
    succeeded(pack(*own, tmp_path / "out"))
    found = members(tmp_path / "out")
    assert found["000000000001.png"] == (own[0] / "000000000001.png").read_bytes()
    assert found["000000000002.webp"] == (own[0] / "000000000002.webp").read_bytes()
    assert "000000000003.jpg" in found


def test_without_decoding_the_shards_are_the_same_where_all_images_are_good(drawn, tmp_path):
    succeeded(pack(*drawn, tmp_path / "full"))
    done = pack(*drawn, tmp_path / "none", "--check", "none")
    assert (succeeded(done)["check"], succeeded(done)["workers"]) == ("none", 0)
    assert "NOT decoded" in done.stderr
    assert digests(tmp_path / "full") == digests(tmp_path / "none")


def test_the_output_may_be_any_fsspec_url(drawn, capsys):
    arguments = ["--images", str(drawn[0]), "--captions", str(drawn[1]), "--out", "memory://packed"]
    assert pack_coco.main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 24
    names = ["coco-000000.tar", "coco-000000.tar.index", "manifest.json", "rejected.jsonl"]
    assert open_store("memory://packed").names() == names


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1000", 1000),
        ("128MiB", 2**27),
        ("64MB", 64 * 10**6),
        ("1GiB", 2**30),
        ("7 kb", 7000),
        ("1TiB", 2**40),
        ("5B", 5),
    ],
)
def test_sizes_are_read_with_their_units(text, size):
    arguments = ["--images", "i", "--captions", "c", "--out", "o", "--shard-size", text]
    assert pack_coco.parse(arguments).shard_size == size


def test_no_bar_is_drawn_where_there_is_no_terminal(drawn, tmp_path):
    done = pack(*drawn, tmp_path / "out")
    assert done.stderr.splitlines()[0].startswith("output ")
    assert "\r" not in done.stderr


def test_a_terminal_gets_a_bar_with_rate_and_remaining_time(drawn, tmp_path):
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    command = tool("pack_coco.py", "--images", drawn[0], "--captions", drawn[1], "--out", tmp_path / "out")
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, timeout=120, check=True)
    os.close(theirs)
    shown = os.read(ours, 10**5).decode()
    os.close(ours)
    assert "24/24" in shown
    assert "images/s" in shown
    assert json.loads(done.stdout)["images"] == 24


def test_the_program_runs_from_any_directory(drawn, tmp_path):
    arguments = ("--images", drawn[0], "--captions", drawn[1], "--out", "here")
    assert run_tool("pack_coco.py", *arguments, cwd=tmp_path).returncode == 0
    assert (tmp_path / "here" / "manifest.json").exists()
