"""Where the user of a prepared loader is: what its `state_dict` says, plain values and tensors, equal on all ranks."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

import torch

from stream.errors import OptionError, SourceError
from stream.whole import from_bytes, to_bytes

_FINISHED = "_iterator_finished"
"""accelerate's and torchdata's own name for `finished`."""


@dataclass(frozen=True, kw_only=True)
class LoaderState:
    """One place in an epoch.

    Attributes:
        epoch: Of the step in the user's hands.
        steps: How many steps of it were handed out, skipped ones included.
        position: What the source had given for them: rows, or batches where the source makes its batches.
        finished: Whether that step was the last, so that the next iteration delivers `epoch` + 1.
        generators: States of random generators when the epoch began, for samplers that draw from them.
        source: What a source that is read one after another says of itself, at most a batch before `position`; None:
            at its beginning.
        rest: How many rows behind `source` were handed out too.

    An epoch that goes on behind the state of a source is padded with the first rows that come then, since the epoch's
    first rows are not read again.
    """

    epoch: int
    steps: int = 0
    position: int = 0
    finished: bool = False
    generators: dict[str, torch.Tensor] = field(default_factory=dict)
    source: dict[str, Any] | None = None
    rest: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the state as `state_dict` gives it."""
        found = asdict(self)
        found[_FINISHED] = found.pop("finished")
        return found

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Self:
        """Return the state that a `state_dict` says.

        Raises:
            OptionError: it is no such state.
        """
        named = {_FINISHED if known.name == "finished" else known.name: known.name for known in fields(cls)}
        if set(state) != set(named):
            problem = (
                "is not the state of a loader that stream.install() made; names and values must be as it gave them"
            )
            raise OptionError("state", sorted(map(str, state)), problem)
        return cls(**{named[name]: value for name, value in state.items()})

    def packed(self) -> bytes:
        """Return the state as bytes.

        Raises:
            SourceError: the source's own state holds what cannot be carried.
        """
        try:
            return to_bytes(self.to_dict())
        except SourceError as exc:
            place = exc.where.replace("batch['source']", "state_dict()", 1)
            raise SourceError(f"the dataset's {place}", exc.problem) from exc

    @classmethod
    def unpacked(cls, data: bytes) -> Self:
        """Return the state behind the bytes of `packed`."""
        return cls.from_dict(from_bytes(data))
