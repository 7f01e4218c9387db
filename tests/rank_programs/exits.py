"""Ranks that end in all ways: by themselves, with an error in what the user gave, by Ctrl-C, killed.

Called with a config that names what to do. What cannot be written at the end is written beside the config meanwhile.
"""

import json
import os
import re
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

import torch
from accelerate.utils import gather_object
from rank_job import accelerator_for
from torch.utils.data import DataLoader, Dataset

from exchanges_made import shared_memory
from packed import SIZE, key_of
from ranks import soon_left_behind
from running import socket_names
from stream.loader import StreamLoader
from stream.options import StreamOptions

CONFIG, FOUND = map(Path, sys.argv[1:])
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
PORTION = 6
BAD = 2 * PORTION * RANKS + PORTION * (RANKS - 1)
"""The row that fails: of the third step, and of the last rank's portion."""


class Rows(Dataset):
    """Rows of their number; `on_bad` is called for the bad one."""

    def __init__(self, rows, on_bad=int):
        self.rows, self.on_bad = rows, on_bad

    def __len__(self):
        return self.rows

    def __getitem__(self, number):
        if number == BAD:
            self.on_bad()
        return {"key": key_of(number), "number": torch.tensor(number)}


def note_time(name):
    (CONFIG.parent / f"{name}.failed").write_text(str(time.monotonic()))


def fail(name, kind):
    note_time(name)
    raise kind("the row is bad")


def wait_for_ctrl_c(name, rank):
    """Be slow, on the reader, while Ctrl-C is pressed on one rank."""
    (CONFIG.parent / f"{name}.slow").touch()
    time.sleep(1.5)


def press_ctrl_c(name):
    while not (CONFIG.parent / f"{name}.slow").exists():
        time.sleep(0.01)
    time.sleep(0.3)  # all ranks have taken what came before, and wait
    note_time(name)
    os.kill(os.getpid(), signal.SIGINT)


def failing_collate(name, examples):
    keys = [example["key"] for example in examples]
    if key_of(BAD) in keys:
        fail(name, LookupError)
    return {"key": keys}


def loader_of(accelerator, case, *, rows=40 * PORTION * RANKS, on_bad=int, collate=None):
    made = StreamOptions(**case.get("made", {}))
    packed = case.get("url") is not None
    loader = StreamLoader(
        case["url"] if packed else Rows(rows, on_bad),
        accelerator=accelerator,
        batch_size=PORTION * RANKS,
        image_size=SIZE if packed else None,
        shuffle=None,
        collate=collate,
        name=re.sub(r"[^a-z]+", "-", case["name"].lower()),
        options=made,
    )
    return accelerator.prepare(loader)


def errors(config, accelerator):
    """Meet one error after another; after each the ranks must still understand each other."""
    return {case["name"]: error_of(case) for case in config["cases"]}


def error_of(case):
    accelerator = accelerator_for("dispatch")
    name, told = case["name"], {"steps": 0, "kind": None, "text": None}
    on_bad = {"raise": partial(fail, name, OSError), "ctrl-c": partial(fail, name, KeyboardInterrupt)}
    on_bad["wait"] = partial(wait_for_ctrl_c, name, case.get("rank"))
    collate = partial(failing_collate, name) if case.get("collate") else None
    loader = loader_of(accelerator, case, on_bad=on_bad.get(case.get("bad"), int), collate=collate)
    presser = threading.Thread(target=press_ctrl_c, args=(name,))
    if case.get("rank") == RANK:
        presser.start()
    try:
        for _ in loader:
            told["steps"] += 1
    except BaseException as exc:  # noqa: BLE001 - Ctrl-C too
        told |= {"kind": type(exc).__name__, "text": str(exc), "at": time.monotonic()}
    loader.close()
    told |= {"left": soon_left_behind(8), "registered": accelerator.gradient_state.in_dataloader}
    told["gathered"] = gather_object([RANK])
    return told


def killed(config, accelerator):
    """Iterate until another rank is killed; tell what was raised and when, and what is left of it here."""
    case = config["case"]
    loader = loader_of(accelerator, case, rows=10_000 * PORTION * RANKS)
    beside = None
    told = {"kind": None, "text": None, "steps": 0}
    try:
        while True:
            for _ in loader:
                told["steps"] += 1
                time.sleep(0.01)
                if told["steps"] == 3 and case.get("beside"):  # the user's own, forked while the links are up
                    beside = iter(DataLoader(range(10_000), num_workers=1))
                    next(beside)
                if told["steps"] == 5:
                    (CONFIG.parent / f"amid.{RANK}").touch()
    except Exception as exc:  # noqa: BLE001 - any error is what is looked at
        told |= {"kind": type(exc).__name__, "text": str(exc), "at": time.monotonic()}
    del beside
    loader.close()
    told |= {"left": soon_left_behind(8), "memory": shared_memory(), "sockets": socket_names("self")}
    FOUND.write_text(json.dumps(told))
    sys.stderr.flush()
    os._exit(0)  # a process group that has lost a rank cannot be ended


HELD = []


def ends(config, accelerator):
    """Have loaders in all states at once, and end."""
    told = {"steps": 0}
    for case in config["cases"]:
        loader = loader_of(accelerator, case)
        for step, _ in enumerate(loader, 1):
            told["steps"] += 1
            if step == case.get("breaks_at"):
                break
        if case.get("held"):
            HELD.append(iter(loader))
            next(HELD[-1])
    return told


def main():
    config = json.loads(CONFIG.read_text())
    accelerator = accelerator_for("dispatch")
    assert accelerator.num_processes == RANKS
    FOUND.write_text(json.dumps(DO[config["do"]](config, accelerator)))
    if config.get("end_training", True):
        accelerator.end_training()


DO = {"errors": errors, "killed": killed, "ends": ends}

if __name__ == "__main__":
    main()
