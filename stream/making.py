"""A portion as it arrived, into the batch that the training loop gets: unpacked, or decoded and collated."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from stream.collate import Collator
from stream.inbox import Arrived
from stream.rows import open_rows
from stream.staging import Stager
from stream.wire import unpack


class Maker:
    """Makes batches on one rank. Thread-safe.

    Args:
        collator: Makes batches of encoded rows.
        stager: Brings batches to the rank's device.
        verify: Whether the checksums of encoded parts are compared.
    """

    def __init__(self, collator: Collator, stager: Stager, *, verify: bool) -> None:
        self._collator, self._stager, self._verify = collator, stager, verify

    def __call__(self, arrived: Arrived) -> tuple[Any, int]:
        """Return the batch, and about how many bytes its tensors, arrays and byte strings take.

        Raises:
            ShardsError, DecodeError, SourceError: what arrived is bad, or cannot be made a batch.
        """
        kind = arrived.portion.kind
        if kind == "thing":
            batch = arrived.thing
        elif kind == "rows":
            batch = self._collator(open_rows(arrived.header, arrived.body, verify=self._verify))
        else:
            batch = unpack(arrived.header, arrived.body, empty=None if arrived.owned else self._stager.empty)
        return self._stager.to_device(batch), _weight(batch)

    def close(self) -> None:
        """End the decoding threads. Idempotent."""
        self._collator.close()


def _weight(batch: object) -> int:
    if isinstance(batch, torch.Tensor) and batch.is_nested:
        return 0
    if isinstance(batch, torch.Tensor | np.ndarray):
        return batch.nbytes
    if isinstance(batch, bytes | bytearray):
        return len(batch)
    if isinstance(batch, Mapping):
        return sum(map(_weight, batch.values()))
    if dataclasses.is_dataclass(batch):
        return sum(_weight(getattr(batch, field.name, None)) for field in dataclasses.fields(batch))
    return sum(map(_weight, batch)) if isinstance(batch, list | tuple) else 0
