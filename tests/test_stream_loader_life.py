"""The life of a StreamLoader: what starts when, epochs, leaving early, and that nothing is left behind."""

import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.state import GradientState

from packed import SIZE, jpeg_of, key_of, make_packed
from ranks import left_behind
from shards.errors import ChecksumError
from stream.errors import DecodeError, OptionError, RankError, SourceError
from stream.forks import PATIENCE_S
from stream.helper_process import HelperError
from stream.loader import StreamLoader
from stream.options import StreamOptions
from stream.stats import Stats

pytestmark = pytest.mark.usefixtures("nothing_left")

SAMPLES = 40


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_packed(tmp_path_factory.mktemp("packed"), SAMPLES)


@pytest.fixture(params=["alone", "dispatch", "shard"])
def mode(request):
    return request.param


@pytest.fixture(params=[0, 2])
def workers(request):
    return request.param


def loader_of(source, mode="alone", *, workers=0, **options):
    accelerator = None
    if mode != "alone":
        config = DataLoaderConfiguration(dispatch_batches=mode == "dispatch")
        accelerator = Accelerator(cpu=True, dataloader_config=config)
    options = {"batch_size": 4, "image_size": SIZE, "shuffle": "window", **options}
    return StreamLoader(source, accelerator=accelerator, options=StreamOptions(workers=workers), **options)


def train(loader):
    for _ in loader:
        raise ZeroDivisionError


def keys_of(loader):
    return [key for batch in loader for key in batch["key"]]


# --- starting --------------------------------------------------------------------------------------------------


def test_nothing_starts_before_the_first_next(made, mode, workers):
    loader = loader_of(made.url, mode, workers=workers)
    iteration = iter(loader)
    assert left_behind() == []
    assert loader._plan.source.reader._manifest is None
    next(iteration)
    assert left_behind() != []


def test_an_iteration_that_never_began_is_closed_like_any_other(made, mode, workers):
    loader = loader_of(made.url, mode, workers=workers)
    iteration = iter(loader)
    loader.close()
    assert list(iteration) == []
    assert loader.epoch == 0


def test_a_dataset_that_does_not_exist_is_noticed_at_the_first_batch(tmp_path, mode):
    loader = loader_of(str(tmp_path / "nowhere"), mode)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        next(iter(loader))


# --- epochs ----------------------------------------------------------------------------------------------------


def test_epochs_are_counted_when_they_end(made, mode):
    loader, seen = loader_of(made.url, mode), []
    while loader.epoch < 3:
        seen.append((loader.epoch, loader.iteration, keys_of(loader)))
    assert [numbers[:2] for numbers in seen] == [(0, 0), (1, 1), (2, 2)]
    assert len({tuple(keys) for *_, keys in seen}) == 3


def test_an_epoch_that_was_left_early_is_delivered_again(made, mode):
    loader = loader_of(made.url, mode)
    first = next(iter(loader))["key"]
    assert loader.epoch == 0
    assert keys_of(loader)[:4] == first
    assert loader.epoch == 1


def test_set_epoch_chooses_what_the_next_iteration_delivers(made, mode):
    loader = loader_of(made.url, mode)
    epochs = [keys_of(loader) for _ in range(3)]
    for epoch in (2, 0, 1):
        loader.set_epoch(epoch)
        assert loader.epoch == epoch
        assert keys_of(loader) == epochs[epoch]
        assert loader.epoch == epoch + 1


def test_set_epoch_within_an_epoch_speaks_of_the_next_iteration(made):
    loader = loader_of(made.url)
    for _ in loader:
        loader.set_epoch(7)
    assert loader.epoch == 7


def test_an_epoch_below_0_is_refused(made):
    with pytest.raises(OptionError, match="epoch=-1"):
        loader_of(made.url).set_epoch(-1)


# --- leaving ---------------------------------------------------------------------------------------------------


def test_break_leaves_nothing_behind_at_once(made, mode, workers):
    loader = loader_of(made.url, mode, workers=workers)
    for _ in loader:
        assert left_behind() != []
        break
    assert left_behind() == []
    assert not GradientState().in_dataloader


def test_an_error_in_the_training_loop_leaves_nothing_behind(made, mode, workers):
    loader = loader_of(made.url, mode, workers=workers)
    with pytest.raises(ZeroDivisionError):
        train(loader)
    assert left_behind() == []


def test_an_iterator_that_is_dropped_leaves_nothing_behind(made, mode, workers):
    iteration = iter(loader_of(made.url, mode, workers=workers))
    next(iteration)
    del iteration
    assert left_behind() == []


def test_close_ends_an_iteration_that_is_still_held(made, mode, workers):
    loader = loader_of(made.url, mode, workers=workers)
    iteration = iter(loader)
    next(iteration)
    loader.close()
    loader.close()
    assert left_behind() == []
    assert list(iteration) == []
    assert loader.epoch == 0
    assert len(keys_of(loader)) == SAMPLES


def test_close_within_the_loop_ends_the_loop(made, mode):
    loader, steps = loader_of(made.url, mode), 0
    for _ in loader:
        steps += 1
        loader.close()
    assert (steps, loader.epoch) == (1, 0)


def test_a_new_iteration_ends_the_former(made, mode, workers):
    loader = loader_of(made.url, mode, workers=workers)
    former = iter(loader)
    next(former)
    assert len(keys_of(loader)) == SAMPLES
    assert list(former) == []


def test_the_end_of_an_epoch_leaves_nothing_behind(made, mode, workers):
    loader = loader_of(made.url, mode, workers=workers)
    iteration = iter(loader)
    assert sum(len(batch["key"]) for batch in iteration) == SAMPLES
    assert left_behind() == []


