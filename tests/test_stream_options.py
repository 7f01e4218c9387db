"""Options are checked once, before anything starts."""

from dataclasses import FrozenInstanceError, fields
from typing import get_args

import pytest

from stream.combinations import check_combination
from stream.errors import OptionError
from stream.options import BatchSpec, StreamOptions

BOTH = pytest.mark.parametrize("kind", [BatchSpec, StreamOptions])
SPEC = {f.name for f in fields(BatchSpec)}


def make(**options):
    """The object that holds these options, which are all of one kind."""
    if set(options) <= SPEC:
        return BatchSpec(**{"batch_size": 8, **options})
    return StreamOptions(**options)


def test_the_defaults():
    kept = {f.name: getattr(made, f.name) for made in (make(), StreamOptions()) for f in fields(made)}
    assert kept == {
        "batch_size": 8,
        "image_size": None,
        "captions": "first",
        "shuffle": "window",
        "seed": 0,
        "drop_last": False,
        "keep": None,
        "limit": None,
        "parts": None,
        "resize": "cover_crop",
        "interpolation": "bilinear",
        "window_shards": 4,
        "workers": 0,
        "prefetch_steps": 2,
        "pin_memory": True,
        "decode_threads": None,
        "read_ahead_bytes": 256 * 2**20,
        "max_pixels": None,
        "transport": "ours",
        "decode_on": None,
        "decode_in": "thread",
        "same_rows": True,
        "warn_after_s": 30.0,
        "timeout_s": None,
        "port": 0,
        "same_host": True,
        "on_error": "raise",
        "bad_rows_limit": 0.01,
        "retry_s": 60.0,
        "verify": True,
    }


def test_no_option_is_in_both():
    assert SPEC.isdisjoint(f.name for f in fields(StreamOptions))


@BOTH
def test_each_option_is_described(kind):
    assert [f.name for f in fields(kind) if f"\n        {f.name}: " not in kind.__doc__] == []


def test_they_are_frozen():
    with pytest.raises(FrozenInstanceError):
        make().batch_size = 9
    with pytest.raises(FrozenInstanceError):
        StreamOptions().workers = 9


def test_the_batch_size_has_no_default():
    with pytest.raises(TypeError, match="batch_size"):
        BatchSpec()


@pytest.mark.parametrize(("given", "kept"), [(224, (224, 224)), ((200, 300), (200, 300)), (None, None)])
def test_one_number_is_a_square(given, kept):
    options = make(image_size=given)
    assert options.image_size == kept
    assert options.height_width == kept


GOOD = [
    *[("resize", value) for value in ("cover_crop", "contain_pad", "squash")],
    *[("interpolation", value) for value in ("bilinear", "bicubic")],
    *[("captions", value) for value in ("first", "random", "all", "each")],
    *[("shuffle", value) for value in (None, "window", "full")],
    ("batch_size", 1),
    ("batch_size", None),
    ("window_shards", 1),
    ("seed", 2**63 - 1),
    ("drop_last", True),
    *[("keep", value) for value in (None, len, {"a"}, ["a", "b"], ())],
    *[("limit", value) for value in (None, 1)],
    *[("parts", value) for value in (None, ("txt",), ("jpg", "txt"))],
    ("workers", 4),
    ("prefetch_steps", 2),
    ("pin_memory", False),
    ("decode_threads", 1),
    ("read_ahead_bytes", 1),
    ("max_pixels", 1),
    *[("transport", value) for value in ("ours", "stock")],
    *[("decode_on", value) for value in (None, "ranks", "reader")],
    *[("decode_in", value) for value in ("thread", "process")],
    ("same_rows", False),
    *[("warn_after_s", value) for value in (1, 0.5)],
    *[("timeout_s", value) for value in (None, 1, 0.5)],
    *[("port", value) for value in (0, 1, 65535)],
    ("same_host", False),
    *[("on_error", value) for value in ("raise", "substitute")],
    *[("bad_rows_limit", value) for value in (1, 10, 0.001, 1.0)],
    *[("retry_s", value) for value in (0, 1, 7.5)],
    ("verify", False),
]


@pytest.mark.parametrize(("name", "value"), GOOD)
def test_good_values_are_kept(name, value):
    assert getattr(make(**{name: value}), name) == value


