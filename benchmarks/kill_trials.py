"""Train, be killed at a random moment, go on with other ranks in another mode: does every sample count exactly once?

    python benchmarks/run.py --kill-trials 50 --data packed/val

A trial begins with 2 ranks. Each launch is killed (SIGKILL, all ranks at once) at a random moment of its start or of
its training, and followed by a fresh one with 1 to 4 ranks in either mode, until one ends by itself: then each epoch
must have counted every sample exactly once. Every second trial accumulates gradients over 4 steps, and counts what
optimizer steps were made of. The table goes to standard output (Markdown), progress to standard error. Exit status: 0
every trial was right; 1 one was wrong; 2 wrong usage; 130 interrupted.
"""

import argparse
import random
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import msgspec

from argument_types import seconds, whole
from kill_trials_plan import Ended, Mode, Plan, latest, ledger_of
from launching import FailedRankError, KilledError, Limits, run_ranks
from reporting import Origin, head, origin, reported, say
from shards.dataset import DatasetReader
from shards.errors import ShardsError
from tables import table

_PROGRAM = "run.py --kill-trials"
_RANK = Path(__file__).with_name("kill_trials_rank.py")
_RANKS, _MODES = (1, 2, 3, 4), ("dispatch", "shard")
_SAVE_EVERY = (1, 2, 3, 5)
_MOST_LAUNCHES = 60
_ACCUMULATIONS = (4, 1)


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One trial: how it was begun, what it went through, and what is wrong with its end, if anything."""

    accumulation: int
    save_every: int
    launches: list[str]
    counted: list[int]
    seconds: float
    problem: str | None = None


class Trials(msgspec.Struct, frozen=True, kw_only=True):
    """All trials of a run over so many samples."""

    origin: Origin
    samples: int
    epochs: int
    trials: list[Trial]

    @property
    def wrong(self) -> list[Trial]:
        """Those that did not count every sample once an epoch."""
        return [trial for trial in self.trials if trial.problem is not None]


def to_markdown(result: Trials) -> str:
    """Return the report for people."""
    kills = sum(len(trial.launches) - 1 for trial in result.trials)
    what = (
        f"{len(result.trials)} trials of {result.epochs} epochs over {result.samples} samples, {kills} kills. "
        "Launches: ranks and mode (d: dispatch, s: shard) of each; all but the last were killed. Counted: samples of "
        "the optimizer steps that the last checkpoint is made of, epoch by epoch."
    )
    rows = [
        (
            str(number + 1),
            str(trial.accumulation),
            str(trial.save_every),
            " ".join(trial.launches),
            " ".join(map(str, trial.counted)),
            f"{trial.seconds:.0f}",
            trial.problem or "every sample once an epoch",
        )
        for number, trial in enumerate(result.trials)
    ]
    columns = ("trial", "accumulation", "saves every", "launches", "counted", "seconds", "verdict")
    told = f"{len(result.wrong)} of {len(result.trials)} trials are wrong."
    return "\n\n".join((head(result.origin), what, table(columns, rows, text=(3, 4, 6)), told)) + "\n"


def run(options: argparse.Namespace, reader: DatasetReader, *, command: str) -> Trials:
    """Run all trials, one after another."""
    keys: list[str] = []
    for shard_no in range(len(reader.manifest.shardlist)):
        keys += reader.index(shard_no).keys()
    begun, chance = origin(command), random.Random(options.seed)  # noqa: S311 - not a secret
    trials = []
    for number in range(options.kill_trials):
        trial = one_trial(options, sorted(keys), chance, accumulation=_ACCUMULATIONS[number % len(_ACCUMULATIONS)])
        sys.stderr.write(f"trial {number + 1}: {' '.join(trial.launches)}: {trial.problem or 'right'}\n")
        trials.append(trial)
    return Trials(origin=begun, samples=len(keys), epochs=options.epochs, trials=trials)


def one_trial(options: argparse.Namespace, keys: list[str], chance: random.Random, *, accumulation: int) -> Trial:
    """Launch and kill until a launch ends by itself; look at what counted."""
    begin, launches, save_every = time.monotonic(), list[str](), chance.choice(_SAVE_EVERY)
    problem: str | None = f"it did not end within {_MOST_LAUNCHES} launches"
    with tempfile.TemporaryDirectory(prefix="kill-trial-") as folder:
        for _ in range(_MOST_LAUNCHES):
            plan = Plan(
                data=options.data,
                folder=folder,
                ranks=chance.choice(_RANKS) if launches else 2,
                mode=cast("Mode", chance.choice(_MODES)),
                epochs=options.epochs,
                accumulation=accumulation,
                save_every=save_every,
                step_s=options.step_s,
            )
            launches.append(f"{plan.ranks}{plan.mode[0]}")
            limits = Limits(kill_after_s=chance.uniform(*options.kill_after_s))
            try:
                run_ranks(_RANK, plan, ranks=plan.ranks, answer=Ended, limits=limits)
            except KilledError:
                continue
            except FailedRankError as exc:
                problem = str(exc)
            else:
                problem = None
            break
        checkpoint = latest(Path(folder))
        counted = ledger_of(checkpoint).epochs if checkpoint is not None else []
    return Trial(
        accumulation=accumulation,
        save_every=save_every,
        launches=launches,
        counted=[len(epoch) for epoch in counted],
        seconds=time.monotonic() - begin,
        problem=problem or wrong_with(counted, keys, options.epochs),
    )


def wrong_with(counted: list[list[str]], keys: list[str], epochs: int) -> str | None:
    """Say what is wrong with what counted; None if every epoch counted each of the sorted keys once."""
    if len(counted) != epochs:
        return f"{len(counted)} epochs counted, not {epochs}"
    for number, epoch in enumerate(counted):
        if sorted(epoch) != keys:
            more = {key: count for key, count in Counter(epoch).items() if count > 1}
            missing = set(keys) - set(epoch)
            return f"epoch {number}: {len(more)} keys counted twice or more, {len(missing)} never"
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    options = _parse(words)
    try:
        reader = DatasetReader(options.data)
        samples = len(reader)
    except (ShardsError, OSError) as exc:
        return say(_PROGRAM, f"--data cannot be read: {exc}", 2)
    if not samples:
        return say(_PROGRAM, f"--data {options.data} holds no samples", 2)
    found: list[Trials] = []

    def measure() -> Trials:
        found.append(run(options, reader, command=shlex.join(["python", "benchmarks/run.py", *words])))
        return found[0]

    status = reported(_PROGRAM, measure, to_markdown, None)
    return status or int(bool(found[0].wrong))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM, description="Kill a training job again and again; count what it trained on.", allow_abbrev=False
    )
    add = parser.add_argument
    add("--kill-trials", type=whole(1), required=True, help="number of trials")
    add("--data", required=True, help="packed dataset on a local disk: its folder or manifest")
    add("--epochs", type=whole(1), default=3, help="epochs of a trial (default: 3)")
    add("--step-s", type=seconds, default=0.05, help="seconds that a step takes beside its work (default: 0.05)")
    add("--kill-after-s", type=seconds, nargs=2, default=(3.0, 9.0), help="bounds of a launch's life (default: 3 9)")
    add("--seed", type=whole(0), default=0, help="of the random moments, ranks and modes (default: 0)")
    return parser.parse_args(arguments)
