"""What can go wrong between a manifest and a batch.

    StreamError
    ├── OptionError       (also ValueError)    an option has a value that cannot work
    ├── NotPreparedError  (also RuntimeError)  a loader in a job of many processes knows only its own
    ├── SourceError                            what is read is not what the loader needs
    ├── DecodeError                            one image cannot be decoded
    ├── BadRowError                            one row is bad, and another one may stand in for it
    ├── RankError                              one rank failed or broke the contract of a step
    ├── SlabError                              shared memory cannot be had, or does not hold what it should
    ├── LinkError                              the link to another rank is down or cannot be made
    └── WaitError         (also TimeoutError)  a rank has waited for a step for too long

Each class keeps its fields as attributes and words its own message, so a caller may act on the fields and
show the text. The fields are the positional arguments, hence every error survives pickling (a worker process
raises it, its parent receives it). A foreign exception behind an error is its ``__cause__``.
"""


class StreamError(Exception):
    """Root of all errors that this package raises on purpose; ``except StreamError`` catches each of them."""


class OptionError(StreamError, ValueError):
    """An option has a value that cannot work; nothing was started.

    Attributes:
        option: Name of the option, as written in the call.
        got: The value that was given.
        problem: What is wrong with it and what would be right.
    """

    def __init__(self, option: str, got: object, problem: str) -> None:
        super().__init__(option, got, problem)
        self.option = option
        self.got = got
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.option}={self.got!r}: {self.problem}"


class NotPreparedError(StreamError, RuntimeError):
    """A loader is iterated in a job of several processes without knowing the others.

    Attributes:
        loader: Name of the loader.
        ranks: Number of processes in the job.
        problem: How it was noticed.
    """

    def __init__(self, loader: str, ranks: int, problem: str) -> None:
        super().__init__(loader, ranks, problem)
        self.loader = loader
        self.ranks = ranks
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"loader {self.loader!r} in a job of {self.ranks} processes: {self.problem}; write "
            "StreamLoader(..., accelerator=accelerator) and pass it through accelerator.prepare()"
        )


class SourceError(StreamError):
    """A source does not give what the loader needs.

    Attributes:
        where: The place: a URL, a key, a position in the order.
        problem: What was found there, what was expected, what to do.
    """

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem)
        self.where = where
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


class DecodeError(StreamError):
    """Encoded bytes do not give an image.

    Attributes:
        name: Name of the image, as the caller knows it: a file, or a key with its suffix.
        problem: What is wrong with the bytes, e.g. ``empty file`` or the decoder's own words.
    """

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name, problem)
        self.name = name
        self.problem = problem

    def __str__(self) -> str:
        return f"image {self.name}: {self.problem}; replace the image or leave it out"


class BadRowError(StreamError):
    """A row's own bytes are bad; with ``on_error="substitute"`` another row stands in for it.

    Attributes:
        position: Where the row stands in the epoch's order.
        problem: What is wrong, with its place, in the words of the error that it was.
    """

    def __init__(self, position: int, problem: str) -> None:
        super().__init__(position, problem)
        self.position = position
        self.problem = problem

    def __str__(self) -> str:
        return f"row at position {self.position} is bad: {self.problem}"


class RankError(StreamError):
    """One rank failed, or broke the contract of a step.

    Attributes:
        rank: The rank, counted from 0.
        step: The step, counted from 0 in its epoch.
        problem: What happened there.
    """

    def __init__(self, rank: int, step: int, problem: str) -> None:
        super().__init__(rank, step, problem)
        self.rank = rank
        self.step = step
        self.problem = problem

    def __str__(self) -> str:
        return f"rank {self.rank}, step {self.step}: {self.problem}"


class SlabError(StreamError):
    """Memory shared between reader and rank cannot be had, or does not hold what it should.

    Attributes:
        where: The memory: a file and a byte in it.
        problem: What is wrong with it.
    """

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem)
        self.where = where
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


class LinkError(StreamError):
    """The link to another rank is down, or could not be made.

    Attributes:
        peer: The rank at the other end.
        problem: How it was noticed.
    """

    def __init__(self, peer: int, problem: str) -> None:
        super().__init__(peer, problem)
        self.peer = peer
        self.problem = problem

    def __str__(self) -> str:
        return f"link to rank {self.peer}: {self.problem}"


class WaitError(StreamError, TimeoutError):
    """A rank has waited for a step longer than `timeout_s`.

    Attributes:
        rank: The rank that waited.
        step: The step, counted from 0 in its iteration.
        seconds: How long it waited.
        stacks: What each thread of the process was doing.
    """

    def __init__(self, rank: int, step: int, seconds: float, stacks: str) -> None:
        super().__init__(rank, step, seconds, stacks)
        self.rank = rank
        self.step = step
        self.seconds = seconds
        self.stacks = stacks

    def __reduce__(self) -> tuple[type["WaitError"], tuple[int, int, float, str]]:
        """OSError, which is TimeoutError's base, keeps two of its arguments only."""
        return WaitError, (self.rank, self.step, self.seconds, self.stacks)

    def __str__(self) -> str:
        return (
            f"rank {self.rank} has waited {self.seconds:.1f} s for step {self.step}, more than timeout_s allows; "
            f"its threads:\n{self.stacks}"
        )
