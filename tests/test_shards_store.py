"""Laws that every store keeps: a local folder, and file systems of fsspec with and without uploads."""

import pickle
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shards.errors import StoreError
from shards.store import Store, open_store
from stores_made import exit_code

CONTENT = random.Random(3).randbytes(3000)


def write(store: Store, name: str, *buffers: bytes) -> None:
    file = store.create(name)
    file.write(buffers)
    file.close()
    file.commit()


@pytest.fixture(params=["", "local://", "memory://", "uploads://"], ids=["LocalStore", "local", "memory", "uploads"])
def store(request, tmp_path: Path) -> Store:
    """An absent folder on each kind of store."""
    return open_store(f"{request.param}{tmp_path}/deep/folder")


@pytest.fixture
def filled(store) -> Store:
    """The same with a file `a` of 3,000 bytes."""
    write(store, "a", CONTENT)
    return store


def test_an_absent_folder_has_no_names(store):
    assert store.names() == []


def test_names_are_sorted(store):
    for name in ("b", "a-1", "c.tar.index", "a"):
        write(store, name, b"")
    assert store.names() == ["a", "a-1", "b", "c.tar.index"]


def test_a_file_has_its_size(filled):
    assert filled.size("a") == 3000


def test_a_file_is_read_whole(filled):
    assert filled.read("a") == CONTENT


@pytest.mark.parametrize(("start", "end"), [(0, 3000), (0, 1), (2999, 3000), (17, 1017), (5, 5), (0, 0), (3000, 3000)])
def test_a_range_is_exact(filled, start, end):
    assert filled.read("a", start=start, end=end) == CONTENT[start:end]


@pytest.mark.parametrize("start", [0, 1, 2999])
def test_a_range_without_an_end_goes_to_the_end(filled, start):
    assert filled.read("a", start=start) == CONTENT[start:]


def test_many_ranges_come_in_their_order(filled):
    write(filled, "b", CONTENT[::-1])
    wanted = [("b", 5, 9), ("a", 100, 300), ("a", 0, 0), ("b", 0, 3000), ("a", 100, 300)]
    data = {"a": CONTENT, "b": CONTENT[::-1]}
    assert filled.read_many(wanted) == [data[name][start:end] for name, start, end in wanted]


def test_no_ranges_are_no_answers(store):
    assert store.read_many([]) == []


def test_a_buffer_is_filled(filled):
    buffer = bytearray(50)
    filled.read_into("a", memoryview(buffer)[10:30], start=7)
    assert buffer == bytes(10) + CONTENT[7:27] + bytes(20)


SHORT: dict[str, Callable[[Store], object]] = {
    "read": lambda store: store.read("a", start=2990, end=3001),
    "read behind the end": lambda store: store.read("a", start=4000, end=4001),
    "read_many": lambda store: store.read_many([("a", 0, 10), ("a", 2990, 3001)]),
    "read_into": lambda store: store.read_into("a", memoryview(bytearray(11)), start=2990),
}
ABSENT: dict[str, Callable[[Store], object]] = {
    "size": lambda store: store.size("absent"),
    "read": lambda store: store.read("absent", start=0, end=1),
    "read whole": lambda store: store.read("absent"),
    "read_many": lambda store: store.read_many([("a", 0, 1), ("absent", 0, 1)]),
    "read_into": lambda store: store.read_into("absent", memoryview(bytearray(1)), start=0),
    "remove": lambda store: store.remove("absent"),
}


@pytest.mark.parametrize("act", SHORT.values(), ids=SHORT)
def test_a_file_shorter_than_asked_for_is_a_store_error(filled, act):
    with pytest.raises(StoreError) as caught:
        act(filled)
    assert caught.value.url == filled.url_of("a")


@pytest.mark.parametrize("act", ABSENT.values(), ids=ABSENT)
def test_an_absent_file_is_pythons_own_error_with_the_url(filled, act):
    with pytest.raises(FileNotFoundError) as caught:
        act(filled)
    assert filled.url_of("absent") in str(caught.value)


def test_a_pending_file_is_invisible_until_commit(store):
    file = store.create("a")
    for step in (lambda: file.write([CONTENT, b"", CONTENT]), file.close):
        step()
        assert "a" not in store.names()
        with pytest.raises(FileNotFoundError):
            store.read("a")
    file.commit()
    assert (store.names(), store.read("a")) == (["a"], CONTENT * 2)


def test_commit_closes(store):
    file = store.create("a")
    file.write([CONTENT])
    file.commit()
    assert store.read("a") == CONTENT


def test_a_file_may_stay_empty(store):
    write(store, "a")
    assert (store.size("a"), store.read("a")) == (0, b"")


def test_closing_is_idempotent(store):
    file = store.create("a")
    file.write([b"x"])
    file.close()
    file.close()
    file.commit()
    assert store.read("a") == b"x"


@pytest.mark.parametrize("close_first", [False, True])
def test_a_discarded_file_leaves_nothing(store, close_first):
    file = store.create("a")
    file.write([CONTENT])
    if close_first:
        file.close()
    file.discard()
    file.discard()
    assert store.names() == []


def test_discarding_after_commit_does_nothing(store):
    file = store.create("a")
    file.write([CONTENT])
    file.commit()
    file.discard()
    assert store.read("a") == CONTENT


def test_a_former_file_stays_until_commit_and_is_replaced_by_it(filled):
    assert filled.read("a") == CONTENT
    file = filled.create("a")
    file.write([b"new"])
    file.close()
    assert filled.read("a") == CONTENT
    file.commit()
    assert (filled.size("a"), filled.read("a")) == (3, b"new")


def test_a_former_file_outlives_a_discarded_one(filled):
    file = filled.create("a")
    file.write([b"new"])
    file.discard()
    assert filled.read("a") == CONTENT


def test_a_removed_file_is_gone(filled):
    filled.remove("a")
    assert filled.names() == []


def test_a_pickled_store_reads_the_same_folder(filled):
    filled.read("a")
    copy = pickle.loads(pickle.dumps(filled))
    assert (copy.url, copy.read("a")) == (filled.url, CONTENT)


def test_threads_read_at_once(filled):
    def read(number: int) -> bool:
        return filled.read("a", start=number, end=number + 1000) == CONTENT[number : number + 1000]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(400)))


def test_more_than_64_files_are_read(store):
    for number in range(70):
        write(store, str(number), b"%d" % number)
    assert [store.read(str(number)) for number in range(70)] == [b"%d" % number for number in range(70)]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # forking is the point
def test_a_forked_process_reads_what_its_parent_had_open(filled):
    filled.read("a")
    assert exit_code(lambda: filled.read("a") == CONTENT) == 42
