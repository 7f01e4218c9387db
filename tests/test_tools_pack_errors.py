"""tools/pack_errors.py: each error keeps its fields and says what, where and what to do."""

import pytest

from pack_errors import ChangedImageError, LeftOutError, PackError, UnreadableImageError, WorkerDiedError
from rejections import Rejection

TORN = Rejection(5, "5.jpg", "bad", "it is torn")


def test_samples_that_would_be_lost_are_listed_with_the_remedy():
    error = LeftOutError([TORN], "1 of 2 images are bad", "Replace them.")
    lines = ["1 of 2 images are bad:", "  5.jpg (image id 5): it is torn", "Nothing was written. Replace them."]
    assert str(error).split("\n") == lines
    assert error.rejections == (TORN,)


def test_a_dead_process_names_the_images_it_may_have_died_of():
    message = str(WorkerDiedError(["1.jpg", "2.jpg", "3.jpg"], "ended with status 1"))
    assert message.startswith(
        "a checking process ended with status 1 while it worked on one of 3 images, 1.jpg to 3.jpg."
    )


def test_a_process_that_died_without_work_says_so():
    assert str(WorkerDiedError([], "ended with status 1")).endswith(
        "ended with status 1 before it had an image to check"
    )


@pytest.mark.parametrize("error", [ChangedImageError("5.jpg"), UnreadableImageError("5.jpg", "it is torn")])
def test_an_image_is_named_first(error):
    assert isinstance(error, PackError)
    assert str(error).startswith("image 5.jpg: it ")
