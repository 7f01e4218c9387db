from benchmark_cases import make_images
from dataset import keys_of
from page_cached import page_cached
from shards.dataset import DatasetReader


def test_a_copy_lies_in_the_folder_asked_for_and_is_removed(tmp_path):
    reader = DatasetReader(make_images(tmp_path / "packed", 6))
    place = tmp_path / "disk"
    place.mkdir()
    with page_cached(reader, rows=10, folder=place) as longer:
        assert longer.url.startswith(str(place))
        assert len(set(keys_of(longer))) == len(longer) == 12
        assert [bytes(s.parts["jpg"]) for s in longer.read([6])] == [bytes(s.parts["jpg"]) for s in reader.read([0])]
    assert not list(place.iterdir())
