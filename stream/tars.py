"""Tars by their names: one tar, or a brace pattern of several such as `coco-{000000..000099}.tar`."""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from torch.utils.data import IterableDataset

from shards.braces import urls_of
from shards.errors import UrlError
from stream.errors import OptionError, SourceError

SUFFIXES = (".tar", ".tar.gz", ".tgz")


def names_tars(url: str) -> bool:
    """Tell whether a URL names tars, and not a packed dataset."""
    return url.endswith(SUFFIXES) or "{" in url or "}" in url


class Tars(IterableDataset[Any]):
    """The samples of some tars, undecoded, tar by tar in their order; read by webdataset.

    A sample is a dict of its key ("__key__"), its tar ("__url__") and its parts by suffix (bytes). In torch's worker
    processes each worker gets every n-th tar. Nothing is opened before it is iterated.

    Raises:
        OptionError: the pattern cannot be meant like that.
        FileNotFoundError, SourceError: from iterating: there is no such tar, or no way to open it.
    """

    def __init__(self, pattern: str) -> None:
        super().__init__()
        self.pattern, self.urls = pattern, expand(pattern)

    def __iter__(self) -> Iterator[Any]:
        import webdataset  # noqa: PLC0415 - only who uses it pays for its import
        from webdataset.tariterators import group_by_keys, tar_file_expander  # noqa: PLC0415

        stages = (webdataset.SimpleShardList(self.urls), webdataset.split_by_worker, _opened)
        return iter(webdataset.DataPipeline(*stages, tar_file_expander, group_by_keys))


def expand(pattern: str) -> list[str]:
    """Return the URLs behind a pattern, in its order.

    Raises:
        OptionError: its braces are not closed or name nothing, it names no tars, too many, or one twice.
    """
    try:
        urls = urls_of(pattern)
    except UrlError as exc:
        raise OptionError("source", pattern, f"{exc.problem}; {_RIGHT}") from exc.__cause__
    _check(pattern, urls)
    return urls


_RIGHT = "write one tar (path.tar) or a pattern such as coco-{000000..000099}.tar"


def _check(pattern: str, urls: list[str]) -> None:
    for url in urls:
        if not url.endswith(SUFFIXES):
            problem = f"names {url!r}, which is no tar; {_RIGHT}, or give the folder of a packed dataset"
            raise OptionError("source", pattern, problem)
        if url.startswith("pipe:"):
            raise OptionError("source", pattern, "is a command; give a webdataset.WebDataset that runs it")


def _opened(shards: Iterator[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Open each tar and close it again, which webdataset leaves to the garbage collection."""
    from webdataset.gopen import gopen, gopen_schemes  # noqa: PLC0415 - as above

    for shard in shards:
        scheme = urlsplit(shard["url"]).scheme
        if scheme not in {"", "file", *gopen_schemes}:
            problem = f"webdataset cannot open {scheme}:// by itself; give a webdataset.WebDataset over pipe: URLs"
            raise SourceError(shard["url"], f"{problem}, or pack the data with tools/pack_coco.py")
        with gopen(shard["url"]) as opened:
            yield {**shard, "stream": opened}
