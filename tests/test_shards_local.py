"""A folder on a local disk: open files, vectored writes, and what the system says in our words."""

import errno
import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from shards.errors import StoreError
from shards.local import LocalPending, LocalStore


def descriptors(folder: Path) -> dict[int, str]:
    """Open descriptors of this process on files of a folder, with their names."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that listed the folder
            target = link.readlink()
            if target.parent == folder:
                found[int(link.name)] = target.name
    return found


def opened(folder: Path) -> set[str]:
    return set(descriptors(folder).values())


def write(store: LocalStore, name: str, *buffers: bytes) -> None:
    file = store.create(name)
    file.write(buffers)
    file.commit()


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path))


def test_a_relative_path_is_kept_absolute(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"here")
    monkeypatch.chdir(tmp_path)
    relative = LocalStore(".")
    monkeypatch.chdir("/")
    assert relative.read("a") == b"here"


def test_nothing_is_opened_before_its_first_use(tmp_path):
    LocalStore(str(tmp_path / "absent"))
    assert not (tmp_path / "absent").exists()


def test_at_most_64_files_stay_open(store, tmp_path):
    for number in range(100):
        (tmp_path / str(number)).write_bytes(b"%d" % number)
    assert [store.read(str(number)) for number in range(100)] == [b"%d" % number for number in range(100)]
    assert opened(tmp_path) == {str(number) for number in range(36, 100)}


def test_the_file_used_last_stays_open_longest(store, tmp_path):
    for number in range(65):
        (tmp_path / str(number)).write_bytes(b"x")
    for number in range(64):
        store.read(str(number))
    store.read("0")
    store.read("64")
    assert "0" in opened(tmp_path)
    assert "1" not in opened(tmp_path)


def test_files_close_with_their_store(tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    store = LocalStore(str(tmp_path))
    store.read("a")
    del store
    assert opened(tmp_path) == set()


def test_an_open_file_is_not_passed_to_programs(store, tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    store.read("a")
    assert [os.get_inheritable(number) for number in descriptors(tmp_path)] == [False]


def test_a_replaced_file_is_read_anew(store):
    write(store, "a", b"former content")
    assert store.read("a") == b"former content"
    write(store, "a", b"new")
    assert store.read("a") == b"new"


def test_a_removed_file_is_gone_though_it_was_open(store):
    write(store, "a", b"x")
    store.read("a")
    store.remove("a")
    with pytest.raises(FileNotFoundError):
        store.read("a")


def test_a_file_replaced_by_others_is_read_whole_as_it_was_opened(store, tmp_path):
    (tmp_path / "a").write_bytes(b"former content")
    store.read("a")
    (tmp_path / "b").write_bytes(b"new")
    (tmp_path / "b").replace(tmp_path / "a")
    assert store.read("a") == b"former content"


def test_a_pending_file_has_a_part_name(store, tmp_path):
    file = store.create("a")
    file.write([b"x"])
    assert store.names() == ["a.part"]
    file.discard()


def test_more_buffers_than_one_writev_takes_are_written(store):
    buffers = [b"%05d" % number for number in range(3000)]
    write(store, "a", *buffers)
    assert store.read("a") == b"".join(buffers)


def test_a_short_write_goes_on_where_it_stopped(store, monkeypatch):
    real_writev, real_write = os.writev, os.write
    monkeypatch.setattr(os, "writev", lambda fd, buffers: real_writev(fd, [b"".join(buffers)[:4]]))
    monkeypatch.setattr(os, "write", lambda fd, data: real_write(fd, data[:3]))
    write(store, "a", b"abc", b"", b"defghijkl", b"mn")
    monkeypatch.undo()
    assert store.read("a") == b"abcdefghijklmn"


def test_a_short_read_goes_on_where_it_stopped(store, tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(bytes(range(100)))
    real_pread, real_preadv = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda fd, size, at: real_pread(fd, min(size, 10), at))
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at, _: real_preadv(fd, [buffers[0][:7]], at))
    assert store.read("a", start=5, end=95) == bytes(range(5, 95))


def test_a_file_is_on_disk_before_it_gets_its_name(store, monkeypatch):
    calls: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda fd: (calls.append(str(Path(f"/proc/self/fd/{fd}").readlink())), real_fsync(fd))
    )
    monkeypatch.setattr(os, "replace", lambda old, new: (calls.append("rename"), real_replace(old, new)))
    write(store, "a", b"x")
    assert calls == [store.url + "/a.part", "rename", store.url]


def test_discarding_what_others_deleted_is_no_error(store, tmp_path):
    file = store.create("a")
    (tmp_path / "a.part").unlink()
    file.discard()
    assert store.names() == []


def test_a_file_made_is_readable_by_others(store, tmp_path):
    mask = os.umask(0o022)
    try:
        write(store, "a", b"x")
    finally:
        os.umask(mask)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644


def test_a_folder_in_place_of_a_file_is_a_store_error(store, tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(StoreError, match="Is a directory") as caught:
        store.read("a", start=0, end=1)
    assert (caught.value.errno, caught.value.filename) == (errno.EISDIR, str(tmp_path / "a"))
    assert isinstance(caught.value.__cause__, IsADirectoryError)


def test_a_file_in_place_of_the_folder_is_a_store_error(tmp_path):
    (tmp_path / "a").write_bytes(b"")
    store = LocalStore(str(tmp_path / "a"))
    with pytest.raises(StoreError, match=r"list .* failed: Not a directory"):
        store.names()
    with pytest.raises(StoreError, match="make folder"):
        store.create("b")


def test_a_missing_permission_is_a_store_error(store, monkeypatch):
    def refuse(*arguments: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreError, match=r"open .*/a failed: Permission denied; check who may read") as caught:
        store.read("a", start=0, end=1)
    assert isinstance(caught.value.__cause__, PermissionError)


def test_a_missing_file_is_pythons_own_error_with_the_path(store, tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        store.read("absent")
    assert caught.value.filename == str(tmp_path / "absent")


def test_writing_to_a_closed_file_is_a_store_error(tmp_path):
    file = LocalPending(str(tmp_path / "a"), forget=lambda: None)
    file.close()
    with pytest.raises(StoreError, match="write"):
        file.write([b"x"])
    file.discard()


def test_threads_that_open_and_evict_at_once_read_the_right_bytes(store, tmp_path):
    for number in range(200):
        (tmp_path / str(number)).write_bytes(b"%03d" % number * 50)
    wrong: list[object] = []

    def work(first: int) -> None:
        for step in range(600):
            number = (first + step * 7) % 200
            if store.read(str(number)) != b"%03d" % number * 50:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(25 * place,)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(opened(tmp_path)) <= 64


def test_ranges_of_a_file_stand_one_behind_the_other(store, tmp_path):
    data = bytes(range(256)) * 20
    (tmp_path / "a").write_bytes(data)
    buffer = bytearray(400)
    ranges = [(5000, 5100), (0, 0), (7, 207), (5, 105)]
    assert store.read_ranges_into("a", memoryview(buffer), ranges)
    assert bytes(buffer) == data[5000:5100] + data[7:207] + data[5:105]


def test_a_range_that_ends_behind_the_file_is_named(store, tmp_path):
    (tmp_path / "a").write_bytes(bytes(100))
    with pytest.raises(StoreError, match=r"20 bytes came for \[80, 120\): the file ends there, it was cut"):
        store.read_ranges_into("a", memoryview(bytearray(50)), [(0, 10), (80, 120)])


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
def test_what_cannot_be_read_without_waiting_is_told_and_not_waited_for(store, tmp_path, monkeypatch, number):
    (tmp_path / "a").write_bytes(bytes(100))
    store.read("a")
    flags = []

    def preadv(fd, buffers, offset, how):
        flags.append(how)
        raise OSError(number, "no")

    monkeypatch.setattr(os, "preadv", preadv)
    assert not store.read_ranges_into("a", memoryview(bytearray(10)), [(0, 10)], wait=False)
    assert flags == [os.RWF_NOWAIT]
    with pytest.raises(StoreError):
        store.read_ranges_into("a", memoryview(bytearray(10)), [(0, 10)])


def test_a_read_that_comes_short_where_it_may_not_wait_is_not_gone_on_with(store, tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(bytes(range(100)))
    store.read("a")
    preadv, asked = os.preadv, []

    def short(fd, buffers, offset, flags):
        asked.append(offset)
        return preadv(fd, [buffers[0][:3]], offset)

    monkeypatch.setattr(os, "preadv", short)
    assert not store.read_ranges_into("a", memoryview(bytearray(10)), [(0, 10)], wait=False)
    assert asked == [0]
    buffer = bytearray(10)
    assert store.read_ranges_into("a", memoryview(buffer), [(5, 15)])
    assert bytes(buffer) == bytes(range(5, 15))
