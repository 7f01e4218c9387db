import pytest

from benchmark_cases import make_images
from dataset import encoded_bytes, images_of, keys_of, repeated
from shards.dataset import DatasetReader


@pytest.fixture
def reader(tmp_path):
    return DatasetReader(make_images(tmp_path / "packed", 10))


def test_keys_come_in_storage_order(reader):
    assert keys_of(reader) == [f"{number:012d}" for number in range(10)]


def test_encoded_bytes_are_image_and_caption_of_the_average_sample(reader):
    sizes = [len(sample.parts["jpg"]) + len(sample.parts["txt"]) for sample in reader.read(range(10))]
    assert encoded_bytes(reader) == sum(sizes) / 10


def test_images_are_spread_over_the_dataset(reader):
    every = [bytes(sample.parts["jpg"]) for sample in reader.read(range(10))]
    assert images_of(reader, most=512) == every
    assert images_of(reader, most=4) == every[::3]


def test_a_dataset_with_enough_rows_is_read_as_it_is(reader):
    with repeated(reader, rows=10) as same:
        assert same is reader


def test_a_small_dataset_is_repeated_under_new_keys(reader):
    with repeated(reader, rows=25) as longer:
        keys = keys_of(longer)
        assert len(keys) == len(set(keys)) == 30
        assert keys[:10] == keys_of(reader)
        first, again = longer.read([3, 23])
        assert (again.key, again.parts) == (f"{first.key}-2", first.parts)
        assert longer.manifest.captions == 30
        assert longer.index(0).column("width")[3] == reader.index(0).column("width")[3]


def test_the_copy_is_removed_at_the_end(reader, tmp_path, monkeypatch):
    monkeypatch.setattr("dataset._MEMORY_DISK", tmp_path)
    with repeated(reader, rows=25) as longer:
        assert longer.url.startswith(str(tmp_path / "benchmark-"))
    assert [path.name for path in tmp_path.iterdir()] == ["packed"]


def test_a_memory_disk_without_room_is_left_alone(reader, tmp_path, monkeypatch):
    monkeypatch.setattr("dataset._MEMORY_DISK", tmp_path)
    monkeypatch.setattr("dataset._ROOM", 2**60)
    with repeated(reader, rows=25) as longer:
        assert not longer.url.startswith(str(tmp_path / "benchmark-"))
