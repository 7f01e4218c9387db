"""Values as one piece of bytes, for what travels beside a step or stands in a checkpoint. Never pickle."""

from typing import Any

import numpy as np

from stream.owning import owned
from stream.wire import pack, unpack, write

_HEAD = 8


def to_bytes(value: object) -> bytes:
    """Return plain values, tensors and containers of them as bytes.

    Raises:
        SourceError: it holds what cannot be carried; names where, beginning with "batch".
    """
    packed = pack(value)
    body = np.empty(packed.size, dtype=np.uint8)
    write(packed, body)
    return len(packed.header).to_bytes(_HEAD, "little") + packed.header + body.tobytes()


def from_bytes(data: bytes) -> Any:  # noqa: ANN401 - whatever was packed
    """Return the value behind `to_bytes`, its tensors with storage of their own."""
    start = _HEAD + int.from_bytes(data[:_HEAD], "little")
    body = np.frombuffer(bytearray(data[start:]), dtype=np.uint8)
    # torch's generators read a state from the beginning of its storage, wherever the tensor begins [2.13: a crash]
    return owned(unpack(data[_HEAD:start], body))
