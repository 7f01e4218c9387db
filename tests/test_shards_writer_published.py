"""The writer's promise: nothing unfinished ever looks finished, whatever goes wrong and whenever."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import stores_made  # noqa: F401 - makes uploads:// known
from datasets_made import make_dataset, make_rows
from shards.dataset import DatasetReader
from shards.errors import OutputNotEmptyError, StoreError
from shards.index import RowInfo
from shards.local import Buffer, LocalPending, LocalStore
from shards.writer import ShardWriter

ROWS = make_rows(6)
OTHER = make_rows(9, seed=1)
NO_INFO = RowInfo()
TESTS = Path(__file__).parent


def writer_of(folder: Path, *, name: str = "made", replace: bool = False) -> ShardWriter:
    return ShardWriter(LocalStore(str(folder)), name, shard_bytes=10240, replace=replace)


def add_all(writer: ShardWriter, rows=ROWS) -> None:
    for row in rows:
        writer.add(row.key, row.parts, row.info)


def leave_by(error: BaseException | type[BaseException], writer: ShardWriter, *, close_first: bool = False) -> None:
    with writer:
        add_all(writer)
        if close_first:
            writer.close()
        raise error


def names(folder: Path) -> list[str]:
    return LocalStore(str(folder)).names()


def keys(folder: Path) -> list[str]:
    return [sample.key for sample in DatasetReader(str(folder)).read(range(len(DatasetReader(str(folder)))))]


def test_before_close_every_file_is_a_part_file(tmp_path):
    writer = writer_of(tmp_path)
    add_all(writer)
    writer.add_file("rejected.jsonl", b"")
    assert len(names(tmp_path)) > 3
    assert all(name.endswith(".part") for name in names(tmp_path))
    writer.abort()


def test_making_a_writer_writes_nothing(tmp_path):
    writer_of(tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_the_manifest_gets_its_name_last(tmp_path, monkeypatch):
    order: list[str] = []
    real = LocalPending.commit
    monkeypatch.setattr(LocalPending, "commit", lambda self: (order.append(Path(self._path).name), real(self)))
    make_dataset(tmp_path, ROWS, shard_bytes=10240)
    assert order[-1] == "manifest.json"
    assert sorted(order) == names(tmp_path)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_leaving_by_an_exception_leaves_nothing(tmp_path, error):
    with pytest.raises(error):
        leave_by(error, writer_of(tmp_path))
    assert names(tmp_path) == []


def test_closing_within_the_block_gives_the_manifest_and_leaving_changes_nothing(tmp_path):
    with writer_of(tmp_path) as writer:
        add_all(writer)
        manifest = writer.close()
    assert manifest.samples == len(ROWS)
    assert keys(tmp_path) == [row.key for row in ROWS]


def test_closing_twice_gives_the_same_manifest(tmp_path):
    writer = writer_of(tmp_path)
    add_all(writer)
    assert writer.close() is writer.close()
    assert keys(tmp_path) == [row.key for row in ROWS]


def test_an_exception_after_close_takes_nothing_back(tmp_path):
    with pytest.raises(ValueError, match="late"):
        leave_by(ValueError("late"), writer_of(tmp_path), close_first=True)
    assert keys(tmp_path) == [row.key for row in ROWS]


def test_aborting_within_the_block_leaves_nothing(tmp_path):
    with writer_of(tmp_path) as writer:
        add_all(writer)
        writer.abort()
        writer.abort()
    assert names(tmp_path) == []


@pytest.mark.parametrize("end", [ShardWriter.close, ShardWriter.abort])
def test_a_writer_that_has_ended_takes_nothing_more(tmp_path, end):
    writer = writer_of(tmp_path)
    end(writer)
    before = names(tmp_path)
    for act in (lambda: writer.add("a", {"txt": b""}, NO_INFO), lambda: writer.add_file("a", b"")):
        with pytest.raises(ValueError, match="has been closed or aborted"):
            act()
    assert names(tmp_path) == before


def test_an_aborted_writer_cannot_be_closed(tmp_path):
    writer = writer_of(tmp_path)
    writer.abort()
    with pytest.raises(ValueError, match="has been closed or aborted"):
        writer.close()


def test_after_a_failed_write_the_writer_has_aborted(tmp_path, monkeypatch):
    writer = writer_of(tmp_path)
    add_all(writer)

    def fail(self: LocalPending, buffers: Sequence[Buffer]) -> None:
        os.write(self._fd, b"half of it")
        raise StoreError("d", "write", "No space left on device")

    monkeypatch.setattr(LocalPending, "write", fail)
    with pytest.raises(StoreError, match="No space left"):
        writer.add("a", {"txt": b"x"}, NO_INFO)
    monkeypatch.undo()
    assert names(tmp_path) == []
    with pytest.raises(ValueError, match="has been closed or aborted"):
        writer.close()


@pytest.mark.parametrize("method", ["write", "close"])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_error_at_any_moment_leaves_nothing(tmp_path, monkeypatch, method, error):
    """Fails in the first call, then in the second, ... until a run gets through."""
    real, failed = getattr(LocalPending, method), 0
    for fail_at in range(200):
        calls = iter(range(200))

        def act(self, *arguments, fail_at=fail_at, calls=calls):
            if next(calls) == fail_at:
                raise error
            return real(self, *arguments)

        monkeypatch.setattr(LocalPending, method, act)
        try:
            make_dataset(tmp_path, ROWS, shard_bytes=10240)
        except error:
            failed += 1
            assert names(tmp_path) == []
        else:
            break
    assert failed > len(ROWS)


@pytest.mark.parametrize("error", [StoreError("d", "rename", "why"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
@pytest.mark.parametrize("after", [False, True], ids=["before the rename", "after the rename"])
@pytest.mark.parametrize("fail_at", range(5))
def test_a_commit_that_fails_midway_leaves_no_published_file(tmp_path, monkeypatch, error, after, fail_at):
    calls = iter(range(100))
    real = LocalPending.commit

    def commit(self: LocalPending) -> None:
        failing = next(calls) == fail_at
        if not failing or after:
            real(self)
        if failing:
            raise error

    monkeypatch.setattr(LocalPending, "commit", commit)
    with pytest.raises(type(error)):
        make_dataset(tmp_path, ROWS[:2], shard_bytes=1)
    assert names(tmp_path) == []


def test_what_cannot_be_taken_back_is_told_beside_the_cause(tmp_path, monkeypatch):
    real = LocalPending.commit

    def commit(self: LocalPending) -> None:
        if self._path.endswith("manifest.json"):
            raise StoreError("d", "rename", "the cause")
        real(self)

    def remove(self: LocalStore, name: str) -> None:
        raise StoreError(name, "remove", "not now")

    monkeypatch.setattr(LocalPending, "commit", commit)
    monkeypatch.setattr(LocalStore, "remove", remove)
    with pytest.raises(StoreError, match="the cause") as caught:
        make_dataset(tmp_path, ROWS[:1])
    assert any("made-000000.tar" in note and "not now" in note for note in caught.value.__notes__)


def test_abort_tries_every_file_and_raises_the_first_failure(tmp_path, monkeypatch):
    writer = writer_of(tmp_path)
    add_all(writer)
    real = LocalPending.discard

    def discard(self: LocalPending) -> None:
        real(self)
        raise StoreError(self._path, "remove", "why")

    monkeypatch.setattr(LocalPending, "discard", discard)
    with pytest.raises(StoreError, match="why"):
        writer.abort()
    assert names(tmp_path) == []


def test_the_error_that_ended_a_block_stays_the_one_that_is_told(tmp_path, monkeypatch):
    def discard(self: LocalPending) -> None:
        raise StoreError(self._path, "remove", "not now")

    monkeypatch.setattr(LocalPending, "discard", discard)
    with pytest.raises(ZeroDivisionError) as caught:
        leave_by(ZeroDivisionError, writer_of(tmp_path))
    assert "not now" in caught.value.__notes__[0]


def program(folder: Path, *lines: str) -> subprocess.CompletedProcess[str]:
    """Run lines of Python that have `writer` and `add_all(writer)` in a process of their own."""
    head = ["import sys", f"sys.path.insert(0, {str(TESTS)!r})", "import test_shards_writer_published as t"]
    head += ["from pathlib import Path", f"folder = Path({str(folder)!r})", "writer = t.writer_of(folder)"]
    command = [sys.executable, "-c", "\n".join([*head, *lines])]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=TESTS.parent)


def test_a_killed_process_leaves_only_part_files(tmp_path):
    ended = program(tmp_path, "t.add_all(writer)", "import os, signal", "os.kill(os.getpid(), signal.SIGKILL)")
    assert ended.returncode == -signal.SIGKILL
    assert len(names(tmp_path)) > 2
    assert all(name.endswith(".part") for name in names(tmp_path))


def test_what_a_killed_process_left_gives_way_on_request(tmp_path):
    program(tmp_path, "t.add_all(writer)", "import os", "os.kill(os.getpid(), 9)")
    with pytest.raises(OutputNotEmptyError):
        writer_of(tmp_path)
    make_dataset(tmp_path, ROWS[:1], shard_bytes=10240, replace=True)
    assert names(tmp_path) == ["made-000000.tar", "made-000000.tar.index", "manifest.json"]


def test_a_full_disk_is_a_store_error_and_leaves_nothing(tmp_path):
    """A limit on the size of files stands for the full disk: the last write is a short one, the next one fails."""
    ended = program(
        tmp_path,
        "import resource",
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))",
        "try:",
        "    t.add_all(writer)",
        "except t.StoreError as exc:",
        "    print(exc, '|', repr(exc.__cause__))",
    )
    assert ended.stderr == ""
    assert "write" in ended.stdout
    assert "File too large" in ended.stdout.split("|")[1]
    assert names(tmp_path) == []


def test_a_full_file_system_is_a_store_error_and_leaves_nothing(tmp_path):
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32k", "none", tmp_path], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        with pytest.raises(StoreError, match="No space left on device; make room there"), writer_of(tmp_path) as writer:
            add_all(writer, make_rows(40))
        assert names(tmp_path) == []
    finally:
        subprocess.run(["umount", tmp_path], check=True)
