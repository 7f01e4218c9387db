"""stream/memory_file.py: sealed memory without a name, and what is refused from another process."""

import fcntl
import mmap
import os
import resource
from contextlib import contextmanager

import pytest

from descriptors import new_descriptors, open_descriptors
from stream.errors import SlabError
from stream.memory_file import MemoryFile, create, map_foreign, map_writable


@contextmanager
def limit(which, value):
    soft, hard = resource.getrlimit(which)
    resource.setrlimit(which, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(which, (soft, hard))


@pytest.fixture
def fd():
    fd = create(10_000)
    yield fd
    os.close(fd)


def test_a_memory_file_has_its_size_and_is_zero(fd):
    assert os.fstat(fd).st_size == 10_000
    assert os.pread(fd, 10_000, 0) == bytes(10_000)


def test_its_pages_are_there_from_the_beginning(fd):
    assert os.fstat(fd).st_blocks * 512 >= 10_000


def test_nobody_can_change_its_size_or_its_seals(fd):
    for size in (0, 9_999, 10_001):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_it_has_no_name_and_is_closed_in_programs_that_are_started(fd):
    assert open_descriptors()[str(fd)] == "/memfd:stream (deleted)"
    assert not os.get_inheritable(fd)


def test_what_is_written_in_one_mapping_is_read_in_the_other(fd):
    writable, readable = map_writable(fd), map_foreign(fd, writable=False)
    writable[5:9] = b"word"
    assert readable[5:9] == b"word"
    with pytest.raises(TypeError):
        readable[5:9] = b"sword"[:4]
    writable.close()
    readable.close()


def test_a_memory_file_without_seals_is_refused():
    fd = os.memfd_create("loose", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    with pytest.raises(SlabError, match="its size is not sealed"):
        map_foreign(fd, writable=False)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    with pytest.raises(SlabError, match="its size is not sealed"):
        map_foreign(fd, writable=False)
    os.close(fd)


def test_what_is_no_memory_file_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    with path.open("rb") as file, pytest.raises(SlabError, match="it is no memory file"):
        map_foreign(file.fileno(), writable=False)


def test_an_empty_memory_file_cannot_be_mapped():
    fd = os.memfd_create("empty", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    with pytest.raises(SlabError, match="it cannot be mapped"):
        map_foreign(fd, writable=False)
    os.close(fd)


def test_more_than_the_machine_has_is_refused_before_it_is_asked_for():
    before = open_descriptors()
    with pytest.raises(SlabError, match="it is larger than this machine's memory"):
        create(2**62)
    assert new_descriptors(before) == {}


def test_a_size_that_the_system_refuses_is_an_error_that_leaves_nothing():
    before = open_descriptors()
    with (
        limit(resource.RLIMIT_FSIZE, 4096),
        pytest.raises(SlabError, match=r"8192 bytes: the system refuses it .* smaller"),
    ):
        create(8192)
    assert new_descriptors(before) == {}


def test_without_a_free_descriptor_it_is_an_error():
    with limit(resource.RLIMIT_NOFILE, 0), pytest.raises(SlabError, match="Too many open files"):
        create(4096)


def test_a_file_that_cannot_be_mapped_leaves_no_descriptor(monkeypatch):
    def refused(*_, **__):
        raise OSError("no address space")

    before = open_descriptors()
    monkeypatch.setattr(mmap, "mmap", refused)
    with pytest.raises(SlabError, match="no address space"):
        MemoryFile(0, 4096)
    assert new_descriptors(before) == {}


def test_the_mapping_of_a_closed_file_goes_with_its_last_user():
    before = open_descriptors()
    file = MemoryFile(0, 4096)
    kept = file.map
    file.close()
    file.close()
    assert file.fd == -1
    kept[:4] = b"here"
    del file
    kept.close()
    assert new_descriptors(before) == {}
