"""Samples into a batch: the pixels in their places, each image decoded once, in threads that end."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.data import DataLoader

import stream.resize
from packed import SIZE, captions_of, jpeg_of, key_of, number_of, size_of
from ranks import left_behind, soon_left_behind
from stream.collate import CollateOptions, Collator, Item
from stream.decode import decode
from stream.errors import DecodeError, SourceError
from stream.resize import ResizeSpec

RESIZE = ResizeSpec(*SIZE)


def item(number, *, caption=0, image=None):
    encoded = memoryview(jpeg_of(number) if image is None else image)
    return Item(key_of(number), encoded, f"shard x: {number}.jpg", captions_of(number)[caption], number)


def items(*numbers):
    return [item(number) for number in numbers]


@pytest.fixture
def decoded(monkeypatch):
    """The names of all images that are decoded from now on."""
    names = []

    def counting(data, *, name, **options):
        names.append(name)
        return decode(data, name=name, **options)

    monkeypatch.setattr(stream.resize, "decode", counting)
    monkeypatch.setattr(stream.collate, "decode", counting)
    return names


@pytest.mark.parametrize("threads", [1, 3])
def test_a_batch_holds_each_image_in_its_place(threads):
    collator = Collator(CollateOptions(RESIZE, threads))
    batch = collator(items(5, 1, 200, 7, 3))
    collator.close()
    assert list(batch) == ["image", "caption", "key"]
    assert [number_of(image) for image in batch["image"]] == [5, 1, 200, 7, 3]
    assert batch["key"] == [key_of(number) for number in (5, 1, 200, 7, 3)]
    assert batch["caption"] == [captions_of(number)[0] for number in (5, 1, 200, 7, 3)]


def test_images_are_uint8_planes_over_memory_of_pixels():
    image = Collator(CollateOptions(RESIZE))(items(1, 2, 3))["image"]
    assert image.dtype == torch.uint8
    assert image.shape == (3, 3, *SIZE)
    assert image.is_contiguous(memory_format=torch.channels_last)


def test_pixels_are_those_of_decode_and_resize():
    image = Collator(CollateOptions(RESIZE, threads=2))(items(1, 2))["image"]
    for number, found in zip((1, 2), image, strict=True):
        out = torch.empty((*SIZE, 3), dtype=torch.uint8)
        stream.resize.decode_into(jpeg_of(number), out, RESIZE, name="")
        assert torch.equal(found, out.permute(2, 0, 1))


@pytest.mark.parametrize("threads", [1, 2])
def test_without_a_size_a_batch_is_a_list_of_whole_images(threads):
    images = Collator(CollateOptions(None, threads))(items(0, 1, 2))["image"]
    assert isinstance(images, list)
    assert [tuple(image.shape) for image in images] == [(3, *size_of(number)) for number in (0, 1, 2)]
    assert [number_of(image) for image in images] == [0, 1, 2]


@pytest.mark.parametrize("resize", [RESIZE, None])
@pytest.mark.parametrize("threads", [1, 2])
def test_an_image_that_a_batch_holds_twice_is_decoded_once(decoded, resize, threads):
    rows = [item(3, caption=0), item(1), item(3, caption=2), item(2), item(3, caption=1)]
    batch = Collator(CollateOptions(resize, threads))(rows)
    assert sorted(decoded) == [f"shard x: {number}.jpg" for number in (1, 2, 3)]
    assert [number_of(image) for image in batch["image"]] == [3, 1, 3, 2, 3]
    assert batch["caption"] == [row.caption for row in rows]


def test_strides_are_kept_when_an_image_is_held_twice():
    image = Collator(CollateOptions(RESIZE))(items(3, 1, 3))["image"]
    assert image.is_contiguous(memory_format=torch.channels_last)


def test_a_users_collate_makes_the_batch_from_examples():
    seen = []
    batch = Collator(CollateOptions(RESIZE, collate=lambda examples: seen.append(examples) or "made"))(items(4, 6))
    assert batch == "made"
    [examples] = seen
    assert [sorted(example) for example in examples] == [["caption", "image", "key"]] * 2
    assert [number_of(example["image"]) for example in examples] == [4, 6]
    assert [example["key"] for example in examples] == [key_of(4), key_of(6)]


def test_a_users_collate_is_called_by_one_thread_at_a_time():
    inside, most = [], []

    def collate(examples):
        inside.append(threading.get_ident())
        most.append(len(inside))
        threading.Event().wait(0.02)
        inside.pop()
        return len(examples)

    collator = Collator(CollateOptions(RESIZE, collate=collate))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(collator, [items(1, 2)] * 8 + [[0, 1, 2]] * 4)) == [2] * 8 + [3] * 4
    assert set(most) == {1}


def test_one_collator_serves_many_threads():
    collator = Collator(CollateOptions(RESIZE, threads=3))
    groups = [tuple(range(start, start + 5)) for start in range(0, 40, 5)]
    with ThreadPoolExecutor(4) as pool:
        batches = list(pool.map(lambda numbers: collator(items(*numbers)), groups))
    collator.close()
    found = [tuple(number_of(image) for image in batch["image"]) for batch in batches]
    assert found == groups


def test_foreign_rows_are_put_together_by_torch():
    image, text = Collator(CollateOptions(RESIZE))([(torch.ones(2), "a"), (torch.zeros(2), "b")])
    assert torch.equal(image, torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    assert text == ("a", "b")


def test_foreign_rows_go_to_a_users_collate_as_they_are():
    assert Collator(CollateOptions(None, collate=sum))([1, 2, 3]) == 6


@pytest.mark.parametrize("rows", [[torch.ones(1), torch.ones(2)], [{"a": 1}, {"b": 2}], [object(), object()]])
def test_foreign_rows_that_do_not_fit_are_refused_with_what_to_do(rows):
    with pytest.raises(SourceError, match="give StreamLoader a collate= that can"):
        Collator(CollateOptions(None))(rows)


@pytest.mark.parametrize("threads", [1, 2])
def test_an_image_that_cannot_be_decoded_is_named(threads):
    rows = [*items(1, 2), item(3, image=b"<html>not found</html>"), *items(4)]
    collator = Collator(CollateOptions(RESIZE, threads))
    with pytest.raises(DecodeError, match=r"image shard x: 3\.jpg: .*HTML page"):
        collator(rows)
    collator.close()


def test_images_above_the_limit_are_refused():
    with pytest.raises(DecodeError, match="max_pixels=100"):
        Collator(CollateOptions(RESIZE, max_pixels=100))(items(1))


def test_close_ends_the_threads_and_may_be_repeated():
    collator = Collator(CollateOptions(RESIZE, threads=2))
    collator(items(1, 2, 3))
    assert left_behind() != []
    collator.close()
    collator.close()
    assert left_behind() == []


def test_a_collator_that_was_closed_starts_again_when_called():
    collator = Collator(CollateOptions(RESIZE, threads=2))
    collator.close()
    assert [number_of(image) for image in collator(items(1, 2))["image"]] == [1, 2]
    collator.close()


def test_a_copy_has_the_options_and_threads_of_its_own():
    collator = Collator(CollateOptions(RESIZE, threads=2))
    collator(items(1, 2))
    copied = pickle.loads(pickle.dumps(collator))
    collator.close()
    assert copied.options == collator.options
    assert torch.equal(copied(items(1, 2))["image"], Collator(CollateOptions(RESIZE))(items(1, 2))["image"])
    copied.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_collator_works_in_worker_processes(method):
    collator = Collator(CollateOptions(RESIZE, threads=2))
    collator(items(1, 2))  # its threads run while the workers start
    loader = DataLoader(Samples(), batch_size=3, num_workers=1, collate_fn=collator, multiprocessing_context=method)
    assert [number_of(image) for batch in loader for image in batch["image"]] == list(range(6))
    collator.close()
    assert soon_left_behind() == []


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, number):
        return item(number)


def test_a_collator_may_be_closed_in_one_of_its_own_threads():
    collator = Collator(CollateOptions(None, threads=2))
    closed = collator._threads().submit(collator.close)
    assert closed.exception(timeout=20) is None


def test_rows_of_one_sample_have_images_of_their_own_also_at_full_size():
    rows = [item(3), item(3), item(5), item(3)]
    batch = Collator(CollateOptions(None))(rows)
    batch["image"][0].zero_()
    assert [number_of(image) for image in batch["image"]] == [0, 3, 5, 3]
    batch["image"][1].zero_()
    assert [number_of(image) for image in batch["image"]] == [0, 0, 5, 3]
