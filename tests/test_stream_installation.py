"""Our dispatcher in accelerate's place: put there and back; in real processes, with all that accelerate does."""

import inspect

import accelerate
import accelerate.accelerator
import accelerate.data_loader
import pytest
from accelerate import Accelerator

import stream
from pictures import in_a_new_process
from ranks import run_ranks
from stream import installation
from stream.errors import OptionError

STOCK = accelerate.data_loader.DataLoaderDispatcher


def places():
    skip = accelerate.data_loader.skip_first_batches
    return (
        accelerate.data_loader.DataLoaderDispatcher,
        Accelerator.__dict__["prepare_data_loader"],
        Accelerator.__dict__["_prepare_one"],
        skip.__code__,
        accelerate.skip_first_batches is skip is accelerate.accelerator.skip_first_batches,
    )


def test_within_the_block_ours_is_in_accelerates_place_and_afterwards_all_is_as_before():
    before = places()
    with stream.installed():
        within = places()
        assert within[0] is not STOCK
        assert issubclass(within[0], STOCK)
    assert all(one is not other for one, other in zip(before[:4], within[:4], strict=True))
    assert places() == before


def test_an_error_within_the_block_puts_all_back():
    before = places()
    with pytest.raises(LookupError), stream.installed():
        raise LookupError
    assert places() == before


def test_installing_twice_is_installing_once():
    before = places()
    with stream.installed():
        within = places()
        stream.install()
        with stream.installed():
            assert places() == within
        assert places() == within
    assert places() == before


def test_install_stays():
    told = in_a_new_process("""
        import accelerate.data_loader, stream
        stream.install()
        stream.install()
        print(accelerate.data_loader.DataLoaderDispatcher.__module__)
    """)
    assert told == "stream.dispatcher\n"


def test_the_replaced_methods_keep_their_signatures():
    before = [list(inspect.signature(place).parameters) for place in places()[1:3]]
    with stream.installed():
        within = [list(inspect.signature(place, follow_wrapped=False).parameters) for place in places()[1:3]]
    assert within == before


def test_a_version_that_was_not_checked_is_refused_and_those_that_were_are_named(monkeypatch):
    monkeypatch.setattr(accelerate, "__version__", "9.9.9")
    before = places()
    with pytest.raises(OptionError, match=r"9\.9\.9.*1\.15\.0"):
        stream.install()
    with pytest.raises(OptionError), stream.installed():
        pass
    assert places() == before


def test_the_version_of_the_tests_was_checked():
    assert accelerate.__version__ in installation.CHECKED


# accelerate's own example, unchanged, with the sizes that its documentation promises
@pytest.fixture(scope="module", params=[1, 2, 4])
def found(request, tmp_path_factory):
    return run_ranks("plain_case.py", request.param, {}, tmp_path_factory.mktemp("plain"))


@pytest.mark.ranks
@pytest.mark.parametrize("dispatch", ["True", "False"])
def test_every_rank_gets_its_share_of_each_batch(found, dispatch):
    for rank in found:
        assert rank["plain"][dispatch]["steps"] == 4
        assert [epoch["sizes"] for epoch in rank["plain"][dispatch]["epochs"]] == [[8 // len(found)] * 4] * 2


@pytest.mark.ranks
@pytest.mark.parametrize("dispatch", ["True", "False"])
def test_every_row_comes_once_an_epoch_shuffled(found, dispatch):
    first, second = (epoch["rows"] for epoch in found[0]["plain"][dispatch]["epochs"])
    assert sorted(first) == sorted(second) == list(range(32)) != first != second
    assert all(rank["plain"][dispatch]["epochs"][1]["rows"] == second for rank in found)
    assert all(epoch["ended"] for rank in found for epoch in rank["plain"][dispatch]["epochs"])


@pytest.mark.ranks
def test_dispatch_mode_is_ours_and_shard_mode_is_accelerates(found):
    assert all(rank["plain"]["True"]["ours"] for rank in found)
    # In one process nothing is to be dispatched: accelerate's loader without dispatching is the same for both
    assert not any(rank["plain"]["False"]["ours"] for rank in found)


@pytest.mark.ranks
def test_the_learning_rate_after_an_epoch_is_equal_for_any_number_of_ranks(found):
    assert len(found[0]["rates"]) == 6
    for rank in found:
        assert rank["rates"] == pytest.approx(dict.fromkeys(found[0]["rates"], 0.05))


@pytest.mark.ranks
def test_a_batch_that_cannot_be_split_is_refused_with_both_numbers(tmp_path):
    for rank in run_ranks("plain_case.py", 3, {}, tmp_path):
        for text in rank["plain"].values():
            assert "(8)" in text
            assert "(3)" in text
