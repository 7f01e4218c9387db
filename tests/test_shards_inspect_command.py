"""`python -m shards inspect`: lines, JSON and exit statuses."""

import json

import pytest

from datasets_made import make_dataset, make_rows
from shards.inspect_command import main
from tars_made import END, sample


@pytest.fixture
def ask(asking):
    return asking(main)


def test_one_tar_is_told_alone(ask, tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(b"".join(sample("x") + sample("y")) + END)
    status, out, err = ask(path)
    assert (status, err) == (0, "")
    assert out == [
        str(path),
        "  4 members, 2 samples, 6,144 bytes",
        "  fields jpg,txt: 2",
        "  jpg: 2 of 700 to 700 bytes, median 700",
        "  txt: 2 of 5 to 5 bytes, median 5",
        "  sample x",
        "    jpg: 700 bytes",
        "    txt: 5 bytes a cat",
        "  sample y",
        "    jpg: 700 bytes",
        "    txt: 5 bytes a cat",
    ]
    assert [line for line in ask(path, "--samples", 1)[1] if "sample " in line] == ["  sample x"]


def test_a_dataset_is_told_shard_by_shard_and_in_total(ask, tmp_path):
    manifest = make_dataset(tmp_path, make_rows(30), shard_bytes=20 * 2**10)
    _, out, _ = ask(tmp_path, "--samples", 0)
    heads = [line for line in out if not line.startswith(" ")]
    assert heads == [*[f"{tmp_path}/{info.url}" for info in manifest.shardlist], "total"]
    assert f"  {len(manifest.shardlist)} shards, 90 members, 30 samples, {manifest.bytes:,} bytes" in out


def test_json_is_one_document_with_the_documented_keys(ask, tmp_path):
    make_dataset(tmp_path, make_rows(30), shard_bytes=20 * 2**10)
    _, out, _ = ask(tmp_path, "--json", "--samples", 1)
    found = json.loads("\n".join(out))
    keys = ["url", "shards", "bytes", "members", "samples", "fields", "sizes", "first", "faults"]
    assert list(found) == ["shards", "total"]
    assert list(found["total"]) == list(found["shards"][0]) == keys
    assert list(found["total"]["sizes"]["jpg"]) == ["count", "min", "median", "max", "total"]
    (first,) = found["shards"][0]["first"]
    assert [list(part) for part in first["parts"]] == [["suffix", "size", "text"]] * 3
    assert found["total"]["samples"] == 30


def test_a_tar_that_cannot_be_read_is_told_and_the_others_are_shown(ask, tmp_path):
    (tmp_path / "a-1.tar").write_bytes(b"".join(sample("x")) + END)
    status, out, err = ask(f"{tmp_path}/a-{{0..1}}.tar")
    assert status == 1
    assert out[0] == f"{tmp_path}/a-1.tar"
    assert err.startswith(f"inspect: error missing-file {tmp_path}/a-0.tar: ")


@pytest.mark.parametrize("arguments", [(), ("a-{0.tar",), ("a.tar", "--samples", "x"), ("absent-folder",)])
def test_wrong_usage_is_exit_status_2(ask, arguments):
    status, out, err = ask(*arguments)
    assert (status, out) == (2, [])
    assert err


def test_a_store_or_manifest_that_cannot_be_read_is_exit_status_1(ask, tmp_path):
    assert ask("nonsense://bucket/folder")[0] == 1
    (tmp_path / "manifest.json").write_text("{")
    status, out, err = ask(tmp_path)
    assert (status, out) == (1, [])
    assert "bad-manifest" in err
