"""Places of loaders in accelerate's checkpoints: `stream_<name>.json` beside the model's weights.

The main process writes, every rank reads. The hooks hold loaders weakly: a loader that is gone is not saved.
"""

import json
import logging
import weakref
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from stream.errors import OptionError
from stream.synced import align

_log = logging.getLogger("stream")


class Saved(Protocol):
    """A loader, as far as a checkpoint knows it."""

    name: str

    def state_dict(self) -> dict[str, Any]:
        """Return its place as plain values."""

    def saved_state(self) -> dict[str, Any]:
        """Return its place for a checkpoint; every rank asks."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a place."""


_known: "weakref.WeakKeyDictionary[Any, Saving]" = weakref.WeakKeyDictionary()


class Saving:
    """The loaders of one Accelerator, which is asked for its hooks once, at the first loader."""

    def __init__(self, accelerator: Any) -> None:  # noqa: ANN401 - accelerate is not imported here
        self._loaders: weakref.WeakSet[Any] = weakref.WeakSet()
        self._is_main, self._loaded = bool(accelerator.is_main_process), False
        accelerator.register_save_state_pre_hook(self._save)
        accelerator.register_load_state_pre_hook(self._load)

    def __getstate__(self) -> dict[str, Any]:
        return {"loaders": list(self._loaders), "is_main": self._is_main, "loaded": self._loaded}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._loaders, self._is_main = weakref.WeakSet(state["loaders"]), state["is_main"]
        self._loaded = state["loaded"]

    @classmethod
    def add(cls, accelerator: Any, loader: Saved) -> None:  # noqa: ANN401 - as above
        """Let checkpoints of this Accelerator carry the loader's place."""
        saving = _known.get(accelerator)
        if saving is None:
            saving = _known[accelerator] = cls(accelerator)
        saving._loaders.add(loader)

    @staticmethod
    def begin(accelerator: Any) -> None:  # noqa: ANN401 - as above
        """Note that a loader of this Accelerator begins to be iterated."""
        saving = _known.get(accelerator)
        if saving is not None:
            saving.began(accelerator)

    def began(self, accelerator: Any) -> None:  # noqa: ANN401 - as above
        """Align what accelerate counts, once behind each checkpoint that was loaded."""
        loaded, self._loaded = self._loaded, False
        if loaded:  # accelerate restores its counts behind `_load`
            align(accelerator)

    def _save(self, _models: list[Any], _weights: list[Any], folder: str) -> None:
        for loader in self._named():
            state = loader.saved_state()
            if self._is_main:
                _path(folder, loader).write_text(json.dumps(state) + "\n")

    def _load(self, _models: list[Any], folder: str) -> None:
        self._loaded = True
        for loader in self._named():
            path = _path(folder, loader)
            if path.exists():
                loader.load_state_dict(json.loads(path.read_text()))
            elif self._is_main:
                _log.warning(
                    "checkpoint %s has no place of loader %r (no %s): it begins its epoch anew",
                    folder,
                    loader.name,
                    path.name,
                )

    def _named(self) -> list[Saved]:
        """Return the loaders by name.

        Raises:
            OptionError: two have the same.
        """
        loaders = sorted(self._loaders, key=lambda loader: str(loader.name))
        for one, other in pairwise(loaders):
            if one.name == other.name:
                problem = "two loaders of this Accelerator have it, so a checkpoint cannot tell them apart; name them"
                raise OptionError("name", one.name, problem)
        return loaders


def _path(folder: str, loader: Saved) -> Path:
    return Path(folder) / f"stream_{loader.name}.json"
