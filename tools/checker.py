"""The checking process of the packer: decodes images and tells what they are. Started by crew.py.

Reads frames from standard input (settings first, then runs of tasks) and answers each run by one frame of verdicts,
until the input ends.
"""

import os
import sys
from functools import partial

from xxhash import xxh3_64_intdigest

from formats import look
from images import open_source
from pack_errors import UnreadableImageError
from stream.decode import MAX_PIXELS, check
from stream.errors import DecodeError
from verdict import Settings, Task, Verdict, frame, read_frame

_MAX_PROBLEM = 400
"""The longest reason, in characters: a run's answer must fit a pipe's 64 KiB, so that no answer ever blocks."""


def judge(task: Task, data: memoryview, max_pixels: int) -> Verdict:
    """Decode an image in full and compare it with its record.

    The record's width and height may be those of the stored pixels or those after EXIF orientation.
    """
    suffix, problem = look(task.file_name, data)
    if not problem:
        problem = _decode_problem(task, data, max_pixels)
    if problem:
        return Verdict(problem[:_MAX_PROBLEM])
    return Verdict("", len(data), xxh3_64_intdigest(data), suffix)


def _decode_problem(task: Task, data: memoryview, max_pixels: int) -> str:
    try:
        info = check(data, name=task.file_name, max_pixels=max_pixels)
    except DecodeError as exc:
        return exc.problem
    sizes = (info.width, info.height), (info.oriented_width, info.oriented_height)
    if (task.width, task.height) not in sizes:
        found = f"{info.width}x{info.height}"
        return f"it has {found} pixels and the captions file says {task.width}x{task.height}"
    return ""


def main() -> int:
    """Serve until the input ends."""
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not mix with the answers
    read = partial(os.read, 0)
    settings = read_frame(read, Settings)
    if settings is None:
        return 0
    source = open_source(settings.images)
    max_pixels = settings.max_pixels or MAX_PIXELS
    while (run := read_frame(read, list[Task])) is not None:
        verdicts = []
        for task in run:
            try:
                verdicts.append(judge(task, source.read(task.place), max_pixels))
            except UnreadableImageError as exc:
                verdicts.append(Verdict(exc.problem[:_MAX_PROBLEM]))
        os.write(answers, frame(verdicts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
