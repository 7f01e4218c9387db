"""Stream image-caption shards into training under Hugging Face Accelerate.

The names below load at first use (PEP 562); `from stream import StreamLoader` is all that most scripts need.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stream.device import normalize
    from stream.errors import (
        DecodeError,
        NotPreparedError,
        OptionError,
        RankError,
        SourceError,
        StreamError,
        WaitError,
    )
    from stream.installation import install, installed
    from stream.keep import IndexRows, key_split
    from stream.loader import StreamLoader
    from stream.mixed import StreamMix
    from stream.options import StreamOptions
    from stream.sharded import ShardDataset
    from stream.stats import Stats

_HOME = {
    "DecodeError": "errors",
    "IndexRows": "keep",
    "NotPreparedError": "errors",
    "OptionError": "errors",
    "RankError": "errors",
    "ShardDataset": "sharded",
    "SourceError": "errors",
    "Stats": "stats",
    "StreamError": "errors",
    "StreamLoader": "loader",
    "StreamMix": "mixed",
    "StreamOptions": "options",
    "WaitError": "errors",
    "install": "installation",
    "installed": "installation",
    "key_split": "keep",
    "normalize": "device",
}

__all__ = [
    "DecodeError",
    "IndexRows",
    "NotPreparedError",
    "OptionError",
    "RankError",
    "ShardDataset",
    "SourceError",
    "Stats",
    "StreamError",
    "StreamLoader",
    "StreamMix",
    "StreamOptions",
    "WaitError",
    "install",
    "installed",
    "key_split",
    "normalize",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"stream.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
