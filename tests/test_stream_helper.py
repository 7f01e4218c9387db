"""stream/helper.py: another process gives the same pixels, reads the same bytes, fails in the same words."""

import errno
import gc
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers_made import descriptors, is_gone, is_reaped, memory_file
from pictures import JPEG, encoded, picture, rotated
from shards.errors import StoreError
from shards.local import LocalStore
from stream.decode import decode
from stream.errors import DecodeError
from stream.helper import DecodeHelper
from stream.helper_process import HelperError
from stream.resize import ResizeSpec, decode_into

pytestmark = pytest.mark.timeout(60)

SPEC = ResizeSpec(24, 32)
PICTURES = {
    "plain.jpg": JPEG,
    "wide.jpg": encoded(picture(50, 170)),
    "turned.jpg": rotated("JPEG", 6),
    "small.png": encoded(picture(7, 9), "PNG"),
}
BROKEN = {"empty.jpg": b"", "cut.jpg": JPEG[: len(JPEG) // 2], "text.jpg": b"<html>no</html>"}


@pytest.fixture(scope="module")
def resizing():
    helper = DecodeHelper(resize=SPEC, threads=2)
    yield helper
    helper.close()


@pytest.fixture(scope="module")
def whole():
    helper = DecodeHelper(resize=None, threads=2)
    yield helper
    helper.close()


def shared(helper, images):
    """The jobs for images that lie in a memory file of the caller."""
    fd, offsets = memory_file(*images.values())
    number = helper.add_file(fd)
    os.close(fd)
    return [(name, number, at, len(data)) for at, (name, data) in zip(offsets, images.items(), strict=True)]


def resized_here(data, name="a"):
    out = torch.empty((SPEC.height, SPEC.width, 3), dtype=torch.uint8)
    decode_into(data, out, SPEC, name=name)
    return out


def error_here(data, name):
    with pytest.raises(DecodeError) as caught:
        decode(data, name=name)
    return caught.value


# --- pixels


def test_images_of_a_memory_file_become_what_they_become_in_this_process(resizing):
    pixels = resizing.decode(shared(resizing, PICTURES))
    assert (pixels.shape, pixels.dtype) == ((4, 24, 32, 3), torch.uint8)
    for image, data in zip(pixels, PICTURES.values(), strict=True):
        assert torch.equal(image, resized_here(data))


def test_images_of_ordinary_memory_become_the_same(resizing):
    assert torch.equal(resizing.decode_encoded(list(PICTURES.items())), resizing.decode(shared(resizing, PICTURES)))


@pytest.mark.parametrize("way", ["shared", "ordinary"])
def test_without_a_size_each_image_keeps_its_own(whole, way):
    given = list(PICTURES.items())
    images = whole.decode(shared(whole, PICTURES)) if way == "shared" else whole.decode_encoded(given)
    for image, data in zip(images, PICTURES.values(), strict=True):
        assert np.array_equal(image.numpy(), decode(data, name="a"))


@pytest.mark.parametrize("wrap", [bytearray, memoryview, lambda data: memoryview(b"x" + data + b"x")[1:-1]])
def test_ordinary_memory_may_be_any_buffer(whole, wrap):
    (image,) = whole.decode_encoded([("a", wrap(JPEG))])
    assert np.array_equal(image.numpy(), decode(JPEG, name="a"))


def test_no_images_are_no_pixels(resizing, whole):
    assert resizing.decode([]).shape == (0, 24, 32, 3)
    assert whole.decode([]) == []
    assert whole.decode_encoded([]) == []


def test_more_pieces_than_the_system_takes_at_once_arrive_in_order(whole):
    images = [encoded(picture(1, 1 + number % 7), "PNG") for number in range(2500)]
    sizes = [tuple(image.shape) for image in whole.decode_encoded([("a", data) for data in images])]
    assert sizes == [(1, 1 + number % 7, 3) for number in range(2500)]


def test_a_result_is_in_one_piece_of_memory_of_the_callers_choice(whole):
    asked = []

    def empty(size):
        asked.append(torch.full((size,), 7, dtype=torch.uint8))
        return asked[-1]

    images = whole.decode_encoded(list(PICTURES.items()), empty=empty)
    (memory,) = asked
    assert memory.numel() == sum(image.numel() for image in images)
    assert {image.untyped_storage().data_ptr() for image in images} == {memory.data_ptr()}


def test_a_result_stays_as_it_is_when_the_next_one_comes(resizing):
    first = resizing.decode_encoded([("a", PICTURES["wide.jpg"])])
    kept = first.clone()
    resizing.decode_encoded([("b", PICTURES["small.png"])])
    assert torch.equal(first, kept)


def test_larger_and_smaller_portions_may_follow_each_other(whole):
    for side in (10, 900, 20, 1300, 5):
        data = encoded(picture(side, side), "PNG")
        (image,) = whole.decode_encoded([("a", data)])
        assert np.array_equal(image.numpy(), decode(data, name="a"))


def test_many_threads_may_ask_at_once_and_each_gets_its_own(resizing):
    expected = {name: resized_here(data) for name, data in PICTURES.items()}

    def ask(name):
        return name, resizing.decode_encoded([(name, PICTURES[name])] * 3)

    with ThreadPoolExecutor(8) as pool:
        for name, pixels in pool.map(ask, list(PICTURES) * 10):
            assert all(torch.equal(image, expected[name]) for image in pixels)


# --- errors


@pytest.mark.parametrize("name", BROKEN)
def test_an_image_that_cannot_be_decoded_is_named_with_the_words_of_this_process(resizing, name):
    expected = error_here(BROKEN[name], name)
    for ask in (resizing.decode_encoded, lambda images: resizing.decode(shared(resizing, dict(images)))):
        with pytest.raises(DecodeError) as caught:
            ask([("plain.jpg", JPEG), (name, BROKEN[name])])
        assert (caught.value.name, str(caught.value)) == (expected.name, str(expected))


def test_of_several_broken_images_the_first_is_named(whole):
    with pytest.raises(DecodeError) as caught:
        whole.decode_encoded([("good", JPEG)] * 9 + list(BROKEN.items()))
    assert caught.value.name == "empty.jpg"


def test_the_helper_goes_on_after_a_broken_image(whole):
    with pytest.raises(DecodeError):
        whole.decode_encoded(list(BROKEN.items()))
    (image,) = whole.decode_encoded([("a", JPEG)])
    assert image.shape == (40, 60, 3)


def test_the_limit_on_pixels_holds_there_too():
    helper = DecodeHelper(resize=None, threads=1, max_pixels=100)
    try:
        with pytest.raises(DecodeError, match="60x40 pixels are more than max_pixels=100"):
            helper.decode_encoded([("a", JPEG)])
    finally:
        helper.close()


def test_a_file_that_was_never_shared_is_an_error_that_says_so(whole):
    with pytest.raises(HelperError, match=r"a\.jpg: memory file 999 is not known"):
        whole.decode([("a.jpg", 999, 0, 10)])


def test_a_file_that_was_dropped_is_not_known_any_more(whole):
    (job,) = shared(whole, {"a.jpg": JPEG})
    whole.decode([job])
    whole.drop_file(job[1])
    with pytest.raises(HelperError, match="is not known"):
        whole.decode([job])


@pytest.mark.parametrize(("offset", "size"), [(0, len(JPEG) + 1), (len(JPEG), 1), (-1, 1)])
def test_bytes_outside_of_a_file_are_refused(whole, offset, size):
    (job,) = shared(whole, {"a.jpg": JPEG})
    with pytest.raises(HelperError, match="is not within"):
        whole.decode([("a.jpg", job[1], offset, size)])


# --- reading


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "coco-000000.tar"
    path.write_bytes(bytes(range(256)) * 40)
    return path


def test_reads_land_where_they_were_sent(whole, shard):
    fd, _ = memory_file(size=400)
    number = whole.add_file(fd, writable=True)
    whole.read(
        [
            (str(shard), [(100, 150)], number, 300),
            (str(shard), [(1000, 1150), (7, 57)], number, 0),
            (str(shard), [], number, 9),
        ]
    )
    data = shard.read_bytes()
    got = os.pread(fd, 400, 0)
    os.close(fd)
    assert got == data[1000:1150] + data[7:57] + bytes(100) + data[100:150] + bytes(50)


def test_many_reads_of_many_files_come_whole(whole, tmp_path):
    for number in range(5):
        (tmp_path / f"{number}.tar").write_bytes(os.urandom(10_000))
    fd, _ = memory_file(size=100_000)
    file = whole.add_file(fd, writable=True)
    jobs = [
        (str(tmp_path / f"{n % 5}.tar"), [(n * 90, n * 90 + 700), (n, n + 300)], file, n * 1000) for n in range(100)
    ]
    whole.read(jobs)
    for path, ranges, _, offset in jobs:
        data = Path(path).read_bytes()
        assert os.pread(fd, 1000, offset) == b"".join(data[start:end] for start, end in ranges)
    os.close(fd)


def test_a_file_that_is_absent_is_the_same_error_as_in_this_process(whole, tmp_path):
    fd, _ = memory_file(size=10)
    number = whole.add_file(fd, writable=True)
    os.close(fd)
    path = str(tmp_path / "absent.tar")
    with pytest.raises(FileNotFoundError) as caught:
        whole.read([(path, [(0, 10)], number, 0)])
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, path)


def test_a_file_that_ends_too_early_is_the_same_error_as_in_this_process(whole, shard):
    fd, _ = memory_file(size=100)
    number = whole.add_file(fd, writable=True)
    os.close(fd)
    with pytest.raises(StoreError) as here:
        LocalStore(str(shard.parent)).read_into(shard.name, memoryview(bytearray(100)), start=10_200)
    with pytest.raises(StoreError) as caught:
        whole.read([(str(shard), [(10_200, 10_300)], number, 0)])
    assert str(caught.value) == str(here.value)


def test_a_read_error_carries_its_number_and_path(whole, tmp_path):
    fd, _ = memory_file(size=10)
    number = whole.add_file(fd, writable=True)
    os.close(fd)
    (tmp_path / "folder.tar").mkdir()
    with pytest.raises(StoreError) as caught:
        whole.read([(str(tmp_path / "folder.tar"), [(0, 10)], number, 0)])
    assert (caught.value.errno, caught.value.url) == (errno.EISDIR, str(tmp_path / "folder.tar"))


def test_a_file_that_was_shared_for_reading_is_never_written(whole, shard):
    fd, _ = memory_file(size=10)
    number = whole.add_file(fd)
    with pytest.raises(HelperError, match=r"coco-000000.tar|read-only|writ"):
        whole.read([(str(shard), [(1, 11)], number, 0)])
    assert os.pread(fd, 10, 0) == bytes(10)
    os.close(fd)


# --- life


def test_nothing_starts_before_the_first_use():
    before = descriptors()
    helper = DecodeHelper(resize=SPEC, threads=2)
    assert helper.pid is None
    assert descriptors() == before
    helper.close()


def test_close_leaves_no_process_and_no_descriptor():
    before = descriptors()
    helper = DecodeHelper(resize=None, threads=2)
    jobs = shared(helper, PICTURES)
    helper.decode(jobs)
    pid = helper.pid
    helper.close()
    helper.close()
    assert is_reaped(pid)
    assert descriptors() == before


def test_the_last_reference_ends_the_process_too():
    before = descriptors()
    helper = DecodeHelper(resize=None, threads=1)
    helper.decode_encoded([("a", JPEG)])
    pid = helper.pid
    del helper
    gc.collect()
    assert is_gone(pid)
    assert descriptors() == before


def test_a_closed_helper_says_so():
    helper = DecodeHelper(resize=None, threads=1)
    helper.close()
    with pytest.raises(HelperError, match="was closed"):
        helper.decode_encoded([("a", JPEG)])
    helper.drop_file(1)
