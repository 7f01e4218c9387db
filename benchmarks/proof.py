"""Run what README and the issues claim in full, and write the log: benchmarks/results/<issue>.md.

    python benchmarks/proof.py [2] [3]

It needs the real COCO images beside the checkout (../shared/data) and a quiet machine for about half an hour an issue.
Exit status 1 if any command failed; its output is in the log all the same.
"""

import argparse
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from machine import describe_machine

ROOT = Path(__file__).resolve().parent.parent
COCO = Path("../shared/data/coco")
RESULTS = ROOT / "benchmarks" / "results"
_IMAGES = f"--images {COCO}/val2017 --captions {COCO}/annotations/captions_val2017_found.json"
_GRID = "--mode dispatch,shard --ranks 2 --prefetch 2,4,8 --workers 0,1,2 --pin-memory on,off --seconds 2 --warmup 0.7"
_FILES = "--json benchmarks/results/{0}-grid.json --plot benchmarks/results/{0}-grid.png"

_SHARDS = ("The real images, packed", f"python tools/pack_coco.py {_IMAGES} --out $OUT/coco-val")
ISSUES = {
    "2": (
    ("What importing costs", "python benchmarks/import_time.py"),
    _SHARDS,
    ("The packer beside tar and beside decoding", f"python benchmarks/pack_speed.py {_IMAGES} --repeats 5"),
    ("The same with more images, where starting weighs less",
     f"python benchmarks/pack_speed.py {_IMAGES} --repeats 3 --copies 60"),
    ("Training on 2 ranks, dispatch mode",
     "torchrun --standalone --nproc_per_node 2 tools/train_captioner.py --data $OUT/coco-val --epochs 2"),
    ("Training on 2 ranks, shard mode",
     "torchrun --standalone --nproc_per_node 2 tools/train_captioner.py --data $OUT/coco-val --epochs 2 --mode shard"),
    ("Every row on one rank, 1 to 4 ranks, both modes; the awkward images; foreign readers",
     "python -m pytest -q tests/test_stream_ranks.py tests/test_stream_decode_awkward.py tests/test_shards_readers.py"),
    ("The grid", f"python benchmarks/run.py {_GRID} --data $OUT/coco-val {_FILES.format(2)}"),
),
    "3": (
    _SHARDS,
    ("Stock dispatch and ours side by side, 2 ranks", "python benchmarks/run.py --mode dispatch --faults --ranks 2"),
    ("Stock dispatch and ours side by side, 4 ranks", "python benchmarks/run.py --mode dispatch --faults --ranks 4"),
    ("The transport alone",
     "python benchmarks/run.py --mode dispatch --transport ours,stock,scatter --ranks 2,4 --dtypes float32,uint8"),
    ("Encoded bytes", "python benchmarks/encoded.py --data $OUT/coco-val"),
    ("End to end", "python benchmarks/end_to_end.py --data $OUT/coco-val"),
    ("A training loop of pure Python", "python benchmarks/busy_main.py --data $OUT/coco-val"),
    ("The grid", f"python benchmarks/run.py {_GRID} --data $OUT/coco-val {_FILES.format(3)}"),
    ("Accelerate's own checks under stream.install()", "python -m pytest -q tests/test_upstream_checks.py"),
    ("Several hosts", "python -m pytest -q --proof tests/test_hosts.py"),
    ("50 exits with and 50 without end_training(), every rank killed in turn, every kind of error",
     "python -m pytest -q --proof tests/test_exits.py"),
    ("Memory over 10,000 steps", "python -m pytest -q --proof tests/test_endurance.py"),
    ),
    "4": (
    ("The real images, packed into 7 shards",
     f"python tools/pack_coco.py {_IMAGES} --out $OUT/coco-val --shard-size 5000000"),
    ("The order of a billion rows", "python benchmarks/order_scale.py"),
    ("Resuming at 90 % of 100,000 samples", "python benchmarks/resume_far.py"),
    ("How well each shuffle mixes", "python -m stream order $OUT/coco-val --quality"),
    ("Captions alone, of 10,000 rows", "python -m pytest -q --proof tests/test_stream_loader_parts.py"),
    ("Resuming at every step, any ranks, modes and batches; one order for 1 to 4 ranks; what is read again",
     "python -m pytest -q tests/test_laws_resume.py"),
    ("Lengths of filters, counted by hand; the shares of mixtures at every prefix",
     "python -m pytest -q tests/test_stream_keep.py tests/test_stream_mix.py tests/test_stream_shares.py"),
    ("Killed at random moments, until every epoch is over",
     "python benchmarks/run.py --kill-trials 50 --data $OUT/coco-val"),
    ),
}  # fmt: skip


