"""Which program the command line of run.py asks for: the grid, transport alone, faults side by side, kill trials."""

import argparse
import sys
from collections.abc import Sequence

import kill_trials
import transport
from faults import not_run, run_faults


def other_program(arguments: Sequence[str]) -> int | None:
    """Run what `--transport`, `--faults` or `--kill-trials` asks for and return its exit status; None without them."""
    if "--faults" in arguments:
        return faults_program(arguments)
    if _asks("--transport", arguments):
        return transport.main(_without_mode(arguments))
    return kill_trials.main(arguments) if _asks("--kill-trials", arguments) else None


def _asks(flag: str, arguments: Sequence[str]) -> bool:
    return any(word == flag or word.startswith(f"{flag}=") for word in arguments)


def faults_program(arguments: Sequence[str]) -> int:
    """Run the faults that stock dispatch survives on both sides; exit status 1 if ours did one wrong."""
    parser = argparse.ArgumentParser(
        prog="run.py --faults",
        description="Run the faults of stock dispatch mode on stock and on ours, and say what each did.",
        allow_abbrev=False,
    )
    parser.add_argument("--faults", action="store_true", required=True)
    parser.add_argument("--mode", choices=["dispatch"], default="dispatch", help="dispatch is the mode that has them")
    parser.add_argument("--ranks", type=int, choices=range(2, 9), default=2, help="number of processes (default: 2)")
    parser.add_argument("--only", type=lambda text: text.upper().split(","), help="ids of faults, e.g. A1,B2")
    options = parser.parse_args(arguments)
    lines = run_faults(options.ranks, lambda text: sys.stdout.write(text + "\n"), only=options.only)
    for fault, reason in not_run().items():
        if options.only is None or fault in options.only:
            sys.stdout.write(f"{fault:4} not run on stock: {reason}\n")
    wrong = {side: sum(not getattr(line, side).right for line in lines) for side in ("stock", "ours")}
    told = f"wrong: stock {wrong['stock']}, ours {wrong['ours']}"
    sys.stdout.write(f"\n{len(lines)} faults run on {options.ranks} ranks; {told}\n")
    return int(wrong["ours"] > 0)


def _without_mode(arguments: Sequence[str]) -> list[str]:
    """Take `--mode dispatch` out: the transport is measured in no other mode."""
    parser = argparse.ArgumentParser(prog="run.py --transport", allow_abbrev=False, add_help=False)
    parser.add_argument("--mode", choices=["dispatch"], default="dispatch")
    return parser.parse_known_args(arguments)[1]
