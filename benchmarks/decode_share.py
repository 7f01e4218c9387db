"""Read and fully decode a share of the images of a folder, and nothing else: what packing is measured against.

    python benchmarks/decode_share.py FOLDER NUMBER OF [--check]

takes every OF-th image from NUMBER on, decodes it to RGB (with --check as the packer does: all coded data, but only the
brightness is computed) and prints one JSON object: when it began and ended, in seconds of the clock
that all processes of a machine share (CLOCK_MONOTONIC), and how many images it decoded.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stream.decode import check, decode


class Share(msgspec.Struct, frozen=True):
    """What one process did."""

    begin_s: float
    end_s: float
    images: int


def main(arguments: Sequence[str]) -> int:
    """Run the program and return its exit status."""
    folder, number, of = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    begin = time.monotonic()
    work = check if "--check" in arguments else decode
    paths = sorted(folder.iterdir())[number::of]
    for path in paths:
        work(path.read_bytes(), name=path.name)
    sys.stdout.write(msgspec.json.encode(Share(begin, time.monotonic(), len(paths))).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
