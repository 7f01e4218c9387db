"""Which place of a loader an optimizer step has been made of: what a state counts up to while gradients accumulate.

Gradients that were accumulated since the last optimizer step are lost when a job ends, so the rows that they are of
have not been trained on. accelerate tells by `gradient_state.sync_gradients` whether the last `accumulate` ended a
group, and by `Accelerator.step` how many there were.
"""

import logging
from collections import deque
from typing import Any, NamedTuple

from stream.point import Point

_log = logging.getLogger("stream")


class _Drawn(NamedTuple):
    """A batch that was handed out: how often accelerate had accumulated before, and the place behind the batch."""

    turn: tuple[int, int]
    place: Point


class Synced:
    """One loader's; `accelerator` None: nothing accumulates.

    A batch is trained on when a group ended that `accumulate` entered after the batch was handed out; so it does not
    matter whether a batch is accumulated before the next one is drawn, nor in which micro-steps batches are drawn. A
    batch that no `accumulate` followed before its iteration was over is not part of training, and counts.
    """

    def __init__(self, name: str, accelerator: Any) -> None:  # noqa: ANN401 - accelerate is not imported here
        self._name, self._accelerator = name, accelerator
        self._place = Point(0, 0)
        self._drawn: deque[_Drawn] = deque()
        self._told = False
        self._rounds = self._last = 0

    def go_to(self, place: Point) -> None:
        """Note that the loader was sent somewhere: what came before does not matter."""
        self._place = place
        self._drawn.clear()

    def begin(self, place: Point) -> None:
        """Note that an iteration begins."""
        self._settle()
        if not self._drawn:
            self._place = place

    def handed_out(self, place: Point) -> None:
        """Note that a batch is in the user's hands, and the place behind it."""
        self._settle()
        if self._group > 1:
            self._drawn.append(_Drawn(self._turn(), place))
        else:
            self._place = place

    def over(self, place: Point) -> None:
        """Note that an iteration is over, and the place that it leaves."""
        self._settle()
        if self._drawn and self._drawn[-1].turn == self._turn():  # nothing was accumulated since
            self._drawn.clear()
        if self._drawn:
            self._drawn[-1] = self._drawn[-1]._replace(place=place)
        else:
            self._place = place

    def saved(self, place: Point) -> Point:
        """Return what a state says of a loader that is at `place`; says once if that is not there."""
        self._settle()
        if self._is_synced or not self._drawn:
            return place
        if not self._told:
            self._told = True
            _log.info(
                "loader %r: its state is that of the last optimizer step (epoch %d, position %d), not where it is "
                "(epoch %d, position %d): gradients accumulated since are not saved, so those rows will come again",
                self._name,
                *self._place[:2],
                *place[:2],
            )
        return self._place

    def _settle(self) -> None:
        """Forget batches that an optimizer step was made of."""
        rounds, steps = self._turn()
        ended = steps if self._is_synced else steps - steps % self._group
        while self._drawn and self._drawn[0].turn < (rounds, ended):
            self._place = self._drawn.popleft().place

    @property
    def _group(self) -> int:
        return 1 if self._accelerator is None else max(1, int(self._accelerator.gradient_state.num_steps))

    @property
    def _is_synced(self) -> bool:
        return self._accelerator is None or bool(self._accelerator.gradient_state.sync_gradients)

    def _turn(self) -> tuple[int, int]:
        """How often accelerate had accumulated; it counts from 0 again when a loader ends."""
        steps = 0 if self._accelerator is None else int(self._accelerator.step)
        self._rounds += steps < self._last
        self._last = steps
        return self._rounds, steps


def align(accelerator: Any) -> None:  # noqa: ANN401 - as above
    """Begin a group of accumulated gradients: a restored job has none of the one that it was saved in.

    accelerate restores its count of steps as it was, so the first group would be too short.
    """
    accelerator.step -= accelerator.step % max(1, accelerator.gradient_state.num_steps)
