"""What every thread of this process is doing."""

import sys
import threading
import traceback


def all_stacks() -> str:
    """Return the stacks of all Python threads as text, innermost call last, as a traceback has it."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines: list[str] = []
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - documented, for exactly this
        lines.append(f"Thread {names.get(ident, ident)}:\n")
        lines += traceback.format_stack(frame)
    return "".join(lines)
