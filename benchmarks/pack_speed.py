"""Measure the packer beside what it cannot be faster than: tar, and reading and decoding alone.

    python benchmarks/pack_speed.py --images val2017 --captions captions_val2017.json --repeats 5

Everything lies on a memory disk and takes turns in one run. The table goes to standard output (Markdown), progress to
standard error. Exit status: 0 everything was measured; 1 a program failed; 2 wrong usage; 130 interrupted.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from coco_copies import NothingToCopyError, copy_set, present
from decode_share import Share
from report import Spread

_HERE = Path(__file__).resolve().parent
_PACKER = _HERE.parent / "tools" / "pack_coco.py"
_DECODER = _HERE / "decode_share.py"
_IMAGES = 4000  # what the default number of copies makes at least
_PROCESSES = 2
_ROOM = 4  # times the size of the copied images: they, shards, the members of these, and some air


class Time(msgspec.Struct, frozen=True):
    """Seconds of one run: of the whole process, and of its work without the start of the process."""

    whole_s: float
    own_s: float


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the report; `beside` names the line that it is compared with."""

    name: str
    beside: str | None
    whole_s: Spread
    own_s: Spread


class Packing(msgspec.Struct, frozen=True, kw_only=True):
    """The report: `image_bytes` is the size of all `images` together."""

    images: int
    image_bytes: int
    repeats: int
    lines: list[Line]


class ProgramError(Exception):
    """A program that is measured failed."""

    def __init__(self, command: Sequence[str], status: int, said: str) -> None:
        super().__init__(command, status, said)
        self.command, self.status, self.said = command, status, said

    def __str__(self) -> str:
        words = self.said.strip().splitlines() or ["it said nothing"]
        return f"{' '.join(self.command)} ended with status {self.status}: {words[-1]}"


