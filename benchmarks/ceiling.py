"""The decode ceiling of this machine: how many images a second T threads decode and resize, and do nothing else.

Every share of a ceiling, in reports and in the README, refers to ``decode_ceiling``. Encoded images lie in memory, the
decoder and the resize are those that the loader uses; nothing is read, sent, batched or collated. ``pillow_figure``
measures the same work done by Pillow (draft, then resize), to be printed beside it.

As a program: ``python benchmarks/ceiling.py --data FOLDER_OF_JPEGS --image-size 224 --threads 1,2 --seconds 3``.
"""

import argparse
import io
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Barrier
from time import perf_counter
from typing import TypeAlias

import numpy as np
import torch
from PIL import Image

from stream.resize import ResizeSpec, decode_into, scaled_size

Work: TypeAlias = Callable[[bytes, torch.Tensor], None]

_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Images a second over ``repeats`` windows of ``seconds`` each, by ``threads`` threads together."""

    images_per_s: float
    """The median of the windows."""
    lowest: float
    highest: float
    threads: int
    seconds: float
    repeats: int


def decode_ceiling(images: Sequence[bytes], *, spec: ResizeSpec, threads: int, seconds: float, repeats: int) -> Ceiling:
    """Measure ``stream.resize.decode_into``: simplejpeg at the smallest sufficient scale, then the resize.

    Args:
        images: Encoded images; each thread goes through its share of them again and again.
        spec: What each image becomes.
        threads: Threads that decode at once, each into memory of its own.
        seconds: Length of a window; a quarter of it is spent on warming up first.
        repeats: Windows.

    Raises:
        DecodeError: One of the images cannot be decoded.
    """

    def work(image: bytes, out: torch.Tensor) -> None:
        decode_into(image, out, spec, name="of the ceiling")

    return _measure(work, images, spec, (threads, seconds, repeats))


def pillow_figure(images: Sequence[bytes], *, spec: ResizeSpec, threads: int, seconds: float, repeats: int) -> Ceiling:
    """Measure the same by Pillow; arguments as of ``decode_ceiling``.

    ``draft`` picks the smallest scale that is at least the target, which is a smaller one than the ceiling's
    decoder takes (see ``stream.resize.DECODE_GAP``). Orientation is not looked at.
    """

    def work(image: bytes, out: torch.Tensor) -> None:
        np.copyto(out.numpy(), np.asarray(by_pillow(image, spec)))

    return _measure(work, images, spec, (threads, seconds, repeats))


def by_pillow(data: bytes, spec: ResizeSpec) -> Image.Image:
    """Decode and resize as ``spec`` says, by Pillow alone, to RGB of exactly the size of ``spec``."""
    with Image.open(io.BytesIO(data)) as source:
        height, width = scaled_size(spec, height=source.height, width=source.width)
        source.draft("RGB", (width, height))
        scaled = source.convert("RGB").resize((width, height), _FILTERS[spec.interpolation])
    if (height, width) == (spec.height, spec.width):
        return scaled
    top, left = round((height - spec.height) / 2), round((width - spec.width) / 2)
    return scaled.crop((left, top, left + spec.width, top + spec.height))  # beyond its edges crop gives black


def _measure(work: Work, images: Sequence[bytes], spec: ResizeSpec, plan: tuple[int, float, int]) -> Ceiling:
    threads, seconds, repeats = plan
    if not images:
        raise ValueError("no images: there is nothing to measure the ceiling with")
    with ThreadPoolExecutor(threads) as pool:
        _window(work, images, spec, pool, (threads, seconds / 4))
        rates = [_window(work, images, spec, pool, (threads, seconds)) for _ in range(repeats)]
    return Ceiling(median(rates), min(rates), max(rates), threads, seconds, repeats)


def _window(
    work: Work, images: Sequence[bytes], spec: ResizeSpec, pool: ThreadPoolExecutor, plan: tuple[int, float]
) -> float:
    """Images a second, from the start of the first thread to the end of the last one's last image."""
    threads, seconds = plan
    start = Barrier(threads)

    def run(index: int) -> tuple[int, float, float]:
        out = torch.empty((spec.height, spec.width, 3), dtype=torch.uint8)
        start.wait()
        begin, done = perf_counter(), 0
        while done == 0 or perf_counter() - begin < seconds:
            work(images[(index + done * threads) % len(images)], out)
            done += 1
        return done, begin, perf_counter()

    counts, begins, ends = zip(*pool.map(run, range(threads)), strict=True)
    return float(sum(counts) / (max(ends) - min(begins)))


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measure the decode ceiling of this machine, Pillow's figure beside it."
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of JPEGs; folders inside are searched too")
    parser.add_argument("--image-size", type=int, default=224, help="side of the square target, in pixels")
    parser.add_argument("--threads", default="1,2", help="numbers of threads, separated by commas")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each window")
    parser.add_argument("--repeats", type=int, default=3, help="windows; the median of them counts")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table: one row for each decoder and number of threads. Exit status 2 where there are no images."""
    options = _arguments(arguments)
    images = [path.read_bytes() for path in sorted(options.data.rglob("*.jp*g"))]
    if not images:
        sys.stderr.write(f"{options.data}: no .jpg or .jpeg file in this folder\n")
        return 2
    spec = ResizeSpec(options.image_size, options.image_size)
    mean_kb = sum(map(len, images)) / len(images) / 1e3
    sys.stdout.write(f"{len(images)} images of {mean_kb:.0f} kB on average, to {spec.height}x{spec.width}\n")
    sys.stdout.write(f"{'decoder':<24}{'threads':>8}{'images/s':>10}{'lowest':>10}{'highest':>10}\n")
    for threads in (int(number) for number in options.threads.split(",")):
        for name, figure in (("ceiling (simplejpeg)", decode_ceiling), ("Pillow", pillow_figure)):
            got = figure(images, spec=spec, threads=threads, seconds=options.seconds, repeats=options.repeats)
            row = f"{name:<24}{threads:>8}{got.images_per_s:>10.0f}{got.lowest:>10.0f}{got.highest:>10.0f}\n"
            sys.stdout.write(row)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
