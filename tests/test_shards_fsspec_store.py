"""What fsspec stores add to the laws of all stores: foreign errors, secrets, uploads, one file system a process."""

import errno
import gc
import traceback
import weakref
from collections.abc import Callable

import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from shards.errors import StoreError
from shards.fsspec_store import FsspecStore
from shards.local import LocalStore
from shards.store import Store, open_store
from stores_made import UploadsFileSystem, exit_code


@pytest.mark.parametrize("url", ["/a/folder", "file:///a/folder"])
def test_a_path_and_a_file_url_are_local(url):
    assert (type(open_store(url)), open_store(url).url) == (LocalStore, "/a/folder")


@pytest.mark.parametrize("url", ["s3://bucket/folder", "memory://a", "simplecache::s3://bucket/folder"])
def test_any_other_url_is_fsspecs(url):
    store = open_store(url + "/")
    assert (type(store), store.url_of("a")) == (FsspecStore, f"{url}/a")


def test_the_root_of_a_file_system_is_a_folder_too():
    assert open_store("memory://").url == "memory://"
    assert isinstance(open_store("memory://").names(), list)


def test_an_unknown_protocol_is_a_store_error_at_first_use():
    store = open_store("nonsense://a")
    with pytest.raises(StoreError, match=r"list nonsense://a failed: ValueError: Protocol not known"):
        store.names()


SECRETS = {
    "key": "AKIAEXAMPLE",
    "secret": "s3cr3t/long",
    "client_kwargs": {"token": "t0k3n", "endpoint_url": "http://e"},
}
ACTS: dict[str, Callable[[Store], object]] = {
    "size": lambda store: store.size("a"),
    "read": lambda store: store.read("a"),
    "read_many": lambda store: store.read_many([("a", 0, 1)]),
    "names": lambda store: store.names(),
    "create": lambda store: store.create("a"),
    "remove": lambda store: store.remove("a"),
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_secrets_appear_in_no_error(act):
    store = open_store("broken://folder", storage_options=SECRETS)
    with pytest.raises(StoreError) as caught:
        act(store)
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + str(caught.value.args)
    assert not [secret for secret in ("AKIAEXAMPLE", "s3cr3t/long", "t0k3n") if secret in shown]
    assert "http://e" in str(caught.value)


def test_secrets_appear_in_no_repr():
    assert repr(open_store("broken://folder", storage_options=SECRETS)) == "FsspecStore('broken://folder')"


@pytest.mark.parametrize("error", [PermissionError, IsADirectoryError, ValueError, NotImplementedError])
def test_a_foreign_error_is_a_store_error_with_its_cause(error):
    store = FsspecStore("broken://folder", {"error": error})
    with pytest.raises(StoreError, match=f"size of broken://folder/a failed: {error.__name__}: bad") as caught:
        store.size("a")
    assert isinstance(caught.value.__cause__, error)


def test_the_number_of_a_foreign_os_error_is_kept(monkeypatch):
    def refuse(*arguments: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(MemoryFileSystem, "info", refuse)
    with pytest.raises(StoreError, match="check who may read and write there") as caught:
        open_store("memory://folder").size("a")
    assert caught.value.errno == errno.EACCES


def test_an_empty_range_asks_the_server_for_nothing():
    store = open_store("broken://folder")
    store.read_into("a", memoryview(bytearray()), start=5)
    assert (store.read("a", start=5, end=5), store.read_many([("a", 5, 5)])) == (b"", [b""])


def test_a_size_that_the_server_does_not_tell_is_a_store_error(monkeypatch):
    monkeypatch.setattr(MemoryFileSystem, "info", lambda self, path: {"name": path, "size": None})
    with pytest.raises(StoreError, match="the server does not tell it"):
        open_store("memory://folder").size("a")


@pytest.mark.parametrize("sent", [10, 5000])
def test_a_discarded_upload_does_not_begin_again_when_it_is_garbage(tmp_path, sent):
    file = open_store(f"uploads://{tmp_path}").create("a")
    file.write([bytes(sent)])
    file.discard()
    del file
    gc.collect()
    assert [path for path in UploadsFileSystem.begun if path.startswith(str(tmp_path))] == []


def test_the_file_system_keeps_no_upload_that_has_ended(tmp_path):
    file = open_store(f"uploads://{tmp_path}").create("a")
    file.write([b"x"])
    file.commit()
    kept = weakref.ref(file._file)
    del file
    gc.collect()
    assert kept() is None


def test_a_part_that_cannot_be_sent_is_thrown_away_all_the_same(tmp_path, monkeypatch):
    def fail(self: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = open_store(f"memory://{tmp_path}")
    file = store.create("a")
    monkeypatch.setattr(MemoryFile, "close", fail)
    with pytest.raises(StoreError, match="make room there"):
        file.close()
    monkeypatch.undo()
    file.discard()
    other = store.create("b")
    monkeypatch.setattr(MemoryFile, "close", fail)
    other.discard()
    assert store.names() == []


def test_names_are_asked_for_anew(tmp_path, monkeypatch):
    """File systems keep what a folder held when it was listed last."""
    kept: dict[str, list[str]] = {}
    real = MemoryFileSystem.ls

    def ls(self: MemoryFileSystem, path: str, *, detail: bool, refresh: bool = False) -> list[str]:
        if refresh or path not in kept:
            kept[path] = real(self, path, detail=detail)
        return kept[path]

    monkeypatch.setattr(MemoryFileSystem, "ls", ls)
    store = open_store(f"memory://{tmp_path}")
    for name in ("a", "b"):
        store.create(name).commit()
        assert name in store.names()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # forking is the point
def test_a_forked_process_opens_a_file_system_of_its_own(tmp_path):
    """That of its parent may have threads and connections, which no fork copies."""
    store = open_store(f"memory://{tmp_path}")
    opened = store._file_system()[0]
    assert store._file_system()[0] is opened
    assert exit_code(lambda: store._file_system()[0] is not opened) == 42