def test_a_loader_that_is_dropped_in_mid_epoch_leaves_nothing_behind(made, mode):
    loader = loader_of(made.url, mode)
    batches = zip(loader, range(2), strict=False)
    next(batches)
    del loader, batches
    gc.collect()
    assert left_behind() == []


@pytest.mark.parametrize("number", [0, 2])
def test_a_script_that_ends_in_mid_epoch_ends_quietly(made, number):
    script = f"""
        from stream import StreamLoader, StreamOptions
        held = iter(StreamLoader({made.url!r}, batch_size=4, image_size=16, options=StreamOptions(workers={number})))
        next(held)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# --- errors ----------------------------------------------------------------------------------------------------


def test_an_image_that_cannot_be_decoded_is_named_behind_the_good_steps(tmp_path, mode, workers):
    bad = make_packed(tmp_path, 12, images={6: jpeg_of(6)[:200]})
    loader, good = loader_of(bad.url, mode, workers=workers, shuffle=None), []
    with pytest.raises((DecodeError, SourceError), match=f"{key_of(6)}.jpg") as caught:
        good.extend(batch["key"] for batch in loader)
    assert good == [bad.keys[:4]]
    assert "image shard" in str(caught.value)
    assert left_behind() == []


def test_a_flipped_bit_is_named(tmp_path, mode, workers):
    made = make_packed(tmp_path, 12)
    path = Path(made.tars()[0])
    data = bytearray(path.read_bytes())
    data[data.index(jpeg_of(2)) + 100] ^= 1
    path.write_bytes(data)
    with pytest.raises((ChecksumError, SourceError), match=f"{key_of(2)}"):
        keys_of(loader_of(made.url, mode, workers=workers, shuffle=None))


def test_a_missing_shard_is_named(tmp_path, mode, workers):
    made = make_packed(tmp_path, 12)
    Path(made.tars()[1]).unlink()
    with pytest.raises((FileNotFoundError, SourceError), match=r"made-000001\.tar"):
        keys_of(loader_of(made.url, mode, workers=workers, shuffle=None))


def test_an_error_of_a_users_collate_arrives(made, mode, workers):
    def collate(examples):
        raise LookupError("no such word")

    with pytest.raises((LookupError, SourceError), match="no such word"):
        keys_of(loader_of(made.url, mode, workers=workers, collate=collate))


def test_a_users_collate_that_runs_out_is_no_end_of_the_epoch(made, mode, workers):
    words = iter(["only", "two"])
    loader = loader_of(made.url, mode, workers=workers, collate=lambda examples: [[next(words)] * len(examples)])
    with pytest.raises((SourceError, RankError), match="StopIteration"):
        list(loader)


def test_after_an_error_the_loader_can_be_iterated_again(tmp_path, mode):
    made = make_packed(tmp_path, 12)
    tar = Path(made.tars()[0])
    loader = loader_of(made.url, mode)
    kept = tar.rename(tmp_path / "kept")
    with pytest.raises((FileNotFoundError, SourceError)):
        keys_of(loader)
    kept.rename(tar)
    assert sorted(keys_of(loader)) == made.keys


# --- copies and counters ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [copy.copy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_is_a_loader_of_its_own(made, copied):
    loader = loader_of(made.url)
    iteration = iter(loader)
    first = next(iteration)["key"]
    assert keys_of(copied(loader))[:4] == first
    assert [*first, *(key for batch in iteration for key in batch["key"])] == keys_of(loader_of(made.url))


def test_stats_count_the_steps_of_all_epochs(made, mode):
    loader = loader_of(made.url, mode)
    assert loader.stats == Stats()
    keys_of(loader)
    keys_of(loader)
    stats = loader.stats
    assert stats.steps == 20
    assert stats.wait_s >= stats.first_wait_s > 0


@pytest.mark.parametrize("decode_in", ["thread", "process"])
def test_a_fork_in_mid_epoch_waits_for_no_time_out(made, decode_in):
    """As torch's DataLoader forks for an evaluation; it waits for work that goes on, and that must not wait for it."""
    loader = StreamLoader(
        made.url, batch_size=2, image_size=SIZE, captions="each", options=StreamOptions(decode_in=decode_in)
    )
    longest = 0.0
    for _ in loader:
        begin = time.monotonic()
        child = os.fork()
        if child == 0:
            os._exit(0)
        longest = max(longest, time.monotonic() - begin)
        os.waitpid(child, 0)
    loader.close()
    assert longest < PATIENCE_S - 1


@pytest.mark.parametrize("dispatch", [None, True])
def test_a_helper_that_died_is_replaced_by_the_next_iteration(made, dispatch):
    accelerator = None
    if dispatch:
        config = DataLoaderConfiguration(dispatch_batches=True)
        accelerator = Accelerator(cpu=True, dataloader_config=config)
    options = {"batch_size": 2, "image_size": SIZE, "captions": "each", "options": StreamOptions(decode_in="process")}
    loader = StreamLoader(made.url, accelerator=accelerator, **options)
    whole = [batch["key"] for batch in StreamLoader(made.url, **{**options, "options": None})]
    iteration = iter(loader)
    next(iteration)
    os.kill(loader._place.helper.pid, signal.SIGKILL)
    with pytest.raises((HelperError, RankError), match="SIGKILL"):
        list(iteration)
    rest = [batch["key"] for batch in loader]  # the epoch begins again
    assert rest == whole
    helper = loader._place.helper
    os.kill(helper.pid, signal.SIGKILL)
    while not helper.is_dead:
        time.sleep(0.01)
    loader.set_epoch(0)
    assert [batch["key"] for batch in loader] == whole
    loader.close()
