"""How an iteration ends on one rank: after its last step, by the reader's fault, with the link, or by an own error."""

from stream.carry import Carried, raised
from stream.errors import LinkError, RankError


class Ending:
    """What is known of it so far.

    Attributes:
        steps: The number of steps, once known.
        fault: The step at which the reader says that the iteration failed, and why.
        down: Why the link is of no use any more.
        broken: What this rank could not do itself.
        causes: Errors of this rank by the step that they were told for.
    """

    def __init__(self) -> None:
        self.steps: int | None = None
        self.fault: tuple[int, Carried] | None = None
        self.down: LinkError | None = None
        self.broken: Exception | None = None
        self.causes: dict[int, BaseException] = {}

    @property
    def failed(self) -> bool:
        """Whether steps that are not committed will not come."""
        return self.fault is not None or self.down is not None or self.broken is not None

    def is_over(self, committed: int) -> bool:
        """Tell whether the reader says nothing more, so many steps being committed."""
        return self.fault is not None or self.is_behind(committed)

    def is_behind(self, step: int) -> bool:
        """Tell whether there is no such step."""
        return self.steps is not None and step >= self.steps

    def failure(self, step: int) -> BaseException:
        """Return the error to raise at a step that will not come."""
        if self.broken is not None:
            return self.broken
        if self.fault is not None:
            error = raised(self.fault[1])
            cause = self.causes.get(self.fault[0])
        else:
            problem = self.down.problem if self.down is not None else "it ended without a word"
            error, cause = RankError(0, step, f"the reader, rank 0, is gone: {problem}"), self.down
        error.__cause__ = cause
        return error
