"""Errors that were raised on one rank and are raised on all."""

import builtins
import errno
import inspect

import msgspec
import pytest

import shards.errors
import stream.errors
from shards.errors import ChecksumError, NameRuleError, OutputNotEmptyError, StoreError, TarError
from stream.carry import Carried, carried, raised
from stream.errors import DecodeError, NotPreparedError, OptionError, RankError, SourceError


def sent(error, *, rank=1, step=7):
    """What arrives after the trip through msgspec, raised for real first."""
    try:
        raise error  # noqa: TRY301 - its traceback is what is looked at
    except BaseException as caught:  # noqa: BLE001 - KeyboardInterrupt among them
        message = msgspec.msgpack.encode(carried(caught, rank=rank, step=step))
    return raised(msgspec.msgpack.decode(message, type=Carried))


OURS = [
    OptionError("batch_size", 0, "must be at least 1"),
    OptionError("mean", (0.1, [0.2, None]), "is odd"),
    NotPreparedError("train", 2, "WORLD_SIZE is 2"),
    SourceError("s3://b/coco", "no manifest.json in it"),
    DecodeError("000000391895.jpg", "empty file"),
    RankError(3, 9, "its collate returned 3 rows instead of 4"),
    TarError("a.tar", 512, "header checksum is wrong"),
    ChecksumError("a.tar", "key", "jpg", 1_536),
    NameRuleError("a b", "has a space"),
    StoreError("s3://b/x", "read", "no space", errno.ENOSPC),
    StoreError("s3://b/x", "read", "time-out"),
    OutputNotEmptyError("out", ["a", "b"]),
]


@pytest.mark.parametrize("error", OURS, ids=lambda error: type(error).__name__)
def test_an_error_of_ours_keeps_class_fields_and_text(error):
    back = sent(error)
    assert type(back) is type(error)
    assert str(back) == str(error)
    fields = dict(vars(back))
    fields.pop("__notes__")
    assert fields == vars(error)
    assert getattr(back, "errno", None) == getattr(error, "errno", None)


def classes_of_ours():
    for module in (stream.errors, shards.errors):
        for _, found in inspect.getmembers(module, inspect.isclass):
            if issubclass(found, Exception) and "__init__" in vars(found):
                yield found


@pytest.mark.parametrize("kind", list(classes_of_ours()), ids=lambda kind: kind.__name__)
def test_every_class_of_ours_arrives_as_itself(kind):
    example = next((error for error in OURS if type(error) is kind), None)
    fields = [value.annotation for value in inspect.signature(kind).parameters.values()]
    error = example or kind(*({int: 3, float: 1.5}.get(field, "x") for field in fields))
    assert type(sent(error)) is kind
    assert str(sent(error)) == str(error)


PYTHONS = [
    ValueError("bad"),
    TypeError(),
    RuntimeError("out of\nluck"),
    KeyError("key"),
    KeyError((1, "a")),
    IndexError(3),
    FileNotFoundError(errno.ENOENT, "No such file or directory", "a.tar"),
    OSError(errno.EIO, "Input/output error", "a.tar", None, "b.tar"),
    OSError("only text"),
    ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
    TimeoutError("late"),
    MemoryError(),
    KeyboardInterrupt(),
    ZeroDivisionError("division by zero"),
    NotImplementedError("later"),
    AssertionError([1, (2, b"x")]),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    Exception("plain"),
    UserWarning("raised by a filter"),
]


@pytest.mark.parametrize("error", PYTHONS, ids=repr)
def test_an_error_of_python_keeps_class_arguments_and_text(error):
    back = sent(error)
    assert type(back) is type(error)
    assert back.args == error.args
    assert str(back) == str(error)
    assert getattr(back, "filename2", None) == getattr(error, "filename2", None)


class ForeignError(Exception):
    pass


class NearError(SourceError):
    """A subclass of ours that only its own program knows."""


class MuteError(Exception):
    def __str__(self):
        raise RuntimeError("no words")

    def __reduce__(self):
        raise RuntimeError("no parts")


