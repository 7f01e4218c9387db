"""The error tree of the packing programs.

Every class keeps what it speaks of in fields and words its own message::

    PackError
    |-- CaptionsError        the captions file cannot be used                     (path, problem)
    |-- ImagesError          the images' folder or zip cannot be used             (path, problem)
    |-- UnreadableImageError one image cannot be read: a bad image                (name, problem)
    |-- LeftOutError         samples would be lost, nobody allowed it             (rejections, problem, remedy)
    |-- ChangedImageError    an image changed between checking and writing        (name)
    `-- WorkerDiedError      a checking process ended in the middle of its work   (names, ending)
"""

from collections.abc import Sequence

from rejections import Rejection, first_ten


class PackError(Exception):
    """Anything that the packing programs refuse or cannot do."""


class CaptionsError(PackError):
    """The captions file cannot be used as it is."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path, self.problem = path, problem

    def __str__(self) -> str:
        return f"captions file {self.path}: {self.problem}"


class ImagesError(PackError):
    """The folder or zip of images cannot be used."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path, self.problem = path, problem

    def __str__(self) -> str:
        return f"images {self.path}: {self.problem}"


class UnreadableImageError(PackError):
    """One image cannot be read from its folder or zip."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name, problem)
        self.name, self.problem = name, problem

    def __str__(self) -> str:
        return f"image {self.name}: {self.problem}"


class LeftOutError(PackError):
    """Samples would be lost and no option allowed it. `problem` counts them, `remedy` says what to do."""

    def __init__(self, rejections: Sequence[Rejection], problem: str, remedy: str) -> None:
        super().__init__(tuple(rejections), problem, remedy)
        self.rejections, self.problem, self.remedy = tuple(rejections), problem, remedy

    def __str__(self) -> str:
        return f"{self.problem}:\n{first_ten(self.rejections)}\nNothing was written. {self.remedy}"


class ChangedImageError(PackError):
    """The bytes about to be written are not those that were checked."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return (
            f"image {self.name}: it changed after it was checked, so it was not written; "
            "pack again when nothing writes to the images any more"
        )


class WorkerDiedError(PackError):
    """A checking process ended while images were with it; `names` are those it may have died of, in order."""

    def __init__(self, names: Sequence[str], ending: str) -> None:
        super().__init__(tuple(names), ending)
        self.names, self.ending = tuple(names), ending

    def __str__(self) -> str:
        if not self.names:
            return f"a checking process {self.ending} before it had an image to check"
        return (
            f"a checking process {self.ending} while it worked on one of {len(self.names)} images, "
            f"{self.names[0]} to {self.names[-1]}. Nothing was written. Make sure that memory did not run out "
            "(fewer --workers need less), then pack these images alone to find the one"
        )
