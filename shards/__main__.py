"""`python -m shards COMMAND ...`: look at shards and check them.

Commands: `inspect`, see shards/inspect_command.py, and `lint`, see shards/lint_command.py. Exit status: that of the
command; 2 where there is no such command. The only file of shards that knows stream: it gives `lint --decode` the
decoder that training uses.
"""

import sys
from collections.abc import Mapping, Sequence

from shards.inspect_command import main as inspect
from shards.lint import Decoder
from shards.lint_command import main as lint_main
from shards.programs import Command, run_command


def main(arguments: Sequence[str]) -> int:
    """Run the command that the first argument names with the others, and return its exit status."""
    return run_command("shards", _COMMANDS, arguments)


def lint(arguments: Sequence[str]) -> int:
    """Run `lint` with the decoder of training."""
    return lint_main(arguments, image_decoder=strict_decoder)


def strict_decoder() -> Decoder:
    """Return what decodes an image as training does, and raises what training would."""
    from stream.decode import check  # noqa: PLC0415 - `--decode` alone pays for it, and needs it at all

    def decode(data: bytes) -> None:
        check(data, name="in this member")

    return decode


_COMMANDS: Mapping[str, Command] = {"inspect": inspect, "lint": lint}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
