"""Where a writer may write: empty folders, and former datasets that give way on request. Equal input, equal bytes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import stores_made  # noqa: F401 - makes uploads:// known
from datasets_made import contents, make_dataset, make_rows
from shards.dataset import DatasetReader
from shards.errors import ManifestError, OutputNotEmptyError, StoreError
from shards.local import Buffer, LocalPending, LocalStore
from shards.store import open_store
from shards.writer import ShardWriter

ROWS = make_rows(9)
OTHER = make_rows(4, seed=1)
TESTS = Path(__file__).parent


def add_all(writer: ShardWriter, rows=OTHER) -> None:
    for row in rows:
        writer.add(row.key, row.parts, row.info)


def leave_by(error: type[BaseException], writer: ShardWriter) -> None:
    with writer:
        add_all(writer)
        raise error


def names(folder: Path) -> list[str]:
    return LocalStore(str(folder)).names()


@pytest.fixture
def former(tmp_path: Path) -> Path:
    """A dataset `made` of nine shards, and files beside it that are not its own."""
    make_dataset(tmp_path, ROWS, shard_bytes=1)
    for name in ("notes.txt", "made-extra-000000.tar", "made-1.tar", "made-000000.tar.bak", "remade-000000.tar"):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "folder").mkdir()
    return tmp_path


def foreign(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.is_file() and path.name.encode() == path.read_bytes()
    }


@pytest.mark.parametrize("name", ["a.txt", "made-000000.tar.part", "manifest.json"])
def test_a_folder_with_files_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(OutputNotEmptyError, match=f"is not empty .1 files: {name}"):
        make_dataset(tmp_path, ROWS)
    assert names(tmp_path) == [name]


def test_a_folder_with_a_folder_is_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputNotEmptyError):
        make_dataset(tmp_path, ROWS)


def test_an_empty_folder_is_taken(tmp_path):
    make_dataset(tmp_path, ROWS)
    assert len(DatasetReader(str(tmp_path))) == len(ROWS)


def test_a_former_dataset_gives_way_and_other_files_stay(former):
    before = foreign(former)
    make_dataset(former, OTHER, shard_bytes=1, replace=True)
    assert [s.key for s in DatasetReader(str(former)).read(range(4))] == [row.key for row in OTHER]
    shards = [f"made-{number:06d}.tar" for number in range(4)]
    own = [*shards, *(name + ".index" for name in shards), "manifest.json"]
    assert names(former) == sorted([*own, *before, "folder"])
    assert (len(before), foreign(former)) == (5, before)


def test_replacing_nothing_is_writing(tmp_path):
    make_dataset(tmp_path / "d", ROWS, replace=True)
    assert len(DatasetReader(str(tmp_path / "d"))) == len(ROWS)


def test_a_former_dataset_is_whole_while_the_new_one_is_written(former):
    with ShardWriter(LocalStore(str(former)), "made", shard_bytes=1, replace=True) as writer:
        add_all(writer)
        found = DatasetReader(str(former)).read(range(len(ROWS)))
    assert [sample.key for sample in found] == [row.key for row in ROWS]


def test_a_former_dataset_outlives_a_run_that_fails_before_close(former):
    (former / "folder").rmdir()
    before = contents(former)
    with pytest.raises(ZeroDivisionError):
        leave_by(ZeroDivisionError, ShardWriter(LocalStore(str(former)), "made", replace=True))
    assert contents(former) == before


@pytest.mark.parametrize("name", ["made-000000.tar.index", "manifest.json"])
def test_a_former_dataset_outlives_a_run_that_cannot_write_its_last_files(former, monkeypatch, name):
    (former / "folder").rmdir()
    before = contents(former)
    real = LocalPending.write

    def write(self: LocalPending, buffers: Sequence[Buffer]) -> None:
        if self._path.endswith(name):
            raise StoreError(self._path, "write", "No space left on device")
        real(self, buffers)

    monkeypatch.setattr(LocalPending, "write", write)
    with pytest.raises(StoreError, match=f"{name} failed"):
        make_dataset(former, OTHER, replace=True)
    assert contents(former) == before


def test_a_former_manifest_goes_before_any_shard_it_lists(former, monkeypatch):
    steps: list[str] = []
    remove, commit = LocalStore.remove, LocalPending.commit
    monkeypatch.setattr(LocalStore, "remove", lambda self, name: (steps.append(f"- {name}"), remove(self, name)))
    monkeypatch.setattr(LocalPending, "commit", lambda self: (steps.append(f"+ {Path(self._path).name}"), commit(self)))
    make_dataset(former, OTHER, shard_bytes=1, replace=True)
    assert (steps[0], steps[-1]) == ("- manifest.json", "+ manifest.json")


def test_a_run_that_fails_while_publishing_leaves_no_manifest(former, monkeypatch):
    def fail(self: LocalPending) -> None:
        raise StoreError("d", "rename", "why")

    monkeypatch.setattr(LocalPending, "commit", fail)
    with pytest.raises(StoreError):
        make_dataset(former, OTHER, shard_bytes=1, replace=True)
    assert "manifest.json" not in names(former)


def test_another_datasets_manifest_is_never_replaced(tmp_path):
    make_dataset(tmp_path, ROWS, name="train")
    before = contents(tmp_path)
    with pytest.raises(OutputNotEmptyError):
        make_dataset(tmp_path, OTHER, name="val", replace=True)
    assert contents(tmp_path) == before


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("text", [b"{", b'{"name": "an app", "icons": []}', b"[]"])
def test_a_manifest_that_may_be_somebody_elses_is_never_replaced(former, text):
    (former / "manifest.json").write_bytes(text)
    before = files(former)
    with pytest.raises(ManifestError, match="somebody else"):
        make_dataset(former, OTHER, shard_bytes=1, replace=True)
    assert files(former) == before


def test_a_newer_manifest_is_never_replaced(former):
    manifest = json.loads((former / "manifest.json").read_bytes())
    (former / "manifest.json").write_text(json.dumps({**manifest, "shardstream_version": 2}))
    with pytest.raises(ManifestError, match="version 2"):
        make_dataset(former, OTHER, shard_bytes=1, replace=True)


def test_a_stale_file_that_others_removed_is_no_error(former):
    writer = ShardWriter(LocalStore(str(former)), "made", replace=True)
    for name in ("manifest.json", "made-000008.tar"):
        (former / name).unlink()
    writer.close()
    assert len(DatasetReader(str(former))) == 0


def test_equal_input_gives_equal_bytes(tmp_path):
    for place in ("one", "two"):
        make_dataset(tmp_path / place, ROWS, shard_bytes=10240)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_the_time_is_nowhere_in_the_files(tmp_path, monkeypatch):
    make_dataset(tmp_path / "one", ROWS)
    monkeypatch.setattr(time, "time", lambda: 2.0**31 + 0.5)
    monkeypatch.setattr(time, "time_ns", lambda: 2**61)
    make_dataset(tmp_path / "two", ROWS)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


@pytest.mark.parametrize("seed", ["1", "2"])
def test_the_seed_of_pythons_hashes_changes_nothing(tmp_path, seed):
    make_dataset(tmp_path / "one", ROWS)
    code = "import sys, pathlib, datasets_made as d; d.make_dataset(pathlib.Path(sys.argv[1]), d.make_rows(9))"
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(TESTS)}
    subprocess.run([sys.executable, "-c", code, tmp_path / "two"], check=True, env=environment, cwd=TESTS.parent)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


@pytest.mark.parametrize("protocol", ["local://", "memory://", "uploads://"])
def test_every_store_holds_the_same_bytes(tmp_path, protocol):
    make_dataset(tmp_path / "one", ROWS, shard_bytes=10240)
    store = open_store(f"{protocol}{tmp_path}/two")
    with ShardWriter(store, "made", shard_bytes=10240) as writer:
        add_all(writer, ROWS)
    assert {name: store.read(name) for name in store.names()} == contents(tmp_path / "one")


@pytest.mark.parametrize("protocol", ["local://", "memory://", "uploads://"])
def test_on_every_store_an_aborted_run_leaves_nothing(tmp_path, protocol):
    store = open_store(f"{protocol}{tmp_path}/two")
    with pytest.raises(KeyboardInterrupt):
        leave_by(KeyboardInterrupt, ShardWriter(store, "made", shard_bytes=1))
    assert store.names() == []


@pytest.mark.parametrize("protocol", ["local://", "memory://", "uploads://"])
def test_on_every_store_a_former_dataset_gives_way(tmp_path, protocol):
    store = open_store(f"{protocol}{tmp_path}/two")
    for rows in (ROWS, OTHER):
        with ShardWriter(store, "made", shard_bytes=1, replace=True) as writer:
            add_all(writer, rows)
    assert [s.key for s in DatasetReader(store.url).read(range(4))] == [row.key for row in OTHER]
    assert len(store.names()) == 2 * len(OTHER) + 1


def test_a_shard_that_no_manifest_of_ours_lists_stays(tmp_path):
    (tmp_path / "made-000099.tar").write_bytes(b"mine")
    make_dataset(tmp_path, ROWS, replace=True)
    assert (tmp_path / "made-000099.tar").read_bytes() == b"mine"


def test_a_publishing_that_fails_after_the_former_went_says_so(former):
    (former / "extra.jsonl").mkdir()
    with pytest.raises(StoreError) as caught, ShardWriter(LocalStore(str(former)), "made", replace=True) as writer:
        writer.add_file("extra.jsonl", b"")
    assert any("former dataset" in note for note in caught.value.__notes__)
    assert (former / "extra.jsonl").is_dir()
