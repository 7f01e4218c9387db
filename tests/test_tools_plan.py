"""tools/plan.py: what is packed, in which order, and what is refused before anything is read."""

import pytest

from coco import Captions, Record
from images import FolderSource
from pack_errors import LeftOutError
from plan import RUN, Plan, PlanOptions, make_plan, shuffle_key
from rejections import Rejection

UNCAPTIONED = Rejection(90, "90.jpg", "uncaptioned", "no caption")
UNKNOWN = Rejection(91, "", "unknown_image", "no image")


def record(image_id):
    return Record(image_id, f"{image_id}.jpg", 8, 8, ("a cat",), (1,), 0, "", "")


@pytest.fixture
def source(tmp_path):
    for image_id in range(1, 6):
        (tmp_path / f"{image_id}.jpg").write_bytes(b"x")
    return FolderSource(str(tmp_path))


def captions(*image_ids, uncaptioned=(), unknown=()):
    return Captions(tuple(map(record, image_ids)), uncaptioned, unknown)


def ids(plan):
    return [entry.record.image_id for entry in plan.entries]


def test_images_are_planned_by_id(source):
    assert ids(make_plan(captions(3, 1, 2), source, PlanOptions())) == [1, 2, 3]


def test_a_shuffled_order_is_that_of_the_documented_key(source):
    plan = make_plan(captions(1, 2, 3, 4, 5), source, PlanOptions(shuffle_seed=7))
    assert ids(plan) == sorted(range(1, 6), key=lambda image_id: shuffle_key(7, image_id))
    assert ids(plan) != [1, 2, 3, 4, 5]


def test_the_shuffle_never_changes():
    assert [shuffle_key(0, 1), shuffle_key(1, 1), shuffle_key(2**64 - 1, 391895)] == [
        3439722301264460078,
        9612670148589084341,
        9116786707571366587,
    ]


def test_missing_images_are_refused_with_their_number_and_the_first_ten(source):
    with pytest.raises(LeftOutError) as caught:
        make_plan(captions(*range(1, 21)), source, PlanOptions())
    message = str(caught.value)
    assert f"15 of 20 images are missing in {source.path}" in message
    assert "  15.jpg (image id 15)" in message
    assert "16.jpg" not in message
    assert "... and 5 more" in message
    assert "--allow-missing" in message


def test_missing_images_are_listed_where_that_is_allowed(source):
    plan = make_plan(captions(1, 8, 9), source, PlanOptions(allow_missing=True))
    assert ids(plan) == [1]
    assert [(left.image_id, left.kind) for left in plan.rejections] == [(8, "missing"), (9, "missing")]


def test_lost_captions_are_refused_also_where_images_may_be_missing(source):
    with pytest.raises(LeftOutError, match=r"1 images have no caption and 1 images have captions and are not in"):
        make_plan(captions(1, uncaptioned=(UNCAPTIONED,), unknown=(UNKNOWN,)), source, PlanOptions(allow_missing=True))


def test_lost_captions_are_listed_where_bad_ones_are_skipped(source):
    plan = make_plan(captions(1, uncaptioned=(UNCAPTIONED,), unknown=(UNKNOWN,)), source, PlanOptions(skip_bad=True))
    assert plan.rejections == [UNCAPTIONED, UNKNOWN]


def test_missing_images_are_refused_also_where_bad_ones_are_skipped(source):
    with pytest.raises(LeftOutError, match="1 of 2 images are missing"):
        make_plan(captions(1, 9), source, PlanOptions(skip_bad=True))


@pytest.mark.parametrize("found", [captions(8, 9), captions()])
def test_nothing_to_pack_is_refused_whatever_is_allowed(source, found):
    with pytest.raises(LeftOutError, match="none of the"):
        make_plan(found, source, PlanOptions(allow_missing=True, skip_bad=True))


def test_runs_hold_every_entry_once_and_in_order(source):
    entries = list(range(2 * RUN + 1))
    runs = list(Plan(entries, []).runs())
    assert [len(run) for run in runs] == [RUN, RUN, 1]
    assert [entry for run in runs for entry in run] == entries
