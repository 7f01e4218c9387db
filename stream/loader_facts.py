"""What a loader tells of its steps, in its own words and in accelerate's: no part of it begins or ends anything."""

from typing import Any

from torch.utils.data import DataLoader

from stream.plan import Plan
from stream.progress import Progress


class LoaderFacts(DataLoader[Any]):
    """The readable side of a `StreamLoader`."""

    name: str
    _plan: Plan
    _progress: Progress

    def __len__(self) -> int:
        """Return the number of steps of an epoch.

        Raises:
            TypeError: the source does not tell its length.
        """
        if self._plan.schedule is None:
            raise TypeError(f"loader {self.name!r} reads a source of unknown length")
        return self._plan.schedule.steps

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration delivers, counted from 0."""
        return self._progress.epoch

    @property
    def iteration(self) -> int:
        """Accelerate's name for `epoch`."""
        return self._progress.epoch

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the batch in the user's hands is this rank's last of the epoch, as accelerate asks."""
        return self._progress.at_end

    @property
    def remainder(self) -> int:
        """Rows of the last step without padding, -1 before it: what accelerate's gather_for_metrics keeps."""
        return self._progress.remainder

    @property
    def position(self) -> int:
        """Rows of the epoch that `next` has handed out, over all ranks; the batch in the user's hands included."""
        return self._progress.position

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps of a whole epoch, over all ranks; `len` of the loader, known before prepare.

        Raises:
            TypeError: the source does not tell its length.
        """
        return len(self)

    def scheduler_steps(self, *, epochs: int = 1, accumulation: int | None = None) -> int:
        """Return how often a prepared learning rate schedule is stepped in so many epochs, e.g. for its T_max.

        Accelerate steps a prepared scheduler once for each rank unless it splits batches, and only where the optimizer
        steps. `accumulation` is the number of steps over which gradients are accumulated; None: the Accelerator's own.

        Raises:
            OptionError: a number is below 1.
            TypeError: the source does not tell its length.
        """
        return self._plan.scheduler_steps(epochs, accumulation)

    @property
    def total_batch_size(self) -> int:
        """Rows of a whole step over all ranks."""
        return self._plan.global_batch

    @property
    def total_dataset_length(self) -> int:
        """Rows of an epoch over all ranks."""
        if self._plan.rows is None:
            raise TypeError(f"loader {self.name!r} reads a source of unknown length")
        return self._plan.rows
