"""Measure the loader on this machine: both modes, over ranks, workers, prefetch and pinned memory.

    python benchmarks/run.py --data packed/val --mode dispatch,shard --ranks 2 --json grid.json --plot grid.png
    python benchmarks/run.py --mode dispatch --transport ours,stock,scatter
    python benchmarks/run.py --mode dispatch --faults
    python benchmarks/run.py --kill-trials 50 --data packed/val

The table goes to standard output (Markdown), progress to standard error. The decode ceiling is measured in the same
run, before and after each repeat. Exit status: 0 everything was measured; 1 a row or a check failed, which the table
says; 2 wrong usage; 130 interrupted.
"""

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from statistics import median

import msgspec
import torch

import grid
from arguments import Options, parse
from ceiling import Ceiling, decode_ceiling, pillow_figure
from dataset import encoded_bytes, images_of, keys_of, repeated
from machine import cores, describe_machine
from measure import Outcome, run_jobs
from messages import Job, Setting, Shot
from picture import draw
from programs import other_program
from report import Dataset, Rate, Result, mark_best, to_markdown
from shards.dataset import DatasetReader
from shards.errors import ShardsError
from stream.errors import StreamError
from stream.resize import ResizeSpec

_CEILING_IMAGES = 512
_CEILING_REPEATS = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    status = other_program(words)
    if status is not None:
        return status
    options = parse(arguments)
    try:
        reader = DatasetReader(options.data)
        images = images_of(reader, most=_CEILING_IMAGES)
    except (ShardsError, OSError) as exc:
        return _say(f"--data cannot be read: {exc}", 2)
    if not images:
        return _say(f"--data {options.data} holds no images", 2)
    try:
        result = run(options, reader, images, command=shlex.join(["python", "benchmarks/run.py", *words]))
    except (ShardsError, StreamError) as exc:
        return _say(f"--data cannot be measured: {exc}", 1)
    except KeyboardInterrupt:
        return _say("interrupted, nothing was written", 130)
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    sys.stdout.write(to_markdown(result))
    if options.plot is not None:
        draw(result, options.plot)
    return 0 if result.sound else 1


def run(options: Options, reader: DatasetReader, images: Sequence[bytes], *, command: str) -> Result:
    """Measure everything; `images` are those that the ceiling is measured with.

    Raises:
        ShardsError: the dataset cannot be read, or not be repeated.
        DecodeError: one of the images cannot be decoded.
    """
    date, machine, found = datetime.now(UTC), describe_machine(), grid.entries(options)
    turns = grid.turns(found, repeats=options.repeats)
    done = grid.Done([job for turn in turns for plan in turn for job in plan], Outcome())
    tell = _Progress(len(done.jobs))
    torch.set_num_threads(1)  # as in the ranks: threads are over images, not inside one
    with repeated(reader, rows=options.rows) as longer:
        setting, keys = _setting(options, longer), keys_of(longer)
        pillow = _figure(pillow_figure, images, options)
        ceilings = [_figure(decode_ceiling, images, options)]
        for turn in turns:
            for plan in turn:
                run_jobs(setting, plan, done.outcome, tell)
            ceilings.append(_figure(decode_ceiling, images, options))
    ceiling, size = _rate(ceilings), encoded_bytes(reader)
    return Result(
        date=date.strftime("%Y-%m-%d %H:%M UTC"),
        command=command,
        machine=machine,
        dataset=Dataset(url=options.data, samples=len(reader), rows=len(keys), encoded_bytes=size),
        setting=setting,
        repeats=options.repeats,
        ceiling=ceiling,
        pillow=_rate([pillow]),
        rows=mark_best(grid.rows(found, done, ceiling=ceiling.images_per_s, encoded_bytes=size)),
        checks=grid.checks(done, keys=keys, batch_size=options.batch_size),
        problems=done.outcome.problems,
    )


def _setting(options: Options, reader: DatasetReader) -> Setting:
    return Setting(
        data=reader.url,
        rows=len(reader),
        batch_size=options.batch_size,
        image_size=options.image_size,
        warmup_s=options.warmup,
        window_s=options.seconds,
    )


def _figure(measure: Callable[..., Ceiling], images: Sequence[bytes], options: Options) -> Ceiling:
    spec = ResizeSpec(options.image_size, options.image_size)
    return measure(images, spec=spec, threads=cores(), seconds=options.seconds, repeats=_CEILING_REPEATS)


def _rate(figures: Sequence[Ceiling]) -> Rate:
    medians = [figure.images_per_s for figure in figures]
    return Rate(
        images_per_s=median(medians),
        low=min(figure.lowest for figure in figures),
        high=max(figure.highest for figure in figures),
        threads=figures[0].threads,
        medians=medians,
    )


class _Progress:
    """Tells people after each job what came of it and how long the rest will take."""

    def __init__(self, jobs: int) -> None:
        self._jobs, self._done, self._start = jobs, 0, time.monotonic()

    def __call__(self, job: Job, answer: Shot | str | None) -> None:
        self._done += 1
        left_s = (time.monotonic() - self._start) / self._done * (self._jobs - self._done)
        what = answer if isinstance(answer, str) else "one epoch checked"
        if isinstance(answer, Shot):
            what = f"{answer.samples_per_s:,.0f} samples/s"
        sys.stderr.write(f"[{self._done}/{self._jobs}, {left_s / 60:.1f} min left] {job.config}: {what}\n")


def _say(message: str, status: int) -> int:
    sys.stderr.write(f"run.py: {message}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