FOREIGN = [
    (ForeignError("lost"), "test_stream_carry.ForeignError: lost (raised at "),
    (NearError("here", "gone"), "test_stream_carry.NearError: here: gone (raised at "),
    (MuteError(), "test_stream_carry.MuteError: <its text cannot be had: RuntimeError> (raised at "),
    (StopIteration(3), "StopIteration: 3 (raised at "),
    (StopAsyncIteration(), "StopAsyncIteration:  (raised at "),
    (SystemExit(0), "SystemExit: 0 (raised at "),
    (GeneratorExit(), "GeneratorExit:  (raised at "),
    (ExceptionGroup("many", [ValueError(1)]), "ExceptionGroup: many (1 sub-exception) (raised at "),
    (SyntaxError("bad", ("a.py", 1, 2, "x", 1, 2)), "SyntaxError: bad (a.py, line 1) (raised at "),
    (ValueError(ForeignError("inner")), "ValueError: inner (raised at "),
    (ValueError(bytes(100_000)), "ValueError: b'\\x00"),
]


@pytest.mark.parametrize(("error", "text"), FOREIGN, ids=lambda value: type(value).__name__)
def test_any_other_error_is_told_in_words(error, text):
    back = sent(error, rank=2, step=5)
    assert type(back) is RankError
    assert (back.rank, back.step) == (2, 5)
    assert back.problem.startswith(text)
    assert len(back.problem) < 17_000


def test_every_error_of_python_arrives_as_itself_or_as_a_rank_error():
    kinds = [kind for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, BaseException)]
    assert len(kinds) > 60
    for kind in kinds:
        if not issubclass(kind, BaseExceptionGroup | UnicodeError):
            assert type(sent(kind("a"))) in (kind, RankError)


def test_an_error_says_where_it_was_raised():
    (note,) = sent(ValueError("bad"), rank=3, step=11).__notes__
    assert note.startswith("on rank 3, at step 11; raised at tests/test_stream_carry.py:")
    assert note.endswith(" in sent")


def test_the_place_is_the_innermost_call():
    def inner():
        return int("x")

    try:
        inner()
    except ValueError as caught:
        told = carried(caught, rank=0, step=0)
    assert told.notes[0].endswith("in inner")
    assert told.text.endswith("in inner)")


def test_an_error_that_was_never_raised_has_no_place():
    told = carried(ForeignError("x"), rank=0, step=2)
    assert told.notes == ["on rank 0, at step 2"]
    assert told.text == "test_stream_carry.ForeignError: x"


def test_notes_of_the_error_come_along_before_ours():
    error = ValueError("bad")
    error.add_note("worker 3")
    notes = sent(error).__notes__
    assert notes[0] == "worker 3"
    assert notes[1].startswith("on rank 1")


def test_the_causes_are_told_in_notes():
    error, middle = SourceError("a.tar", "cannot be read"), OSError(errno.EIO, "Input/output error")
    error.__cause__, middle.__cause__ = middle, ForeignError("cable")
    notes = sent(error).__notes__
    assert notes[1:] == [
        "caused by OSError: [Errno 5] Input/output error",
        "caused by test_stream_carry.ForeignError: cable",
    ]


def test_causes_in_a_ring_end():
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert len(carried(first, rank=0, step=0).notes) == 2


def test_an_argument_that_cannot_travel_still_shows():
    back = sent(OptionError("collate", ForeignError, "must be a function"))
    assert type(back) is OptionError
    assert str(back) == str(OptionError("collate", ForeignError, "must be a function"))
    assert repr(back.got) == repr(ForeignError)


def test_a_number_beyond_64_bits_still_shows():
    assert str(sent(OptionError("seed", 2**100, "is too large"))) == f"seed={2**100}: is too large"


def test_text_with_half_a_surrogate_pair_is_sent_readably():
    back = sent(SourceError("a\udc80.tar", "is gone"))
    assert type(back) is SourceError
    assert str(back) == "a\\udc80.tar: is gone"


def test_a_message_of_an_unknown_class_becomes_a_rank_error():
    for kind in (("os", "system"), ("stream.errors", "NoSuchError"), ("builtins", "print")):
        back = raised(Carried(kind, ["a"], 1, 2, "words", ["note"]))
        assert type(back) is RankError
        assert str(back) == "rank 1, step 2: words"
        assert back.__notes__ == ["note"]


def test_arguments_that_do_not_fit_the_class_become_a_rank_error():
    assert type(raised(Carried(("stream.errors", "SourceError"), ["a"], 1, 2, "words", []))) is RankError


def test_each_rank_gets_an_error_of_its_own():
    told = carried(ValueError("bad"), rank=0, step=0)
    assert raised(told) is not raised(told)
    assert raised(told).__notes__ == raised(told).__notes__
