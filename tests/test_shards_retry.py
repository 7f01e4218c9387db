"""Which failures are worth another try, and when it is made; with a clock that only waits move."""

import asyncio
import errno
import http.client
import socket
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import aiohttp
import botocore.exceptions
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shards.errors import StoreError
from shards.retry import (
    Attempts,
    Patience,
    ShortAnswerError,
    asked_to_wait,
    sleep_while_in_use,
    tells_absence,
    worth_another_try,
)


def web(status, **headers):
    return aiohttp.ClientResponseError(None, (), status=status, headers=headers)


def s3(status, code, **headers):
    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers}}
    return botocore.exceptions.ClientError(answer, "GetObject")


def caused(error, cause):
    """An error as client libraries raise it in place of another."""
    try:
        raise error from cause
    except type(error) as exc:
        return exc


PASSING = {
    "reset": ConnectionResetError(errno.ECONNRESET, "reset"),
    "refused": ConnectionRefusedError(),
    "pipe": BrokenPipeError(),
    "timeout": TimeoutError(),
    "socket timeout": socket.timeout(),  # noqa: UP041 - what old code raises
    "asyncio timeout": asyncio.TimeoutError(),  # noqa: UP041 - as above
    "unreachable": OSError(errno.EHOSTUNREACH, "no route"),
    "cut": asyncio.IncompleteReadError(b"", 5),
    "cut by http.client": http.client.IncompleteRead(b"", 5),
    "cut by aiohttp": aiohttp.ClientPayloadError(),
    "server gone": aiohttp.ServerDisconnectedError(),
    "connector": aiohttp.ClientConnectorError(None, OSError(errno.ECONNREFUSED, "refused")),
    "short": ShortAnswerError("3 bytes came"),
    "s3 endpoint": botocore.exceptions.EndpointConnectionError(endpoint_url="http://e"),
    "s3 read time-out": botocore.exceptions.ReadTimeoutError(endpoint_url="http://e"),
    "s3 cut": botocore.exceptions.IncompleteReadError(actual_bytes=1, expected_bytes=2),
    "SlowDown": s3(503, "SlowDown"),
    "code alone": s3(400, "RequestTimeout"),
    "absent only because refused": caused(FileNotFoundError("a"), ConnectionRefusedError()),
    "translated": caused(OSError(errno.EBUSY, "reduce your rate"), s3(503, "SlowDown")),
    **{f"HTTP {status}": web(status) for status in (408, 429, 500, 502, 503, 504)},
}
LASTING = {
    "absent": FileNotFoundError("a"),
    "denied": PermissionError("a"),
    "no space": OSError(errno.ENOSPC, "no space"),
    "wrong value": ValueError("a"),
    "ours": StoreError("u", "read", "c"),
    "AccessDenied": s3(403, "AccessDenied"),
    "NoSuchKey": s3(404, "NoSuchKey"),
    "untrusted certificate": caused(
        aiohttp.ClientConnectorError(None, OSError("certificate")), ssl.SSLCertVerificationError("self-signed")
    ),
    "absent for a reason": caused(FileNotFoundError("a"), web(404)),
    **{f"HTTP {status}": web(status) for status in (400, 401, 403, 404, 410, 416, 501)},
}


@pytest.mark.parametrize("error", PASSING.values(), ids=PASSING)
def test_what_may_pass_is_worth_another_try(error):
    assert worth_another_try(error)


@pytest.mark.parametrize("error", LASTING.values(), ids=LASTING)
def test_what_lasts_is_not(error):
    assert not worth_another_try(error)


def test_what_was_only_being_handled_is_not_the_cause():
    error = caused(ValueError("a"), None)
    error.__context__ = ConnectionResetError()
    assert error.__suppress_context__
    assert not worth_another_try(error)


def test_errors_that_lead_to_one_another_come_to_an_end():
    one, other = ValueError("a"), ValueError("b")
    one.__cause__, other.__cause__ = other, one
    assert not worth_another_try(one)


@pytest.mark.parametrize(
    "error", [FileNotFoundError("a"), web(404), web(410), s3(404, "NoSuchKey"), s3(400, "NoSuchBucket")]
)
def test_absence_is_told_in_several_ways(error):
    assert tells_absence(error)


@pytest.mark.parametrize("error", [web(403), web(503), s3(403, "AccessDenied"), OSError("a"), ConnectionResetError()])
def test_other_failures_are_no_absence(error):
    assert not tells_absence(error)


