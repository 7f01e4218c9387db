"""What the commands of `python -m shards` share: their options, shards in threads with results in order, and output."""

import argparse
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import msgspec

from shards.programs import write

A = TypeVar("A")
R = TypeVar("R")
_MOST_THREADS = 256


def parser_of(command: str, description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that all commands have."""
    parser = argparse.ArgumentParser(prog=f"python -m shards {command}", description=description, allow_abbrev=False)
    add = parser.add_argument
    add("urls", nargs="+", metavar="URL", help="a tar, a brace pattern of tars, a packed dataset's folder or manifest")
    add("--json", action="store_true", help="print one JSON document")
    add("--storage-options", type=_options, default={}, metavar="JSON", help="of the fsspec file system, as an object")
    add("--threads", type=_threads, default=4, help="shards that are read at the same time (default: 4)")
    return parser


def whole(text: str) -> int:
    """Read a whole number of the command line."""
    if not text.isascii() or not text.isdigit() or len(text) > 9:  # noqa: PLR2004 - more than anybody means
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number below 1,000,000,000")
    return int(text)


def in_order(act: Callable[[A], R], items: Iterable[A], *, threads: int) -> Iterator[R]:
    """Yield `act(item)` for each item in their order; few more are done than were taken."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix="shards")
    waiting: deque[Future[R]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(act, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def write_json(command: str, document: object) -> bool:
    """Write one JSON document, indented, to standard output; False where nobody reads it."""
    return write(command, msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n")


def _threads(text: str) -> int:
    if not 1 <= whole(text) <= _MOST_THREADS:
        raise argparse.ArgumentTypeError(f"{text} threads; give 1 to {_MOST_THREADS}")
    return int(text)


def _options(text: str) -> Mapping[str, object]:
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError) as exc:  # whose words have none of the text, which may hold secrets
        raise argparse.ArgumentTypeError(f'they are no JSON object such as {{"anon": true}} ({exc})') from exc
