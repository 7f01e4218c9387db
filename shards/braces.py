"""Brace patterns: `coco-{000000..000099}.tar` names a hundred shards."""

import re
from itertools import islice

from shards.errors import UrlError

MOST = 1_000_000
"""URLs that a pattern may name."""
_RANGE = re.compile(r"\{(-?[0-9]+)\.\.(-?[0-9]+)(?=\}|\.\.)")
_DIGITS = 18


def urls_of(pattern: str) -> list[str]:
    """Return the URLs behind a pattern, in its order; a URL without braces is its own.

    Raises:
        UrlError: its braces are not closed or name nothing, it names too much, or one thing twice.
    """
    if "{" not in pattern and "}" not in pattern:
        return [pattern]
    from braceexpand import braceexpand  # noqa: PLC0415 - only who uses a pattern pays for its import

    # braceexpand would make the whole range before it gives the first URL
    for start, end in _RANGE.findall(pattern):
        if max(len(start), len(end)) > _DIGITS or abs(int(end) - int(start)) >= MOST:
            raise UrlError(pattern, f"names more than {MOST:,} shards")
    try:
        urls = list(islice(braceexpand(pattern), MOST + 1))
    except ValueError as exc:
        raise UrlError(pattern, "has a brace without its other half") from exc
    if len(urls) > MOST:
        raise UrlError(pattern, f"names more than {MOST:,} shards")
    if any("{" in url or "}" in url for url in urls):
        raise UrlError(pattern, "has braces that name neither a range nor alternatives")
    if len(set(urls)) < len(urls):
        double = next(url for url in urls if urls.count(url) > 1)
        raise UrlError(pattern, f"names {double!r} more than once, so its samples would come twice")
    return urls
