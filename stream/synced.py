"""Which place of a loader an optimizer step has been made of: what a state counts up to while gradients accumulate.

Gradients that were accumulated since the last optimizer step are lost when a job ends, so the rows that they are of
have not been trained on. accelerate tells by `gradient_state.sync_gradients` whether the last `accumulate` ended a
group, and by `Accelerator.step` how many there were; a loader whose batches went through none (an evaluation) is not
held back.
"""

import logging
from typing import Any

_log = logging.getLogger("stream")

Place = tuple[int, int]
"""Epoch and position."""


class Synced:
    """One loader's; `accelerator` None: nothing accumulates."""

    def __init__(self, name: str, accelerator: Any) -> None:  # noqa: ANN401 - accelerate is not imported here
        self._name, self._accelerator = name, accelerator
        self._place: Place = (0, 0)
        self._pending = self._told = False
        self._step = 0

    def go_to(self, place: Place) -> None:
        """Note that the loader was sent somewhere: what came before does not matter."""
        self._place, self._pending = place, False
        self._step = self._steps

    def begin(self, place: Place) -> None:
        """Note that an iteration begins."""
        if self._is_synced or not self._pending:
            self.go_to(place)

    def handed_out(self) -> None:
        """Note that a batch is in the user's hands."""
        self._step = self._steps

    def done_with(self, place: Place) -> None:
        """Note that the user asks for more behind `place`, so what was done with the last batch is done."""
        if self._is_synced:
            self._place, self._pending = place, False
        elif self._steps != self._step:
            self._pending = True
        elif not self._pending:
            self._place = place

    def saved(self, place: Place) -> Place:
        """Return what a state says of a loader that is at `place`; says once if that is not there."""
        if self._is_synced or not (self._pending or self._steps != self._step):
            return place
        if not self._told:
            self._told = True
            _log.info(
                "loader %r: its state is that of the last optimizer step (epoch %d, position %d), not where it is "
                "(epoch %d, position %d): gradients accumulated since are not saved, so those rows will come again",
                self._name,
                *self._place,
                *place,
            )
        return self._place

    @property
    def _is_synced(self) -> bool:
        return self._accelerator is None or bool(self._accelerator.gradient_state.sync_gradients)

    @property
    def _steps(self) -> int:
        return 0 if self._accelerator is None else int(self._accelerator.step)


def align(accelerator: Any) -> None:  # noqa: ANN401 - as above
    """Begin a group of accumulated gradients: a restored job has none of the one that it was saved in.

    accelerate restores its count of steps as it was, so the first group would be too short.
    """
    accelerator.step -= accelerator.step % max(1, accelerator.gradient_state.num_steps)