FLAGS = ("drop_last", "pin_memory", "verify", "same_rows", "same_host")
BAD = [
    *[("batch_size", value) for value in (0, -1, True, 8.0, "8")],
    *[("image_size", value) for value in (0, True, 224.0, (224,), (224, 0), (1, 2, 3), [224, 224], "224")],
    *[("resize", value) for value in ("crop", None, ["squash"])],
    *[("interpolation", value) for value in ("nearest", 2)],
    *[("captions", value) for value in ("last", None, True)],
    *[("shuffle", value) for value in (True, False, "none", 1)],
    *[("window_shards", value) for value in (0, 4.0, None, True)],
    *[("seed", value) for value in (-1, 2**63, None, 0.0, False)],
    *[("on_error", value) for value in ("skip", None, True)],
    *[("bad_rows_limit", value) for value in (0, -1, 0.0, 1.5, True, None, "1")],
    *[("retry_s", value) for value in (-1, float("inf"), float("nan"), None, "1", False)],
    *[("keep", value) for value in (1, "key", b"key", True, [1], [["a"]])],
    *[("limit", value) for value in (0, 1.0, True, "1")],
    *[("parts", value) for value in ("txt", (), ["txt"], (1,))],
    *[(name, value) for name in FLAGS for value in (0, 1, None, "yes")],
    *[("workers", value) for value in (-1, True, None)],
    *[("prefetch_steps", value) for value in (0, True, None)],
    *[("decode_threads", value) for value in (0, True, "2")],
    *[("read_ahead_bytes", value) for value in (0, 1e6, None)],
    *[("max_pixels", value) for value in (0, float("inf"))],
    *[("transport", value) for value in ("ring", None)],
    *[("decode_on", value) for value in ("rank", True, ["ranks"])],
    *[("decode_in", value) for value in ("threads", None)],
    *[("warn_after_s", value) for value in (0, -1, True, None, "30", float("inf"), float("nan"))],
    *[("timeout_s", value) for value in (0, -1, True, "30", float("inf"), float("nan"))],
    *[("port", value) for value in (-1, 65536, True, None, 80.0)],
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_value_is_refused_with_its_name_and_what_is_allowed(name, value):
    with pytest.raises(OptionError) as caught:
        make(**{name: value})
    assert (caught.value.option, caught.value.got) == (name, value)
    assert caught.value.problem.startswith("must be ")


def test_the_message_says_what_to_write():
    with pytest.raises(OptionError) as caught:
        make(captions="last")
    assert str(caught.value) == 'captions=\'last\': must be one of "first", "random", "all", "each"'
    with pytest.raises(OptionError) as caught:
        make(shuffle=True)
    assert str(caught.value) == 'shuffle=True: must be one of "window", "full", or None for storage order'
    with pytest.raises(OptionError) as caught:
        make(batch_size=0)
    assert str(caught.value) == (
        "batch_size=0: must be a whole number of rows, 1 or more, or None for a source that gives finished batches"
    )


def test_one_step_ahead_is_enough_for_the_stock_transport_only():
    assert make(prefetch_steps=1, transport="stock").prefetch_steps == 1
    with pytest.raises(OptionError, match=r'prefetch_steps=1: transport "ours" .* use 2 or more'):
        make(prefetch_steps=1)


def test_every_option_has_a_good_and_a_bad_value_among_the_cases():
    names = SPEC | {f.name for f in fields(StreamOptions)}
    assert {name for name, _ in BAD} == names
    assert {name for name, _ in GOOD} == names - {"image_size"}  # which is converted, see above


def test_resize_has_the_same_words_where_it_is_done():
    from stream import options
    from stream.resize import ResizeSpec

    hints = {f.name: f.type for f in fields(ResizeSpec)}
    assert get_args(hints["mode"]) == get_args(options.Resize)
    assert get_args(hints["interpolation"]) == get_args(options.Interpolation)


CAPTIONS = pytest.mark.parametrize("captions", ["first", "random", "all"])
MODES = pytest.mark.parametrize("mode", ["dispatch", "shard"])


@MODES
@pytest.mark.parametrize("captions", ["first", "random", "all", "each"])
@pytest.mark.parametrize("shuffle", [None, "window", "full"])
def test_packed_shards_work_in_every_combination(mode, captions, shuffle):
    check_combination(make(captions=captions, shuffle=shuffle), mode=mode, indexed=True, rows=True)


@MODES
@CAPTIONS
@pytest.mark.parametrize("shuffle", [None, "window", "full"])
def test_a_map_style_dataset_works_but_for_caption_rows(mode, captions, shuffle):
    check_combination(make(captions=captions, shuffle=shuffle), mode=mode, indexed=False, rows=True)


@CAPTIONS
@pytest.mark.parametrize("shuffle", [None, "window"])
def test_a_sequence_works_in_dispatch_mode_in_its_own_order(captions, shuffle):
    check_combination(make(captions=captions, shuffle=shuffle), mode="dispatch", indexed=False, rows=False)


@pytest.mark.parametrize(
    ("options", "mode", "rows", "refused"),
    [
        ({}, "shard", False, "mode='shard': every rank"),
        ({"shuffle": "full"}, "dispatch", False, "shuffle='full': permuted rows"),
        ({"captions": "each"}, "dispatch", False, "captions='each': rows of single captions"),
        ({"captions": "each"}, "dispatch", True, "captions='each': rows of single captions"),
        ({"captions": "each"}, "shard", True, "captions='each': rows of single captions"),
    ],
)
def test_what_the_source_cannot_give_is_refused(options, mode, rows, refused):
    with pytest.raises(OptionError, match=f"^{refused}.*this source.*tools/pack_coco.py"):
        check_combination(make(**options), mode=mode, indexed=False, rows=rows)


@pytest.mark.parametrize("mode", ["dispatch", "shard"])
def test_any_choice_of_packed_shards_works(mode):
    check_combination(make(keep=len, limit=3, parts=("txt",)), mode=mode, indexed=True, rows=True)
    check_combination(make(limit=3), mode=mode, indexed=False, rows=True)


@pytest.mark.parametrize(
    ("options", "rows", "problem"),
    [
        ({"keep": ["a"]}, True, "rows are chosen from the index"),
        ({"parts": ("txt",)}, True, "members are found by the index"),
        ({"limit": 3}, False, "end it in the source itself"),
    ],
)
def test_a_choice_that_the_source_cannot_make_is_refused(options, rows, problem):
    with pytest.raises(OptionError, match=problem) as caught:
        check_combination(make(**options), mode="dispatch", indexed=False, rows=rows)
    assert [caught.value.option] == list(options)
