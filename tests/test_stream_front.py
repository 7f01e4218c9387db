"""`import stream`: names that load at first use, and what stays unloaded."""

import pytest

import stream
from pictures import in_a_new_process


def test_the_names_are_sorted():
    assert stream.__all__ == sorted(stream.__all__)


def test_every_name_loads():
    for name in stream.__all__:
        assert getattr(stream, name).__name__ == name


def test_the_names_are_those_that_can_be_loaded():
    assert stream.__all__ == sorted(stream._HOME)
    assert dir(stream) == stream.__all__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'stream' has no attribute 'Nothing'"):
        stream.Nothing  # noqa: B018 - asking is the test


def test_an_unknown_name_cannot_be_imported():
    with pytest.raises(ImportError):
        from stream import Nothing  # noqa: F401


def test_the_front_loads_nothing_at_all():
    assert in_a_new_process("import stream, sys; print('torch' in sys.modules)") == "False\n"


def test_the_loader_loads_no_library_that_it_may_never_use():
    print_loaded = """
        import sys
        from stream import StreamLoader
        print(*sorted({"accelerate", "PIL", "s3fs", "fsspec", "webdataset", "torchvision"} & set(sys.modules)))
    """
    assert in_a_new_process(print_loaded) == "\n"


def test_a_loader_without_an_accelerator_never_loads_accelerate(tmp_path):
    from packed import make_packed

    url = make_packed(tmp_path, 4).url
    iterate = f"""
        import sys
        from stream import StreamLoader
        print(len(list(StreamLoader({url!r}, batch_size=2, image_size=16))), "accelerate" in sys.modules)
    """
    assert in_a_new_process(iterate) == "2 False\n"