class Bench:
    """The programs that are measured, on a folder with "images" and "captions.json"; each removes what it wrote."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._images, self._members = folder, folder / "images", folder / "members"

    def tar(self) -> Time:
        """GNU tar of the images."""
        return self._tar(self._images)

    def tar_members(self) -> Time:
        """GNU tar of the files that the shards hold: three for each image."""
        return self._tar(self._members)

    def pack(self) -> Time:
        """The packer, one process, nothing decoded."""
        return self._pack("--check", "none", "--workers", "1")

    def pack_checked(self) -> Time:
        """The packer with two checking processes."""
        return self._pack("--check", "full", "--workers", str(_PROCESSES))

    def decode(self) -> Time:
        """Two processes that read and decode to RGB."""
        return self._decode()

    def check(self) -> Time:
        """Two processes that read and decode as the packer checks."""
        return self._decode("--check")

    def _decode(self, *options: str) -> Time:
        """Their own time runs from the first's begin to the last's end."""
        begin = time.perf_counter()
        commands = [
            [sys.executable, str(_DECODER), str(self._images), str(n), str(_PROCESSES), *options]
            for n in range(_PROCESSES)
        ]
        running = [_start(command) for command in commands]
        outputs = [_finish(command, process) for command, process in zip(commands, running, strict=True)]
        whole = time.perf_counter() - begin
        shares = [msgspec.json.decode(output, type=Share) for output in outputs]
        return Time(whole, max(share.end_s for share in shares) - min(share.begin_s for share in shares))

    def unpack(self) -> None:
        """Make the files that `tar_members` reads."""
        self._pack_into("members-of", "--check", "none")
        self._members.mkdir()
        for shard in sorted((self._folder / "members-of").glob("*.tar")):
            _run(["tar", "xf", str(shard), "-C", str(self._members)])
        shutil.rmtree(self._folder / "members-of")

    def _pack(self, *options: str) -> Time:
        whole, output = self._pack_into("out", *options)
        shutil.rmtree(self._folder / "out")
        return Time(whole, float(msgspec.json.decode(output)["seconds"]))

    def _pack_into(self, name: str, *options: str) -> tuple[float, bytes]:
        inputs = ("--images", str(self._images), "--captions", str(self._folder / "captions.json"))
        return _run([sys.executable, str(_PACKER), *inputs, "--out", str(self._folder / name), *options])

    def _tar(self, source: Path) -> Time:
        archive = self._folder / "files.tar"
        empty = self._folder / "empty"
        empty.mkdir(exist_ok=True)
        start, _ = _run(["tar", "cf", str(self._folder / "empty.tar"), "-C", str(empty), "."])
        whole, _ = _run(["tar", "cf", str(archive), "-C", str(source), "."])
        archive.unlink()
        return Time(whole, whole - start)


_LINES: tuple[tuple[str, str | None, Callable[[Bench], Time]], ...] = (
    ("tar cf of the images", None, Bench.tar),
    ("tar cf of jpg, txt and json", None, Bench.tar_members),
    ("packer, nothing decoded, 1 process", "tar cf of the images", Bench.pack),
    ("2 processes that read and decode", None, Bench.decode),
    ("2 processes that read and check", None, Bench.check),
    ("packer, 2 checking processes", "2 processes that read and decode", Bench.pack_checked),
)


def measure(bench: Bench, *, repeats: int) -> list[Line]:
    """Let the programs take turns, every second time backwards.

    Raises:
        ProgramError: one of them failed.
    """
    bench.unpack()
    times: dict[str, list[Time]] = {name: [] for name, _, _ in _LINES}
    for turn in range(repeats):
        for name, _, program in _LINES[::-1] if turn % 2 else _LINES:
            times[name].append(program(bench))
            sys.stderr.write(f"[{turn + 1}/{repeats}] {name}: {times[name][-1].whole_s:.2f} s\n")
    return [
        Line(
            name=name,
            beside=beside,
            whole_s=Spread.of(one.whole_s for one in times[name]),
            own_s=Spread.of(one.own_s for one in times[name]),
        )
        for name, beside, _ in _LINES
    ]


def to_markdown(packing: Packing) -> str:
    """Return the report for people; ratios are of speeds, above 1 is faster than what it is beside."""
    head = (
        f"{packing.images:,} images of {packing.image_bytes / packing.images / 1e3:.0f} kB on a memory disk, medians "
        f"of {packing.repeats} runs that took turns. Without start: the work as the program itself counts it; the "
        "packer's count still holds the start of its checking processes."
    )
    lines = [
        head,
        "",
        "| | s | lowest-highest | images/s | ratio | s without start | images/s | ratio |",
        "|-|-:|-:|-:|-:|-:|-:|-:|",
    ]
    by_name = {line.name: line for line in packing.lines}
    for line in packing.lines:
        beside = by_name[line.beside] if line.beside else None
        whole, own = line.whole_s, line.own_s
        cells = (
            line.name,
            f"{whole.median:.2f}",
            f"{whole.low:.2f}-{whole.high:.2f}",
            f"{packing.images / whole.median:,.0f}",
            f"{beside.whole_s.median / whole.median:.2f}" if beside else "",
            f"{own.median:.2f}",
            f"{packing.images / own.median:,.0f}",
            f"{beside.own_s.median / own.median:.2f}" if beside else "",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status."""
    options = _parse(arguments)
    try:
        known = present(options.images, options.captions)
        sizes = sum((options.images / image["file_name"]).stat().st_size for image in known["images"])
        copies = options.copies or -(-_IMAGES // len(known["images"]))
        free = shutil.disk_usage(options.on).free
        if free < _ROOM * sizes * copies:
            return _say(f"--on {options.on}: {free} bytes are free, {_ROOM * sizes * copies} are needed", 2)
    except (NothingToCopyError, OSError, msgspec.DecodeError, KeyError, TypeError) as exc:
        return _say(f"the images cannot be read: {type(exc).__name__}: {exc}", 2)
    try:
        with tempfile.TemporaryDirectory(prefix="packing-", dir=options.on) as folder:
            images = copy_set(options.images, options.captions, Path(folder), copies=copies)
            lines = measure(Bench(Path(folder)), repeats=options.repeats)
    except ProgramError as exc:
        return _say(str(exc), 1)
    except KeyboardInterrupt:
        return _say("interrupted", 130)
    packing = Packing(images=images, image_bytes=sizes * copies, repeats=options.repeats, lines=lines)
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(packing)) + b"\n")
    sys.stdout.write(to_markdown(packing))
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="pack_speed.py",
        description="Measure the packer beside tar, and beside decoding alone.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--images", type=Path, required=True, help="folder of images")
    add("--captions", type=Path, required=True, help="their COCO captions JSON; images that are not there are left out")
    add("--copies", type=_positive, help=f"copies of each image (default: as many as make {_IMAGES} images)")
    add("--repeats", type=_positive, default=5, help="runs of each program (default: 5)")
    add("--on", type=Path, default=Path("/dev/shm"), help="memory disk (default: /dev/shm)")  # noqa: S108 - a folder of its own is made there
    add("--json", type=Path, help="also write everything to this file")
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def _run(command: Sequence[str]) -> tuple[float, bytes]:
    """Run a program to its end and return its seconds and what it printed."""
    begin = time.perf_counter()
    output = _finish(command, _start(command))
    return time.perf_counter() - begin, output


def _start(command: Sequence[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # noqa: S603 - our own programs, and tar


def _finish(command: Sequence[str], process: "subprocess.Popen[bytes]") -> bytes:
    output, said = process.communicate()
    if process.returncode:
        raise ProgramError(command, process.returncode, said.decode(errors="replace"))
    return output


def _say(message: str, status: int) -> int:
    sys.stderr.write(f"pack_speed.py: {message}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
