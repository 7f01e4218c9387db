import pytest
import torch

from benchmark_cases import config, make_images, setting
from messages import Job, Plan, Ready, Window
from rank import Batches, Rank, WrongBatchError, check, size_of


def batch(rows, *, side=4, first=0, **changes):
    known = {
        "image": torch.zeros(rows, 3, side, side, dtype=torch.uint8),
        "key": [f"{first + number}" for number in range(rows)],
        "caption": ["a"] * rows,
    }
    return {**known, **changes}


class Loader:
    """As much of a loader as is asked for: epochs of these batches."""

    def __init__(self, batches, steps=None):
        self.batches, self.steps = batches, steps or len(batches)

    def __len__(self):
        return self.steps

    def __iter__(self):
        return iter(self.batches)


def batches_of(loader, rows, ranks=2):
    return Batches(loader, setting("x", rows, batch_size=4, image_size=4), ranks)


def test_rows_are_counted_by_keys():
    assert check(batch(3), 3, 4) == 3


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (batch(2), "rows by keys is 2, expected 3"),
        (batch(3, key=["a"]), "rows by keys is 1"),
        (batch(3, caption=["a"]), "captions is 1"),
        (batch(3, side=5), "the shape of the images"),
        (batch(3, image=torch.zeros(3, 3, 4, 4)), "the type of the images is torch.float32"),
    ],
)
def test_a_batch_that_is_not_what_was_asked_for_is_refused(wrong, words):
    with pytest.raises(WrongBatchError, match=words):
        check(wrong, 3, 4)


def test_the_size_of_a_batch_is_pixels_and_utf8():
    assert size_of(batch(2, caption=["\N{SNOWMAN}", "ab"])) == 2 * 3 * 4 * 4 + 2 + 3 + 2


def test_epochs_follow_each_other_and_the_short_last_step_is_expected():
    batches = batches_of(Loader([batch(2), batch(1)]), rows=5)
    for _ in range(5):
        batches.take()
    assert (batches.samples, batches.epochs, len(batches.waits_ms)) == (2 + 1 + 2 + 1 + 2, 3, 5)


def test_forget_starts_the_counts_anew_within_an_epoch():
    batches = batches_of(Loader([batch(2), batch(2)]), rows=8)
    batches.take()
    batches.forget()
    batches.take()
    assert (batches.samples, batches.epochs, len(batches.waits_ms)) == (2, 0, 1)


def test_an_epoch_that_ends_early_is_refused():
    batches = batches_of(Loader([batch(2)], steps=2), rows=8)
    batches.take()
    with pytest.raises(WrongBatchError, match="steps of an epoch is 1, expected 2"):
        batches.take()


def test_a_rank_alone_measures_a_window_of_each_mode(tmp_path, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    data, told = make_images(tmp_path), []
    jobs = [Job(number=number, config=config(mode, ranks=1)) for number, mode in enumerate(("dispatch", "shard"))]
    rank = Rank(Plan(setting=setting(data, 24), ranks=1, jobs=jobs), told.append)
    for job in jobs:
        rank.do(job)
    windows = [message for message in told if isinstance(message, Window)]
    assert isinstance(told[0], Ready)
    assert [window.job for window in windows] == [0, 1]
    for window in windows:
        assert window.samples == 8 * len(window.waits_ms)
        assert window.seconds >= 0.2
        assert window.delivered_bytes == pytest.approx(3 * 32 * 32 + 12 + len("picture 0"), abs=1)


def test_another_number_of_ranks_than_planned_is_refused(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    job = Job(number=0, config=config(ranks=2))
    with pytest.raises(WrongBatchError, match="the number of ranks is 1, expected 2"):
        Rank(Plan(setting=setting("x", 24), ranks=2, jobs=[job]), lambda _: None)
