"""The error tree of the format on disk.

Every class keeps what it speaks of in fields and words its own message::

    ShardsError
    |-- TarError            bytes of a tar are not what its headers promise      (url, offset, problem)
    |-- IndexFormatError    an index file cannot be trusted                      (url, problem)
    |-- ManifestError       a manifest cannot be trusted                         (url, problem)
    |-- MismatchError       files that do not belong together                    (url, problem)
    |-- ChecksumError       a part's bytes differ from the index                 (url, key, suffix, offset)
    |-- NameRuleError       a key, suffix or dataset name that readers refuse    (name, problem); also a ValueError
    |-- StoreError          a store failed                                       (url, action, cause); also an OSError
    `-- OutputNotEmptyError a writer would mix with files already there          (url, names); also a FileExistsError

A file that does not exist is Python's own FileNotFoundError.
"""

from collections.abc import Sequence

LINT_HINT = "the file was cut or changed after it was written: fetch or pack it again"


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
    """An index file cannot be trusted."""

    def __init__(self, url: str, problem: str) -> None:
        super().__init__(url, problem)
        self.url, self.problem = url, problem

    def __str__(self) -> str:
        return f"index {self.url}: {self.problem}; {LINT_HINT}"


class ManifestError(ShardsError):
    """A manifest cannot be trusted."""

    def __init__(self, url: str, problem: str) -> None:
        super().__init__(url, problem)
        self.url, self.problem = url, problem

    def __str__(self) -> str:
        return f"manifest {self.url}: {self.problem}; write it again with tools/pack_coco.py"


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


class StoreError(ShardsError, OSError):
    """A store failed to do what it was asked to."""

    def __init__(self, url: str, action: str, cause: str) -> None:
        super().__init__(url, action, cause)
        self.url, self.action, self.cause = url, action, cause

    def __str__(self) -> str:
        return f"{self.action} {self.url} failed: {self.cause}"


class OutputNotEmptyError(ShardsError, FileExistsError):
    """A writer was pointed at a folder that already holds files."""

    def __init__(self, url: str, names: Sequence[str]) -> None:
        super().__init__(url, tuple(names))
        self.url, self.names = url, tuple(names)

    def __str__(self) -> str:
        shown = ", ".join(self.names[:3]) + (", ..." if len(self.names) > 3 else "")  # noqa: PLR2004 - a few show the kind
        return (
            f"output {self.url} is not empty ({len(self.names)} files: {shown}); "
            "choose an empty folder, or allow the writer to replace a former dataset of the same name"
        )
