from itertools import pairwise

import matplotlib.image
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark_cases import result, row
from picture import draw, spread_out
from report import mark_best


def grid(modes=("dispatch", "shard")):
    return [
        row(500 + 40 * prefetch, mode, workers=workers, prefetch=prefetch, pin=pin, advice=pin and workers == prefetch)
        for mode in modes
        for workers in (0, 2)
        for prefetch in (1, 2)
        for pin in (False, True)
    ]


def colors_in(path):
    pixels = (matplotlib.image.imread(path)[..., :3] * 255).round().astype(int)
    return {"#{:02x}{:02x}{:02x}".format(*pixel) for pixel in pixels.reshape(-1, 3)}


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        (("dispatch", "shard"), {"#0057a8", "#c75000"}),
        (("dispatch",), {"#0057a8"}),
        (("shard",), {"#c75000"}),
    ],
)
def test_each_mode_is_drawn_in_its_colour(tmp_path, modes, expected):
    draw(result(mark_best(grid(modes))), tmp_path / "grid.png")
    assert colors_in(tmp_path / "grid.png") & {"#0057a8", "#c75000"} == expected


def test_the_picture_is_a_png_of_a_legible_size(tmp_path):
    draw(result(mark_best(grid())), tmp_path / "grid.png")
    height, width, _ = matplotlib.image.imread(tmp_path / "grid.png").shape
    assert width >= 800
    assert height >= 500


def test_failed_rows_and_single_points_are_no_obstacle(tmp_path):
    draw(result([row(500), row(0, "shard", failed="it died")]), tmp_path / "one.png")
    assert (tmp_path / "one.png").stat().st_size > 1000


def test_a_result_without_any_figure_is_drawn_empty(tmp_path):
    draw(result([row(0, failed="it died")]), tmp_path / "none.png")
    assert (tmp_path / "none.png").stat().st_size > 1000


def test_labels_that_lie_apart_stay_where_they_are():
    assert spread_out([100.0, 20.0, 50.0], gap=10) == [100.0, 20.0, 50.0]


def test_labels_at_one_height_are_moved_apart_around_it():
    assert spread_out([50.0, 50.0, 50.0], gap=10) == [40.0, 50.0, 60.0]


@given(st.lists(st.floats(0, 1000), max_size=6))
def test_labels_end_at_least_the_gap_apart_in_their_order(heights):
    placed = spread_out(heights, gap=20)
    order = sorted(range(len(heights)), key=lambda place: heights[place])
    for lower, upper in pairwise(order):
        assert placed[upper] - placed[lower] >= 20 - 1e-6
    assert all(height >= 10 - 1e-6 for height in placed)
