"""C3 over packed shards: what is skipped is not even opened."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import simplejpeg

from fault_cases.making import LOADER, Fault, Found, Make, Verdict, Wanted, shared_folder
from fault_cases.rows import once_each
from shards.dataset import DatasetReader
from shards.index import RowInfo
from shards.store import open_store
from shards.writer import ShardWriter

_SIDE = 8
_STEPS, _SKIPPED, _ROWS = 6, 3, 3
_SHARD_BYTES = 24 * 2**10


def make_packed(folder: Path, rows: int) -> None:
    """Pack `rows` small images; the key of each is its number."""
    image = simplejpeg.encode_jpeg(np.zeros((_SIDE, _SIDE, 3), dtype=np.uint8))
    with ShardWriter(open_store(str(folder)), "made", shard_bytes=_SHARD_BYTES) as writer:
        for number in range(rows):
            about = {
                "image_id": number,
                "file_name": f"{number:012d}.jpg",
                "width": _SIDE,
                "height": _SIDE,
                "captions": ["one"],
                "caption_ids": [0],
                "license": 1,
                "urls": {"coco": "", "flickr": ""},
            }
            parts = {"jpg": image, "txt": b"one", "json": json.dumps(about).encode()}
            writer.add(f"{number:012d}", parts, RowInfo(_SIDE, _SIDE, 1, (3,)))
        writer.close()


def c3_packed(make: Make) -> Found:
    """Skip three steps of packed shards, after the shards of those alone were removed."""
    with shared_folder() as folder:
        accelerator = make.accelerator()
        step = _ROWS * accelerator.num_processes
        removed = 0
        if accelerator.is_main_process:
            make_packed(folder, _STEPS * step)
            removed = _remove_before(folder, _SKIPPED * step)
        accelerator.wait_for_everyone()
        loader = make.skip(make.loader(accelerator, str(folder), Wanted(batch_size=_ROWS)), _SKIPPED)
        steps = [[int(key) for key in batch["key"]] for batch in loader]
        return {"steps": steps, "remainder": -1, "removed": removed}


def _remove_before(folder: Path, row: int) -> int:
    """Remove the shards that end before a row, and tell how many those are."""
    with_rows = DatasetReader(str(folder)).manifest.shardlist
    end = removed = 0
    for info in with_rows:
        end += info.nsamples
        if end <= row:
            (folder / info.url).unlink()
            removed += 1
    return removed


def judge_c3_packed(ranks: Sequence[Found]) -> Verdict:
    """The steps behind must come; at least one shard must have been missing."""
    step = _ROWS * len(ranks)
    rows = once_each(ranks, range(_SKIPPED * step, _STEPS * step))
    removed = ranks[0]["removed"]
    return Verdict(rows.right and removed > 0, f"{rows.words}, without {removed} shards of what is skipped")


FAULTS = (
    Fault(
        id="C3-packed",
        what="skipping in packed shards",
        run=c3_packed,
        judge=judge_c3_packed,
        sides=LOADER,
        stock="stock does not read packed shards by number",
    ),
)