def run(command: str, out: str) -> tuple[int, str]:
    """Run a command at the top of the checkout; return its exit status and what it printed on standard output."""
    words = [word.replace("$OUT", out) for word in shlex.split(command)]
    words[0] = str(Path(sys.executable).with_name(words[0]))
    env = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin:/usr/sbin:/sbin", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(  # noqa: S603 - the commands above
        words, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=False, timeout=3600
    )
    return done.returncode, done.stdout.replace(out, "OUT")


def head(issue: str) -> str:
    """Return the log's first lines: date, machine and commit."""
    git = ["git", "-C", str(ROOT), "log", "-1", "--format=%h %s"]
    said = subprocess.run(git, capture_output=True, text=True, check=True, timeout=60).stdout  # noqa: S603 - as above
    commit = said.strip()
    machine = describe_machine()
    return (
        f"# Proof of issue {issue}\n\n"
        f"- date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC\n- commit: {commit}\n"
        f"- machine: {machine.cpu}, {machine.cores} cores, {machine.memory_gib} GiB, {machine.accelerator}; "
        f"load {machine.load} before the start\n"
        f"- Python {machine.python}, torch {machine.torch}, accelerate {machine.accelerate}\n"
    )


def section(title: str, command: str, out: str) -> tuple[bool, str]:
    """Run one step; return whether it succeeded, and its part of the log."""
    sys.stderr.write(f"{title}: {command}\n")
    start = time.monotonic()
    status, said = run(command, out)
    shown = command.replace("$OUT", "OUT")
    fence = "" if said.startswith(("|", "#")) or "\n|" in said else "```\n"
    text = f"\n## {title}\n\n`{shown}` (exit status {status}, {time.monotonic() - start:.0f} s)\n\n{fence}{said}{fence}"
    return status == 0, text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program for the issues that are named, by default for all."""
    parser = argparse.ArgumentParser(description="Run in full what README and the issues claim, and write the log.")
    parser.add_argument("issues", nargs="*", metavar="ISSUE", help=f"{', '.join(ISSUES)} (default: all)")
    issues = parser.parse_args(arguments).issues or list(ISSUES)
    if unknown := [issue for issue in issues if issue not in ISSUES]:
        parser.error(f"no steps are known for {', '.join(unknown)}; there are {', '.join(ISSUES)}")
    if not (ROOT / COCO).is_dir():
        sys.stderr.write(f"proof: the real COCO images are not beside this checkout ({COCO})\n")
        return 1
    proven = True
    for issue in issues:
        with tempfile.TemporaryDirectory(prefix="proof-") as out:
            proven = prove(issue, out) and proven
    return int(not proven)


def prove(issue: str, out: str) -> bool:
    """Run all steps and write the log after each, so that nothing is lost where a later one is interrupted."""
    log, proven = head(issue), True
    RESULTS.mkdir(exist_ok=True)
    for title, command in ISSUES[issue]:
        succeeded, text = section(title, command, out)
        log, proven = log + text, proven and succeeded
        (RESULTS / f"{issue}.md").write_text(log)
    return proven


if __name__ == "__main__":
    sys.exit(main())
