"""stream/errors.py: each error keeps its fields, words its message, and survives pickling."""

import inspect
import pickle

import pytest

import stream.errors
from stream.errors import (
    BadRowError,
    DecodeError,
    LinkError,
    NotPreparedError,
    OptionError,
    RankError,
    SlabError,
    SourceError,
    StreamError,
    WaitError,
)

CASES = [
    (
        BadRowError(17, "image 7.jpg: empty file"),
        {"position": 17, "problem": "image 7.jpg: empty file"},
        "row at position 17 is bad: image 7.jpg: empty file",
    ),
    (
        OptionError("batch_size", 0, "must be at least 1"),
        {"option": "batch_size", "got": 0, "problem": "must be at least 1"},
        "batch_size=0: must be at least 1",
    ),
    (
        NotPreparedError("train", 2, "WORLD_SIZE is 2"),
        {"loader": "train", "ranks": 2, "problem": "WORLD_SIZE is 2"},
        (
            "loader 'train' in a job of 2 processes: WORLD_SIZE is 2; write "
            "StreamLoader(..., accelerator=accelerator) and pass it through accelerator.prepare()"
        ),
    ),
    (
        SourceError("s3://b/coco", "no manifest.json in it"),
        {"where": "s3://b/coco", "problem": "no manifest.json in it"},
        "s3://b/coco: no manifest.json in it",
    ),
    (
        DecodeError("000000391895.jpg", "empty file"),
        {"name": "000000391895.jpg", "problem": "empty file"},
        "image 000000391895.jpg: empty file; replace the image or leave it out",
    ),
    (
        RankError(1, 7, "its collate returned 3 rows instead of 4"),
        {"rank": 1, "step": 7, "problem": "its collate returned 3 rows instead of 4"},
        "rank 1, step 7: its collate returned 3 rows instead of 4",
    ),
    (
        SlabError("memory file 2, byte 64", "expected span 5, found 9"),
        {"where": "memory file 2, byte 64", "problem": "expected span 5, found 9"},
        "memory file 2, byte 64: expected span 5, found 9",
    ),
    (
        LinkError(3, "the other side has closed it"),
        {"peer": 3, "problem": "the other side has closed it"},
        "link to rank 3: the other side has closed it",
    ),
    (
        WaitError(1, 4, 2.5, "stream-feed: in select"),
        {"rank": 1, "step": 4, "seconds": 2.5, "stacks": "stream-feed: in select"},
        "rank 1 has waited 2.5 s for step 4, more than timeout_s allows; its threads:\nstream-feed: in select",
    ),
]
IDS = [type(error).__name__ for error, _, _ in CASES]


@pytest.mark.parametrize(("error", "fields", "message"), CASES, ids=IDS)
def test_an_error_words_its_message_out_of_its_fields(error, fields, message):
    assert vars(error) == fields
    assert str(error) == message


@pytest.mark.parametrize("error", [case[0] for case in CASES], ids=IDS)
def test_an_error_survives_pickling(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)


def test_every_error_of_the_file_is_a_stream_error_and_is_drawn_in_the_tree():
    classes = [found for _, found in inspect.getmembers(stream.errors, inspect.isclass)]
    assert len(classes) >= 6
    for found in classes:
        assert issubclass(found, StreamError)
        assert found.__name__ in stream.errors.__doc__


def test_every_error_of_the_file_is_among_the_cases():
    classes = {found for _, found in inspect.getmembers(stream.errors, inspect.isclass)}
    assert classes - {StreamError} == {type(error) for error, _, _ in CASES}


def test_a_wrong_option_is_a_value_error():
    assert issubclass(OptionError, ValueError)


def test_a_loader_that_was_not_prepared_is_a_runtime_error():
    assert issubclass(NotPreparedError, RuntimeError)
