"""The error tree of shards/: what each error tells, and that it survives the way between processes."""

import copy
import errno
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from shards import errors
from shards.errors import (
    ChecksumError,
    IndexFormatError,
    ManifestError,
    MismatchError,
    NameRuleError,
    OutputNotEmptyError,
    ShardsError,
    StoreError,
    TarError,
    UrlError,
    redact,
    secrets_in,
)

EXAMPLES = [
    ShardsError("anything"),
    TarError("d/a-000000.tar", 512, "header checksum is wrong"),
    IndexFormatError("d/a-000000.tar.index", "it is cut"),
    IndexFormatError("d/a-000000.tar.index", "it is newer", "update"),
    ManifestError("d/manifest.json", "it is no JSON"),
    ManifestError("d/manifest.json", "it is newer", "update"),
    MismatchError("d/a-000000.tar", "it has 3 bytes, not 4"),
    ChecksumError("d/a-000000.tar", "000000000042", "jpg", 1536),
    NameRuleError("a.b", "no dots"),
    UrlError("a{.tar", "has a brace without its other half; close it"),
    StoreError("d/a-000000.tar", "read", "Input/output error"),
    StoreError("d/a-000000.tar.part", "write", "No space left on device", errno.ENOSPC),
    OutputNotEmptyError("d", ["a", "b", "c", "d"]),
]
FIELDS = (
    "url",
    "offset",
    "problem",
    "advice",
    "key",
    "suffix",
    "name",
    "names",
    "action",
    "cause",
    "errno",
    "filename",
)

examples = pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)


def told(error: BaseException) -> tuple[object, ...]:
    return type(error), str(error), *(getattr(error, field, None) for field in FIELDS)


def fail(error: Exception) -> None:
    raise error


def test_every_class_of_the_tree_has_an_example():
    classes = {thing for thing in vars(errors).values() if isinstance(thing, type) and issubclass(thing, ShardsError)}
    assert classes == {type(error) for error in EXAMPLES}


@examples
def test_pickle_keeps_type_message_and_fields(error):
    assert told(pickle.loads(pickle.dumps(error))) == told(error)


@examples
def test_copy_keeps_type_message_and_fields(error):
    assert told(copy.copy(error)) == told(error)


@examples
def test_pickle_keeps_notes(error):
    noted = copy.copy(error)
    noted.add_note("while packing")
    assert pickle.loads(pickle.dumps(noted)).__notes__ == ["while packing"]


def test_errors_cross_a_real_process_border():
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        for error in EXAMPLES:
            with pytest.raises(type(error)) as caught:
                pool.submit(fail, error).result()
            assert told(caught.value) == told(error)


@pytest.mark.parametrize("error", EXAMPLES[1:], ids=lambda error: type(error).__name__)
def test_a_message_tells_where_and_what_to_do(error):
    message = str(error)
    assert getattr(error, "url", None) or error.name in message
    assert "; " in message


def test_a_checksum_error_names_url_key_suffix_and_byte():
    message = str(ChecksumError("d/a-000000.tar", "000000000042", "jpg", 1536))
    assert all(word in message for word in ("d/a-000000.tar", "000000000042.jpg", "1536"))


def test_a_store_error_is_an_os_error_with_number_and_file_name():
    error = StoreError("d/x", "write", "No space left on device", errno.ENOSPC)
    assert isinstance(error, OSError)
    assert (error.errno, error.strerror, error.filename) == (errno.ENOSPC, "No space left on device", "d/x")


def test_a_store_error_without_a_number_has_none():
    assert StoreError("d/x", "write", "why").errno is None


def test_a_full_disk_is_told_with_what_helps():
    assert "make room" in str(StoreError("d/x", "write", "No space left on device", errno.ENOSPC))


def test_output_not_empty_is_a_file_exists_error():
    error = OutputNotEmptyError("d", ["a"])
    assert isinstance(error, FileExistsError)
    assert (error.errno, error.filename) == (errno.EEXIST, "d")


def test_output_not_empty_shows_three_names_and_the_count():
    message = str(OutputNotEmptyError("d", ["a", "b", "c", "e"]))
    assert "(4 files: a, b, c, ...)" in message


def test_a_name_rule_error_is_a_value_error():
    assert isinstance(NameRuleError("a.b", "no dots"), ValueError)


def test_secrets_are_found_in_nested_options():
    options = {"key": "AKIA", "client_kwargs": {"headers": ["tok"], "endpoint_url": "http://here"}, "anon": False}
    assert set(secrets_in(options)) == {"AKIA", "tok"}


def test_a_secret_that_holds_another_is_replaced_whole():
    secrets = secrets_in({"key": "AKIA", "secret": "AKIA-long"})
    assert redact("the secret is AKIA-long", secrets) == "the secret is ***"
