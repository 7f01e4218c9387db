"""Several packed datasets as one source: their shares, rows and pixels; resumed as any other, in every mode."""

import pickle
from pathlib import Path

import fsspec
import pytest
from accelerate import Accelerator, DataLoaderConfiguration

from laws import check_resume
from packed import SIZE, make_packed, number_of
from shards.errors import ChecksumError
from stream.errors import OptionError
from stream.loader import StreamLoader
from stream.mixed import StreamMix
from stream.options import StreamOptions

pytestmark = pytest.mark.usefixtures("nothing_left")

LARGE, SMALL = 40, 11
PATHS = ["ours", "shard"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A large and a small one; samples of one number are alike in both."""
    return [make_packed(tmp_path_factory.mktemp("packed"), samples) for samples in (LARGE, SMALL)]


def loader_of(made, path="alone", *, weights=(0.7, 0.3), until="first", workers=0, decode_in="thread", **options):
    config = DataLoaderConfiguration(dispatch_batches=path != "shard")
    accelerator = None if path == "alone" else Accelerator(cpu=True, dataloader_config=config)
    more = StreamOptions(workers=workers, transport="stock" if path == "stock" else "ours", decode_in=decode_in)
    mixture = StreamMix([one.url for one in made], weights, until=until)
    options = {"batch_size": 6, "image_size": SIZE, **options}
    return StreamLoader(mixture, accelerator=accelerator, options=more, **options)


def rows_of(batch):
    return list(zip(batch["key"], batch["caption"], [int(image.sum()) for image in batch["image"]], strict=True))


def keys_of(loader):
    return [int(key) for batch in loader for key in batch["key"]]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("captions", ["first", "each"])
def test_pixels_and_keys_of_every_dataset_belong_together(made, path, captions):
    loader = loader_of(made, path, until="all", captions=captions)
    for batch in loader:
        assert [number_of(image) for image in batch["image"]] == [int(key) for key in batch["key"]]
        assert [text.split(":")[0] for text in batch["caption"]] == [f"{int(key)}" for key in batch["key"]]
    loader.close()


@pytest.mark.parametrize("path", PATHS)
def test_without_repeats_an_epoch_ends_when_a_dataset_has_no_row_left(made, path):
    loader = loader_of(made, path, weights=(0.5, 0.5), shuffle=None)
    # Turn by turn, the large one first, until it is the small one's turn again
    expected = [*(number for number in range(SMALL) for _ in range(2)), SMALL]
    assert [keys_of(loader) for _ in range(2)] == [expected, expected]
    assert (loader.total_dataset_length, len(loader)) == (2 * SMALL + 1, 4)
    loader.close()


@pytest.mark.parametrize("path", PATHS)
def test_with_repeats_every_row_of_the_dataset_that_lasts_comes_once(made, path):
    loader = loader_of(made, path, until="all")
    keys = keys_of(loader)
    assert len(keys) == loader.total_dataset_length == 57  # 40 rows of the large one are 0.7 of them
    counts = {number: keys.count(number) for number in range(LARGE)}
    assert all(counts[number] == 1 for number in range(SMALL, LARGE))
    assert sum(counts[number] for number in range(SMALL)) == SMALL + 17
    assert all(counts[number] in (2, 3) for number in range(SMALL))
    loader.close()


def test_a_dataset_holds_its_share_within_one_row_at_every_prefix(tmp_path):
    """The second dataset has samples that the first has not."""
    one = make_packed(tmp_path / "one", 100)
    other = make_packed(tmp_path / "other", 100)
    mixture = StreamMix([one.url, other.url], [0.7, 0.3])
    loader = StreamLoader(mixture, batch_size=1, image_size=SIZE, captions="first")
    order = loader._plan.source.order(shuffle="window", seed=0, epoch=0, window_shards=4)
    rows = order.rows(0, len(order)).tolist()
    assert keys_of(loader) == [row % 100 for row in rows]
    count = 0
    for number, row in enumerate(rows, start=1):
        count += row < 100
        assert abs(count - 0.7 * number) < 1


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("until", ["first", "all"])
def test_a_mixture_resumes_at_every_step(made, path, until):
    check_resume(lambda: loader_of(made, path, until=until, captions="random"), rows_of, epochs=2)


def test_a_state_of_a_mixture_fits_other_modes_and_batches(made):
    others = [lambda: loader_of(made, "shard", until="all", batch_size=7), lambda: loader_of(made, until="all")]
    check_resume(lambda: loader_of(made, "ours", until="all"), rows_of, epochs=2, others=others)


def test_a_state_of_another_mixture_is_refused(made):
    state = loader_of(made).state_dict()
    for other in ({"weights": (0.6, 0.4)}, {"until": "all"}):
        with pytest.raises(OptionError, match=r"state\['digest'\]"):
            loader_of(made, **other).load_state_dict(state)
    with pytest.raises(OptionError, match=r"state\['digest'\]"):
        loader_of(made[::-1]).load_state_dict(state)
    with pytest.raises(OptionError, match=r"state\['subset'\]"):
        loader_of(made, limit=5).load_state_dict(state)
    loader_of(made, weights=(7, 3)).load_state_dict(state)


def test_rows_are_chosen_of_each_dataset_by_itself(made):
    loader = loader_of(made, until="all", keep=lambda rows: rows.width == 128, limit=4)
    wide = [number for number in range(LARGE) if number % 3 == 1]
    assert set(keys_of(loader)) == set(wide[:4])


def test_keys_may_be_in_any_of_the_datasets(made):
    """Number 30 is in the large one alone."""
    loader = loader_of(made, keep=[f"{number:012d}" for number in (3, 5, 30)], weights=(1, 1), until="all")
    assert set(keys_of(loader)) == {3, 5, 30}
    with pytest.raises(OptionError, match="1 of its keys are not in the dataset"):
        len(loader_of(made, keep=[f"{number:012d}" for number in (3, 99)]))


@pytest.mark.parametrize(("workers", "decode_in"), [(2, "thread"), (0, "process")])
def test_other_processes_bring_the_same_rows(made, workers, decode_in):
    expected = [rows_of(batch) for batch in loader_of(made, until="all", captions="random")]
    loader = loader_of(made, "ours", until="all", captions="random", workers=workers, decode_in=decode_in)
    assert [rows_of(batch) for batch in loader] == expected
    loader.close()


def test_datasets_of_an_object_store_are_mixed_too(made, tmp_path):
    memory = fsspec.filesystem("memory")
    for number, one in enumerate(made):
        memory.put(one.url, f"/mixed-{number}", recursive=True)
    expected = [rows_of(batch) for batch in loader_of(made, until="all")]
    mixture = StreamMix(["memory://mixed-0", made[1].url], [0.7, 0.3], until="all")  # one of each kind of store
    for path in ("alone", "ours"):
        accelerator = None if path == "alone" else Accelerator(cpu=True)
        loader = StreamLoader(mixture, accelerator=accelerator, batch_size=6, image_size=SIZE)
        assert [rows_of(batch) for batch in loader] == expected
        loader.close()
    memory.rm("/mixed-0", recursive=True)
    memory.rm("/mixed-1", recursive=True)


def test_a_damaged_part_is_named_with_its_dataset(tmp_path):
    made = [make_packed(tmp_path / name, 12) for name in ("good", "bad")]
    with open(made[1].tars()[0], "r+b") as file:  # noqa: PTH123 - in place
        file.seek(600)
        file.write(b"\0" * 32)
    loader = loader_of(made, "ours", weights=(1, 1))
    with pytest.raises(ChecksumError, match="bad"):
        list(loader)
    loader.close()


def test_it_is_described_by_its_datasets_and_shares(made):
    said = loader_of(made, until="all").describe()
    assert f"over a mixture of {made[0].url} (0.7), {made[1].url} (0.3), until all" in said


def test_a_mixture_is_a_value(made):
    mixture = StreamMix([one.url for one in made], [7, 3])
    assert repr(pickle.loads(pickle.dumps(mixture))) == repr(mixture)
    assert repr(mixture).endswith("[0.7, 0.3], until='first')")


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("one", [1]), "sources"),
        (([], []), "sources"),
        ((["a", "b"], [1]), "weights"),
        ((["a", "b"], [1, 0]), "weights"),
        ((["a", "b"], [1, "x"]), "weights"),
    ],
)
def test_what_is_no_mixture_is_refused(arguments, option):
    with pytest.raises(OptionError) as caught:
        StreamMix(*arguments)
    assert caught.value.option.startswith(option)


def test_an_end_that_is_unknown_is_refused():
    with pytest.raises(OptionError, match="until"):
        StreamMix(["a", "b"], [1, 2], until="never")


def test_a_dataset_without_rows_is_refused(made):
    with pytest.raises(OptionError, match=r"sources\[0\].*nothing can be drawn of it"):
        len(loader_of(made, keep=lambda rows: rows.width > 10**6))


@pytest.mark.parametrize("wrong", [[1], 3, None])
def test_sources_that_are_no_urls_are_refused(wrong):
    with pytest.raises(OptionError, match="must be the URL or path of a packed dataset: only those are mixed"):
        StreamMix(["a", wrong], [1, 1])


def test_sources_may_be_paths():
    assert StreamMix([Path("a"), "b"], [1, 1]).sources == ("a", "b")
