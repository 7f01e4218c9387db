import pytest

from messages import Window, combine


def window(**changes):
    known = {
        "job": 1,
        "samples": 100,
        "epochs": 1,
        "seconds": 2.0,
        "first_s": 0.1,
        "delivered_bytes": 10.0,
        "waits_ms": [1.0, 2.0, 9.0],
    }
    return Window(**{**known, **changes})


def test_samples_of_all_ranks_count_over_the_longest_window():
    assert combine([window(), window(samples=140, seconds=3.0)], 0.0).samples_per_s == 80.0


def test_the_worst_rank_speaks_for_the_first_batch_and_all_steps_for_the_wait():
    shot = combine([window(), window(first_s=0.7, waits_ms=[3.0, 4.0])], 512.0)
    assert (shot.first_s, shot.wait_ms, shot.peak_mib) == (0.7, 3.0, 512.0)
    assert shot.wait_mean_ms == pytest.approx(3.8)
    assert (shot.steps, shot.epochs) == (3, 1)


def test_delivered_bytes_are_averaged_over_samples():
    assert combine([window(), window(samples=300, delivered_bytes=30.0)], 0.0).delivered_bytes == 25.0
