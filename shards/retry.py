"""Which failures of a remote store are worth another try, and when. Pure but for the clock and the sleep it is given.

Client libraries wrap one another's errors, so an error is judged with all that caused it: fsspec's HTTP file system
makes a FileNotFoundError of a refused connection, s3fs an OSError of a 503. Known by their class names, since none of
these libraries is imported here: aiohttp's and botocore's; their HTTP status codes; S3's error codes; the operating
system's error numbers.

Waits grow by doubling and are drawn from the whole of `[0, limit)` ("full jitter": M. Brooker, Exponential Backoff And
Jitter, AWS Architecture Blog, 2015), so that ranks that failed together do not come back together. A server that says
how long to wait (Retry-After: RFC 9110, 10.2.3) is obeyed where that ends within the time.
"""

import errno
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

_STATUSES, _ABSENT = frozenset({408, 425, 429, 500, 502, 503, 504}), frozenset({404, 410})
_CODES = frozenset(
    {
        "InternalError",
        "OperationAborted",
        "RequestLimitExceeded",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
    }
)
_CLASSES = frozenset(
    {
        "ClientConnectionError",  # aiohttp, with all that derive from it
        "ClientPayloadError",
        "ServerDisconnectedError",
        "ConnectionClosedError",  # botocore and aiobotocore
        "ConnectTimeoutError",
        "EndpointConnectionError",
        "HTTPClientError",
        "IncompleteReadError",
        "ReadTimeoutError",
        "ResponseStreamingError",
        "FSTimeoutError",  # fsspec
        "IncompleteRead",  # http.client
        "ShortAnswerError",  # ours
    }
)
_NUMBERS = frozenset(
    {
        errno.EAGAIN,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.ENETUNREACH,
        errno.EPIPE,
        errno.ETIMEDOUT,
    }
)
_SLICE_S = 0.25
_CHANCE = random.Random()  # noqa: S311 - spreads waits; nobody's seed is touched


class ShortAnswerError(Exception):
    """A server's answer held fewer bytes than were asked for."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a store that fails is tried again.

    Attributes:
        total_s: Seconds from the first failure of a request to the last try; 0: never again.
        first_s: The longest first wait, in seconds; each further one may be twice as long.
        most_s: The longest wait.
    """

    total_s: float = 60.0
    first_s: float = 0.1
    most_s: float = 8.0


def worth_another_try(error: BaseException) -> bool:
    """Tell whether a request that failed so may succeed later: no answer, a broken one, or a server under strain."""
    causes = list(_causes(error))
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):  # told as a connection that failed
        return False
    return any(_passes(cause) for cause in causes)


def tells_absence(error: BaseException) -> bool:
    """Tell whether an error says that there is no such file."""
    if isinstance(error, FileNotFoundError) or _status(error) in _ABSENT:
        return True
    return _code(error) in {"NoSuchKey", "NoSuchBucket"}


def what_failed(error: BaseException) -> BaseException:
    """Return what an error is about: fsspec's web file system raises FileNotFoundError for whatever failed."""
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and cause is not None and not tells_absence(cause):
        return cause if _passes(cause) or _status(cause) is not None else error
    return error


def asked_to_wait(error: BaseException) -> float:
    """Return how many seconds a server asked to wait with the next request; 0 where it did not say."""
    return max((_retry_after(_headers(cause)) for cause in _causes(error)), default=0.0)


class Attempts:
    """The tries of one request. For one thread.

    Args:
        patience: How long to go on.
        tell: Called at each failure that is worth another try with the error, the seconds since the first, and those
            that are left.
        clock: Returns seconds.
        sleep: Waits for seconds.
        chance: Returns a number in [0, 1).
    """

    def __init__(
        self,
        patience: Patience,
        *,
        tell: Callable[[BaseException, float, float], None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] | None = None,
        chance: Callable[[], float] = _CHANCE.random,
    ) -> None:
        self._patience, self._tell, self._clock, self._chance = patience, tell, clock, chance
        self._sleep = sleep or sleep_while_in_use
        self._since: float | None = None
        self.tries = 1

    @property
    def said(self) -> str:
        """What to add to a message: how often it was tried and for how long; empty for a single try."""
        if self.tries == 1 or self._since is None:
            return ""
        return f" (tried {self.tries} times in {self._clock() - self._since:.1f} s)"

    def failed(self, error: Exception) -> None:
        """Wait before the next try.

        Raises:
            Exception: `error` itself: it is not worth one, or the time is up.
        """
        now = self._clock()
        since = self._since = now if self._since is None else self._since
        left = since + self._patience.total_s - now
        if left <= 0 or not worth_another_try(error):
            raise error
        limit = min(self._patience.most_s, self._patience.first_s * 2 ** min(self.tries - 1, 30))
        wait = max(limit * self._chance(), asked_to_wait(error))
        if wait > left:
            wait = left if asked_to_wait(error) <= left else 0.0
            if not wait:
                raise error
        self._tell(error, now - since, left)
        self._sleep(wait)
        self.tries += 1

    def progressed(self) -> None:
        """Note that some of the request succeeded: the time begins anew with the next failure."""
        self._since, self.tries = None, 1


def sleep_while_in_use(seconds: float) -> None:
    """Sleep, but no longer than the main thread lives: an interpreter that ends must not wait for a store."""
    until = time.monotonic() + seconds
    main = threading.main_thread()
    while main.is_alive() and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _SLICE_S))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all that led to it, each once."""
    seen: set[int] = set()
    found: list[BaseException | None] = [error]
    while found:
        one = found.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            found += [one.__cause__, None if one.__suppress_context__ else one.__context__]


def _passes(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | TimeoutError | EOFError):
        return True
    if isinstance(error, OSError) and error.errno in _NUMBERS:
        return True
    if any(kind.__name__ in _CLASSES for kind in type(error).__mro__):
        return True
    if _status(error) in _STATUSES:
        return True
    return _code(error) in _CODES


def _code(error: BaseException) -> Any:  # noqa: ANN401 - as below
    return _response(error).get("Error", {}).get("Code")


def _status(error: BaseException) -> Any:  # noqa: ANN401 - whatever a library calls so
    status = getattr(error, "status", None)
    return status if status is not None else _response(error).get("ResponseMetadata", {}).get("HTTPStatusCode")


def _response(error: BaseException) -> Mapping[str, Any]:
    """Return botocore's parsed answer, where the error has one."""
    response = getattr(error, "response", None)
    return response if isinstance(response, Mapping) else {}


def _headers(error: BaseException) -> Mapping[str, Any]:
    """Return the headers of the answer by their names in lower case."""
    headers = getattr(error, "headers", None) or _response(error).get("ResponseMetadata", {}).get("HTTPHeaders")
    return {str(name).lower(): value for name, value in headers.items()} if isinstance(headers, Mapping) else {}


def _retry_after(headers: Mapping[str, Any]) -> float:
    said = str(headers.get("retry-after", "")).strip()
    if said.isascii() and said.isdigit():
        return float(said)
    try:
        when = parsedate_to_datetime(said)
    except ValueError:
        return 0.0
    aware = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return max(0.0, (aware - datetime.now(UTC)).total_seconds())
