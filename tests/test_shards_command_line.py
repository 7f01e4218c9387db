"""What the commands share."""

import threading

import pytest

from shards.command_line import in_order, parser_of


def parse(*arguments: str):
    return parser_of("lint", "about").parse_args(arguments)


def test_the_defaults():
    found = parse("a.tar", "b.tar")
    assert (found.urls, found.json, found.storage_options, found.threads) == (["a.tar", "b.tar"], False, {}, 4)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "URL"),
        (("a", "--threads", "0"), "0 threads; give 1 to 256"),
        (("a", "--threads", "-1"), "is no whole number"),
        (("a", "--threads", "9" * 5000), "is no whole number"),
        (("a", "--storage-options", "{"), "no JSON object"),
        (("a", "--storage-options", "[1]"), "no JSON object"),
        (("a", "--thread", "1"), "unrecognized"),
    ],
)
def test_wrong_usage_ends_with_2(capsys, arguments, said):
    with pytest.raises(SystemExit) as caught:
        parse(*arguments)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


def test_a_secret_is_not_repeated(capsys):
    with pytest.raises(SystemExit):
        parse("a", "--storage-options", '{"secret": "hush"')
    assert "hush" not in capsys.readouterr().err


def test_storage_options_are_an_object():
    assert parse("a", "--storage-options", '{"anon": true}').storage_options == {"anon": True}


@pytest.mark.parametrize("threads", [1, 3, 20])
def test_results_come_in_order_and_few_are_made_ahead(threads):
    begun = []
    waits = [threading.Event() for _ in range(10)]

    def act(number):
        begun.append(number)
        if number % 3 == 1 and threads > 1:
            waits[number].wait(timeout=0.05)
        return number * 2

    found = in_order(act, range(10), threads=threads)
    assert next(found) == 0
    assert len(begun) <= threads + 1
    assert list(found) == [2 * number for number in range(1, 10)]


def test_an_error_comes_in_its_place():
    def act(number):
        return 1 // number

    found = in_order(act, [1, 0, 1], threads=2)
    assert next(found) == 1
    with pytest.raises(ZeroDivisionError):
        next(found)


def test_no_thread_stays_when_nobody_takes_the_rest():
    found = in_order(lambda number: number, range(100), threads=3)
    next(found)
    found.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("shards")]
