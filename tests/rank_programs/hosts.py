"""Iterate loaders on several hosts and tell what this rank got, when, how it was reached, and what it raised.

Driver and ranks tell each other how far they are by empty files beside the config: a rank touches `MARK.RANK` and,
where the config says so, waits for `MARK.go`.
"""

import json
import os
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
from accelerate import InitProcessGroupKwargs
from rank_job import accelerator_for
from torch.utils.data import Dataset

from packed import SIZE
from ranks import left_behind
from stream.loader import StreamLoader
from stream.options import StreamOptions

CONFIG, FOUND = map(Path, sys.argv[1:])
RANK = int(os.environ["RANK"])


class Pictures(Dataset):
    """Rows that are read by the reader alone: a key, and a tensor whose every byte tells its row."""

    def __init__(self, rows, side, stalls):
        self.rows, self.side, self.stalls = rows, side, stalls

    def __len__(self):
        return self.rows

    def __getitem__(self, row):
        time.sleep(self.stalls.get(str(row), 0))
        return {"key": f"{row:012d}", "image": torch.full((3, self.side, self.side), row % 251, dtype=torch.uint8)}


def main(config):
    timeout = InitProcessGroupKwargs(timeout=timedelta(seconds=config["timeout_s"]))
    accelerator = accelerator_for("dispatch", kwargs_handlers=[timeout])
    assert accelerator.num_processes == int(os.environ["WORLD_SIZE"])
    found = {"timeout_s": timeout_of_group()}
    for case in config["cases"]:
        found[case["name"]] = case_of(accelerator, case)
    FOUND.write_text(json.dumps(found))
    if any("error" in case for case in found.values() if isinstance(case, dict)):
        sys.stderr.flush()
        os._exit(0)  # the process group cannot be ended over a cable that is cut
    accelerator.end_training()


def timeout_of_group():
    return torch.distributed.group.WORLD._get_backend(torch.device("cpu")).options._timeout.total_seconds()


def case_of(accelerator, case):
    reach(case, "begin")
    loader = accelerator.prepare(loader_of(accelerator, case))
    told = {"epochs": [], "at": [time.monotonic()], "true": True, "bytes": 0}
    try:
        for _ in range(case.get("epochs", 1)):
            told["epochs"].append([])
            for step, batch in enumerate(loader):
                take(case, told, step, batch)
    except Exception as exc:  # noqa: BLE001 - any error is what is looked at
        traceback.print_exc()
        told |= {"error": type(exc).__name__, "text": str(exc), "error_at": time.monotonic()}
    told |= {"described": loader.describe(), "received_bytes": loader.stats.received_bytes}
    loader.close()
    told["left"] = left_behind()
    reach(case, "end")
    return told


def take(case, told, step, batch):
    told["epochs"][-1].append(batch["key"])
    told["at"].append(time.monotonic())
    told["bytes"] += batch["image"].nbytes
    if "rows" in case:
        expected = torch.tensor([int(key) % 251 for key in batch["key"]], dtype=torch.uint8)
        told["true"] &= bool((batch["image"] == expected[:, None, None, None]).all())
    time.sleep(case.get("step_s", 0))
    reach(case, f"step {step}")


def loader_of(accelerator, case):
    options = {"batch_size": case["batch_size"], "shuffle": case["shuffle"], "seed": 3}
    if "rows" in case:
        source = Pictures(case["rows"], case["side"], case.get("stalls", {}))
    else:
        source, options = case["url"], {**options, "image_size": SIZE}
    made = StreamOptions(**case["made"])
    return StreamLoader(source, accelerator=accelerator, name=case["name"], options=made, **options)


def reach(case, what):
    """Tell the driver of a mark that the case names, and wait where it says so."""
    if what not in case.get("marks", ()):
        return
    mark = CONFIG.with_name(f"{case['name']} {what}")
    Path(f"{mark}.{RANK}").touch()
    while what in case.get("waits", ()) and not Path(f"{mark}.go").exists():
        time.sleep(0.005)


main(json.loads(CONFIG.read_text()))
