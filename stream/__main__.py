"""`python -m stream COMMAND ...`: what can be asked about a packed dataset without training.

Commands: `order`, see stream/order_command.py. Exit status: that of the command; 2 where there is no such command.
"""

import sys
from collections.abc import Callable, Mapping, Sequence

from stream.order_command import main as order

_COMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = {"order": order}


def main(arguments: Sequence[str]) -> int:
    """Run the command that the first argument names with the others, and return its exit status."""
    usage = f"usage: python -m stream {{{','.join(_COMMANDS)}}} ...  (-h behind a command tells its options)\n"
    if arguments and arguments[0] in ("-h", "--help"):
        sys.stdout.write(usage)
        return 0
    command = _COMMANDS.get(arguments[0]) if arguments else None
    if command is None:
        got = f"{arguments[0]!r} is no command" if arguments else "no command is given"
        sys.stderr.write(f"stream: {got}; {usage}")
        return 2
    return command(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