@pytest.mark.parametrize(
    ("said", "seconds"), [("7", 7), (" 12 ", 12), ("", 0), ("soon", 0), ("-3", 0), ("1.5", 0), ("٣", 0)]
)
def test_a_server_may_say_how_long_to_wait(said, seconds):
    assert asked_to_wait(web(503, **{"Retry-After": said})) == seconds
    assert asked_to_wait(s3(503, "SlowDown", **{"retry-after": said})) == seconds


def test_a_server_may_say_until_when_to_wait():
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    before = format_datetime(datetime.now(UTC) - timedelta(seconds=90), usegmt=True)
    assert 80 < asked_to_wait(web(503, **{"Retry-After": later})) <= 90
    assert asked_to_wait(web(503, **{"Retry-After": before})) == 0


class Clock:
    """Time that only sleeping, and what a try takes, move on."""

    def __init__(self):
        self.now, self.waits, self.told = 100.0, [], []

    def sleep(self, seconds):
        self.waits.append(seconds)
        self.now += seconds

    def attempts(self, patience, chance=lambda: 1.0):
        def tell(error, since, left):
            self.told.append((error, since, left))

        return Attempts(patience, tell=tell, clock=lambda: self.now, sleep=self.sleep, chance=chance)

    def until_it_gives_up(self, patience, error, *, each_s=0.0, **options):
        attempts = self.attempts(patience, **options)
        gave_up = False
        while not gave_up:
            self.now += each_s
            try:
                attempts.failed(error)
            except type(error) as exc:
                gave_up = exc is error
        return attempts


def test_waits_double_up_to_the_longest_and_end_with_the_time():
    clock = Clock()
    attempts = clock.until_it_gives_up(Patience(10.0, 0.5, 3.0), ConnectionResetError())
    assert clock.waits == [0.5, 1.0, 2.0, 3.0, 3.0, pytest.approx(0.5)]
    assert (attempts.tries, attempts.said) == (7, " (tried 7 times in 10.0 s)")
    assert [(since, left) for _, since, left in clock.told][:3] == [(0.0, 10.0), (0.5, 9.5), (1.5, 8.5)]


@settings(deadline=None)
@given(
    patience=st.builds(Patience, st.floats(0, 1000), st.floats(0.1, 10), st.floats(0.1, 100)),
    each_s=st.floats(0.1, 50),
    chance=st.floats(0, 0.999),
)
def test_whatever_a_try_takes_no_further_one_begins_behind_the_time(patience, each_s, chance):
    clock = Clock()
    begun = clock.now + each_s  # the first failure
    clock.until_it_gives_up(patience, TimeoutError(), each_s=each_s, chance=lambda: chance)
    assert clock.now - each_s <= begun + patience.total_s + 1e-6
    assert all(0 <= wait <= patience.most_s for wait in clock.waits)


def test_a_failure_that_lasts_is_raised_at_once():
    clock = Clock()
    attempts = clock.until_it_gives_up(Patience(), PermissionError("no"))
    assert (clock.waits, attempts.said) == ([], "")


def test_no_patience_is_one_try():
    clock = Clock()
    clock.until_it_gives_up(Patience(total_s=0.0), TimeoutError())
    assert clock.waits == []


def test_what_the_server_asks_for_is_waited_for():
    clock = Clock()
    clock.attempts(Patience(60.0)).failed(web(503, **{"Retry-After": "20"}))
    assert clock.waits == [20.0]


def test_a_server_that_asks_for_more_than_there_is_is_not_waited_for():
    clock = Clock()
    clock.until_it_gives_up(Patience(10.0), web(503, **{"Retry-After": "20"}))
    assert clock.waits == []


def test_after_some_success_the_time_begins_anew():
    clock = Clock()
    attempts = clock.attempts(Patience(10.0, 4.0, 4.0))
    for _ in range(5):
        attempts.failed(TimeoutError())
        attempts.failed(TimeoutError())
        attempts.progressed()
        assert attempts.said == ""
    assert clock.now == 140.0


def test_waits_of_several_are_spread():
    waits = set()
    for _ in range(20):
        clock = Clock()
        attempts = Attempts(Patience(60.0, 8.0), tell=lambda *_: None, clock=lambda: 0.0, sleep=clock.sleep)
        attempts.failed(TimeoutError())
        waits |= set(clock.waits)
    assert len(waits) > 15


def test_nobody_sleeps_longer_than_the_main_thread_lives(monkeypatch):
    ended = threading.Thread(target=int)
    ended.start()
    ended.join()
    monkeypatch.setattr(threading, "main_thread", lambda: ended)
    begin = time.monotonic()
    sleep_while_in_use(60.0)
    assert time.monotonic() - begin < 30
