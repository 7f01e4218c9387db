"""The whole path on one page: draw a synthetic COCO, pack it, train a captioner on it with two ranks.

    python tools/demo.py

Everything goes into one folder (.demo beside this repository's tools, or --folder), which a later run replaces. Exit
status: 0 all went well; 1 a step failed, or nothing was learned; 130 interrupted by Ctrl-C, and nothing runs on.
"""

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import msgspec

from stopping import Stopped, stoppable

TOOLS = Path(__file__).resolve().parent
MARKER = "made-by-demo"
"""The file that says that a folder is a demo's, so that it may be replaced."""
_EVAL_IMAGES = 12
_GRACE_S = 40.0  # torchrun takes up to 30 to end ranks that do not want to


class DemoError(Exception):
    """A step failed, or did not give what it should."""


class Epoch(msgspec.Struct):
    """What train_captioner.py wrote of an epoch."""

    loss: float
    rows: int
    seconds: float


class Results(msgspec.Struct):
    """What train_captioner.py wrote."""

    ranks: int
    mode: str
    epochs: list[Epoch]
    captions: list[object]


def run(options: argparse.Namespace) -> None:
    """Draw, pack and train.

    Raises:
        DemoError: a step failed; the others were not started.
        Stopped: a signal asked to stop; the step's processes are gone.
    """
    folder: Path = options.folder
    claim(folder)
    sets = {"train": options.images, "eval": _EVAL_IMAGES}
    with step("1. Draw a synthetic COCO"):
        for seed, (name, images) in enumerate(sets.items()):
            call("draw_coco.py", "--out", folder / "drawn" / name, "--images", images, "--seed", seed)
    with step("2. Pack it into shards"):
        for name in sets:
            drawn, report = folder / "drawn" / name, folder / f"{name}.json"
            paths = ("--images", drawn / "images", "--captions", drawn / "captions.json", "--out", folder / name)
            call("pack_coco.py", *paths, output=report)
    with step(f"3. Train a captioner on {options.ranks} ranks, {options.mode} mode, {options.epochs} epochs"):
        results = train(options)
    check(results, options)


def claim(folder: Path) -> None:
    """Make the folder, empty but for its marker.

    Raises:
        DemoError: it holds something that no demo made.
    """
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARKER).is_file():
            raise DemoError(f"{folder} is not empty and no demo made it; give another --folder")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).touch()


@contextmanager
def step(title: str) -> Iterator[None]:
    """Print what is done now, and how long it took."""
    say(f"\n== {title}")
    start = time.monotonic()
    yield
    say(f"   ({time.monotonic() - start:.1f} s)")


def train(options: argparse.Namespace) -> Results:
    """Start the ranks as a user would, and return what they measured."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    launch += ["--nproc_per_node", str(options.ranks)]
    folder: Path = options.folder
    program = [str(TOOLS / "train_captioner.py"), "--data", str(folder / "train"), "--eval-data", str(folder / "eval")]
    program += ["--mode", options.mode, "--epochs", str(options.epochs), "--cpu"]
    program += ["--checkpoint", str(folder / "checkpoints"), "--json", str(folder / "results.json")]
    threads = max(1, len(os.sched_getaffinity(0)) // options.ranks)  # torchrun would say 1, and warn
    call_command([*launch, *program], settings={"OMP_NUM_THREADS": str(threads)})
    return msgspec.json.decode((folder / "results.json").read_bytes(), type=Results)


def check(results: Results, options: argparse.Namespace) -> None:
    """Refuse what no user should take for a success.

    Raises:
        DemoError: there were not as many ranks as asked for, or the loss did not fall.
    """
    if (results.ranks, results.mode) != (options.ranks, options.mode):
        raise DemoError(f"{results.ranks} ranks trained in {results.mode} mode, not {options.ranks} in {options.mode}")
    losses = [epoch.loss for epoch in results.epochs]
    if len(losses) > 1 and not losses[-1] < losses[0]:
        raise DemoError(f"the loss did not fall: {losses}")
    rate = sum(epoch.rows for epoch in results.epochs) / sum(epoch.seconds for epoch in results.epochs)
    falling = " -> ".join(f"{loss:.2f}" for loss in losses)
    say(f"\n{results.ranks} ranks in {results.mode} mode: {rate:,.0f} samples/s, loss {falling}")


def call(program: str, *arguments: object, output: Path | None = None) -> None:
    """Run a program of this folder, see `call_command`."""
    call_command([sys.executable, str(TOOLS / program), *map(str, arguments)], output=output)


def call_command(
    command: Sequence[str], *, settings: Mapping[str, str] | None = None, output: Path | None = None
) -> None:
    """Run a command to its end; whatever happens, it does not run on after this.

    Its messages go where ours go, and so does its standard output unless it goes into the file `output`.

    Raises:
        DemoError: it failed.
    """
    with output.open("wb") if output else nullcontext() as file:
        process = subprocess.Popen(  # noqa: S603 - our own programs
            command,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(settings or {})},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=sys.stdout.fileno(),
            process_group=0,  # a terminal's Ctrl-C reaches us alone, and we end the others in order
        )
    try:
        status = process.wait()
    finally:
        end(process)
    if status:
        raise DemoError(f"exit status {status} from: {shlex.join(command)}")


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that may still run; give a launcher the time to end its ranks, which are in no group of ours."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def say(line: str) -> None:
    """Print a line at once, so that it comes before what the next program prints."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; leaves the program with status 2 where it is wrong."""
    parser = argparse.ArgumentParser(
        prog="demo.py",
        description="Draw a synthetic COCO, pack it, train a captioner on it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--folder", type=Path, default=TOOLS.parent / ".demo", help="where everything goes; a later run replaces it")
    add("--images", type=int, default=1000, help="images to draw and train on")
    add("--epochs", type=int, default=2, help="passes over their captions")
    add("--ranks", type=int, default=2, help="processes that train together")
    add("--mode", choices=("dispatch", "shard"), default="dispatch", help="rank 0 reads for all, or each rank reads")
    options = parser.parse_args(arguments)
    if min(options.images, options.epochs, options.ranks) < 1:
        parser.error("--images, --epochs and --ranks must be 1 or more")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status."""
    options = parse(arguments)
    start = time.monotonic()
    try:
        with stoppable():
            run(options)
    except Stopped as exc:
        sys.stderr.write(f"demo: {exc}\n")
        return exc.exit_status
    except (DemoError, OSError, msgspec.MsgspecError) as exc:
        sys.stderr.write(f"demo: {exc}\n")
        return 1
    say(f"the demo took {time.monotonic() - start:.0f} s; everything is in {options.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
