"""Plain WebDataset tars with an index and a manifest: write them, read their rows, from any store.

The names below load at first use (PEP 562). shards/FORMAT.md is the contract of the files.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shards.dataset import DatasetReader
    from shards.errors import ShardsError
    from shards.index import RowInfo, ShardIndex
    from shards.manifest import Manifest
    from shards.rows import ShardReader
    from shards.sample import Sample
    from shards.store import Store, open_store
    from shards.writer import ShardWriter

_HOME = {
    "DatasetReader": "dataset",
    "Manifest": "manifest",
    "RowInfo": "index",
    "Sample": "sample",
    "ShardIndex": "index",
    "ShardReader": "rows",
    "ShardWriter": "writer",
    "ShardsError": "errors",
    "Store": "store",
    "open_store": "store",
}

__all__ = [
    "DatasetReader",
    "Manifest",
    "RowInfo",
    "Sample",
    "ShardIndex",
    "ShardReader",
    "ShardWriter",
    "ShardsError",
    "Store",
    "open_store",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"shards.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
