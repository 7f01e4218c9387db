"""Images read ahead of the writer."""

import threading
from contextlib import closing

import pytest

from images import Place, open_source
from pack_errors import UnreadableImageError
from reading import SOURCES, read_ahead


@pytest.fixture
def places(tmp_path):
    for number in range(40):
        (tmp_path / f"{number:02d}.jpg").write_bytes(bytes([number]) * (1000 + number))
    return [Place(str(tmp_path / f"{number:02d}.jpg")) for number in range(40)]


def sources(tmp_path, count=SOURCES):
    return [open_source(str(tmp_path)) for _ in range(count)]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "pack-read-ahead"]


@pytest.mark.parametrize("count", [2, 3, SOURCES])
def test_images_come_in_order_and_are_whole_while_they_are_looked_at(tmp_path, places, count):
    seen = [bytes(data) for data in read_ahead(sources(tmp_path, count), places)]
    assert seen == [bytes([number]) * (1000 + number) for number in range(40)]
    assert not threads()


def test_no_more_images_are_held_than_there_are_sources(tmp_path, places):
    read = []

    class Counting:
        def __init__(self, source):
            self.source = source

        def read(self, place):
            read.append(place)
            return self.source.read(place)

    images = read_ahead([Counting(source) for source in sources(tmp_path, 3)], places)
    with closing(images):
        for number, _ in enumerate(images):
            assert len(read) <= number + 3


def test_an_image_that_cannot_be_read_comes_as_its_error_in_its_place(tmp_path, places):
    (tmp_path / "07.jpg").unlink()
    seen = list(read_ahead(sources(tmp_path), places))
    assert [number for number, data in enumerate(seen) if isinstance(data, UnreadableImageError)] == [7]


@pytest.mark.parametrize("taken", [0, 1, 39])
def test_leaving_early_ends_the_thread(tmp_path, places, taken):
    images = read_ahead(sources(tmp_path), places)
    with closing(images):
        for _ in range(taken):
            next(images)
    assert not threads()


def test_nothing_to_read_ends_at_once(tmp_path):
    assert list(read_ahead(sources(tmp_path), [])) == []
