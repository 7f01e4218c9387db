"""The error tree of the format on disk.

Every class keeps what it speaks of in fields and words its own message::

    ShardsError
    |-- TarError            bytes of a tar are not what its headers promise      (url, offset, problem)
    |-- IndexFormatError    an index file cannot be trusted                      (url, problem)
    |-- ManifestError       a manifest cannot be trusted                         (url, problem)
    |-- MismatchError       files that do not belong together                    (url, problem)
    |-- ChecksumError       a part's bytes differ from the index                 (url, key, suffix, offset)
    |-- NameRuleError       a key, suffix or dataset name that readers refuse    (name, problem); also a ValueError
    |-- UrlError            a URL or pattern that names no shards                (url, problem); also a ValueError
    |-- StoreError          a store failed                                       (url, action, cause); also an OSError
    `-- OutputNotEmptyError a writer would mix with files already there          (url, names); also a FileExistsError

A file that does not exist is Python's own FileNotFoundError. All of them keep fields and message through pickle,
since they cross process borders.
"""

import errno
from collections.abc import Iterator, Mapping, Sequence

LINT_HINT = "the file was cut or changed after it was written: fetch or pack it again"
UPDATE_HINT = "update shardstream to read it"
_STORE_HINTS = {
    errno.ENOSPC: "make room there or choose another place",
    errno.EDQUOT: "make room there or choose another place",
    errno.EFBIG: "choose a place that takes larger files, or make them smaller",
    errno.EACCES: "check who may read and write there",
    errno.EPERM: "check who may read and write there",
}
_PLACES = frozenset({"endpoint_url", "region_name", "host", "cache_storage", "target_protocol"})
"""Storage options that tell where, which messages may repeat; any other may be a secret."""


class ShardsError(Exception):
    """Anything that shards/ refuses or cannot do."""


class TarError(ShardsError):
    """Bytes of a tar are not what its headers promise."""

    def __init__(self, url: str, offset: int, problem: str) -> None:
        super().__init__(url, offset, problem)
        self.url, self.offset, self.problem = url, offset, problem

    def __str__(self) -> str:
        return f"shard {self.url}: {self.problem} at byte {self.offset}; {LINT_HINT}"


class IndexFormatError(ShardsError):
    """An index file cannot be trusted; `advice` says what to do."""

    def __init__(self, url: str, problem: str, advice: str = LINT_HINT) -> None:
        super().__init__(url, problem, advice)
        self.url, self.problem, self.advice = url, problem, advice

    def __str__(self) -> str:
        return f"index {self.url}: {self.problem}; {self.advice}"


class ManifestError(ShardsError):
    """A manifest cannot be trusted; `advice` says what to do."""

    def __init__(self, url: str, problem: str, advice: str = LINT_HINT) -> None:
        super().__init__(url, problem, advice)
        self.url, self.problem, self.advice = url, problem, advice

    def __str__(self) -> str:
        return f"manifest {self.url}: {self.problem}; {self.advice}"


class MismatchError(ShardsError):
    """Two files that do not belong together: a shard and its index, or an index and the manifest."""

    def __init__(self, url: str, problem: str) -> None:
        super().__init__(url, problem)
        self.url, self.problem = url, problem

    def __str__(self) -> str:
        return f"{self.url}: {self.problem}; take shard, index and manifest from one packing"


class ChecksumError(ShardsError):
    """A part's bytes differ from the checksum in the index."""

    def __init__(self, url: str, key: str, suffix: str, offset: int) -> None:
        super().__init__(url, key, suffix, offset)
        self.url, self.key, self.suffix, self.offset = url, key, suffix, offset

    def __str__(self) -> str:
        return (
            f"shard {self.url}: part {self.key}.{self.suffix} at byte {self.offset} differs from its checksum "
            f"in the index; {LINT_HINT}"
        )


class NameRuleError(ShardsError, ValueError):
    """A key, suffix or dataset name that some reader of WebDataset tars would refuse or misread."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name, problem)
        self.name, self.problem = name, problem

    def __str__(self) -> str:
        return f"name {self.name!r}: {self.problem}; shards/FORMAT.md lists the rules"


class UrlError(ShardsError, ValueError):
    """A URL or brace pattern that cannot name shards; `problem` says what to write."""

    def __init__(self, url: str, problem: str) -> None:
        super().__init__(url, problem)
        self.url, self.problem = url, problem

    def __str__(self) -> str:
        return f"{self.url!r} {self.problem}"


class StoreError(ShardsError, OSError):
    """A store failed to do what it was asked to.

    As an OSError it also has `errno` (None where the store gave no number), `strerror` (the cause) and `filename`
    (the URL).
    """

    def __init__(self, url: str, action: str, cause: str, number: int | None = None) -> None:
        super().__init__(number, cause, url)  # OSError keeps only its own meaning of these
        self.url, self.action, self.cause = url, action, cause

    def __reduce__(self) -> tuple[type["StoreError"], tuple[str, str, str, int | None], dict[str, object]]:
        return StoreError, (self.url, self.action, self.cause, self.errno), self.__dict__

    def __str__(self) -> str:
        hint = _STORE_HINTS.get(self.errno or 0, "check the path or URL and its storage options")
        return f"{self.action} {self.url} failed: {self.cause}; {hint}"


class OutputNotEmptyError(ShardsError, FileExistsError):
    """A writer was pointed at a folder that already holds files."""

    def __init__(self, url: str, names: Sequence[str]) -> None:
        super().__init__(errno.EEXIST, "the output is not empty", url)  # OSError keeps only its own meaning of these
        self.url, self.names = url, tuple(names)

    def __reduce__(self) -> tuple[type["OutputNotEmptyError"], tuple[str, tuple[str, ...]], dict[str, object]]:
        return OutputNotEmptyError, (self.url, self.names), self.__dict__

    def __str__(self) -> str:
        shown = ", ".join(self.names[:3]) + (", ..." if len(self.names) > 3 else "")  # noqa: PLR2004 - a few show the kind
        return (
            f"output {self.url} is not empty ({len(self.names)} files: {shown}); "
            "choose an empty folder, or allow the writer to replace a former dataset of the same name"
        )


def secrets_in(options: Mapping[str, object]) -> tuple[str, ...]:
    """Return the strings in storage options that no message may hold, longest first."""
    return tuple(sorted(_strings(options), key=len, reverse=True))


def redact(text: str, secrets: Sequence[str]) -> str:
    """Return `text` with every secret in it replaced by `***`."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str) and value:
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if name not in _PLACES:
                yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
