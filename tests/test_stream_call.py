"""What a StreamLoader is called with, checked by name."""

import pytest

from stream.call import check_call
from stream.collate import Hooks
from stream.errors import OptionError
from stream.options import StreamOptions


def test_the_options_are_given_back():
    options = StreamOptions(workers=1)
    assert check_call(options, Hooks(), "train") is options


def test_without_options_they_are_the_default_ones():
    assert check_call(None, Hooks(collate=list, transform=dict), "train") == StreamOptions()


@pytest.mark.parametrize("name", ["a", "train-2", "val.coco_2017", "n" * 64])
def test_a_name_that_can_be_part_of_a_files_name_is_good(name):
    assert check_call(None, Hooks(), name) == StreamOptions()


@pytest.mark.parametrize("name", ["", "n" * 65, "a/b", "a b", "train\n", None, 1])
def test_a_name_that_cannot_is_refused(name):
    with pytest.raises(OptionError, match="must be 1 to 64 letters") as caught:
        check_call(None, Hooks(), name)
    assert (caught.value.option, caught.value.got) == ("name", name)


@pytest.mark.parametrize("options", [{}, {"workers": 2}, StreamOptions, 0])
def test_options_of_another_kind_are_refused(options):
    with pytest.raises(OptionError, match="must be a StreamOptions"):
        check_call(options, Hooks(), "train")


@pytest.mark.parametrize("hook", ["collate", "transform"])
@pytest.mark.parametrize("value", [3, "collate", [len]])
def test_a_hook_that_cannot_be_called_is_refused(hook, value):
    with pytest.raises(OptionError, match="must be callable") as caught:
        check_call(None, Hooks(**{hook: value}), "train")
    assert (caught.value.option, caught.value.got) == (hook, value)
