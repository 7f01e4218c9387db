"""What programs of this project share: their commands, messages and answers. Writes to standard output and error."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence

Command = Callable[[Sequence[str]], int]


def run_command(program: str, commands: Mapping[str, Command], arguments: Sequence[str]) -> int:
    """Run the command that the first argument names with the others, and return its exit status; 2: there is none."""
    usage = f"usage: python -m {program} {{{','.join(commands)}}} ...  (-h behind a command tells its options)\n"
    if arguments and arguments[0] in ("-h", "--help"):
        sys.stdout.write(usage)
        return 0
    command = commands.get(arguments[0]) if arguments else None
    if command is None:
        got = f"{arguments[0]!r} is no command" if arguments else "no command is given"
        sys.stderr.write(f"{program}: {got}; {usage}")
        return 2
    return command(arguments[1:])


def say(command: str, message: str, status: int) -> int:
    """Write a message to standard error and return the exit status."""
    sys.stderr.write(f"{command}: {message}\n")
    return status


def write(command: str, text: str) -> bool:
    """Write an answer to standard output; False where it cannot be, which is told unless nobody reads any more."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as exc:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python's own last flush must not complain
        if not isinstance(exc, BrokenPipeError):  # else whoever read it has enough
            say(command, f"the answer cannot be written: {exc.strerror}", 1)
        return False
    return True
