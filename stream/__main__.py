"""`python -m stream COMMAND ...`: what can be asked about a packed dataset without training.

Commands: `order`, see stream/order_command.py. Exit status: that of the command; 2 where there is no such command.
"""

import sys
from collections.abc import Mapping, Sequence

from shards.programs import Command, run_command
from stream.order_command import main as order

_COMMANDS: Mapping[str, Command] = {"order": order}


def main(arguments: Sequence[str]) -> int:
    """Run the command that the first argument names with the others, and return its exit status."""
    return run_command("stream", _COMMANDS, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
