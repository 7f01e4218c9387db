"""What tests of the benchmarks share: a small dataset of real JPEGs, and a made-up result."""

import json

import numpy as np
import simplejpeg

from messages import Config, Setting
from report import NOTHING_TO_PIN, Dataset, Machine, Rate, Result, Row, Spread
from shards.index import RowInfo
from shards.store import open_store
from shards.writer import ShardWriter


def make_images(folder, count=24, *, shard_bytes=60_000):
    """Write a packed dataset of `count` small noisy JPEGs in several shards and return its path as text."""
    rng = np.random.default_rng(7)
    with ShardWriter(open_store(str(folder)), "made", shard_bytes=shard_bytes) as writer:
        for number in range(count):
            height, width = 48 + number % 5, 64 + number % 7
            pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
            caption = f"picture {number}".encode()
            parts = {
                "jpg": simplejpeg.encode_jpeg(pixels),
                "txt": caption,
                "json": json.dumps({"captions": [caption.decode()]}).encode(),
            }
            writer.add(f"{number:012d}", parts, RowInfo(width, height, 1, (len(caption),)))
    return str(folder)


def config(mode="dispatch", *, ranks=2, workers=0, prefetch=2, pin=False):
    return Config(mode=mode, ranks=ranks, workers=workers, prefetch=prefetch, pin_memory=pin)


def setting(data, rows, **changes):
    """A setting for windows as short as they can be."""
    known = {"batch_size": 8, "image_size": 32, "warmup_s": 0.05, "window_s": 0.2, "patience_s": 30.0}
    return Setting(data=data, rows=rows, **{**known, **changes})


def row(rate, mode="dispatch", *, advice=False, failed=None, unpinnable=True, **about):
    """A row with this median of samples/s, spread by 10 each way."""
    made = config(mode, **about)
    blank = {
        "config": made,
        "in_grid": True,
        "common_advice": advice,
        "note": NOTHING_TO_PIN if made.pin_memory and unpinnable else "",
        "encoded_bytes": 165_000.0,
    }
    if failed is not None:
        return Row(**blank, failed=failed)
    return Row(
        **blank,
        samples_per_s=Spread(rate, rate - 10, rate + 10),
        share_of_ceiling=rate / 1000,
        first_batch_s=Spread(0.25, 0.2, 0.3),
        wait_ms=Spread(61.5, 60.0, 63.0),
        peak_mib=Spread(1412.0, 1400.0, 1420.0),
        delivered_bytes=150_600.0,
    )


def result(rows, **changes):
    """A result with these rows; everything else is the same each time."""
    known = {
        "date": "2026-01-02 03:04 UTC",
        "command": "python benchmarks/run.py --data packed",
        "machine": Machine(
            cpu="Some CPU",
            cores=2,
            memory_gib=16.0,
            accelerator="no accelerator",
            load=0.1,
            python="3.11.7",
            torch="2.13.0",
            accelerate="1.15.0",
        ),
        "dataset": Dataset(url="packed", samples=200, rows=4200, encoded_bytes=165_000.0),
        "setting": setting("packed", 4200, batch_size=64, image_size=224, window_s=3.0, warmup_s=1.0),
        "repeats": 3,
        "ceiling": Rate(images_per_s=1000.0, low=980.0, high=1020.0, threads=2, medians=[990.0, 1010.0]),
        "pillow": Rate(images_per_s=800.0, low=790.0, high=810.0, threads=2, medians=[800.0]),
        "checks": [],
        "problems": [],
    }
    return Result(rows=rows, **{**known, **changes})
