"""What ranks are told to do by the tests of resuming: take steps of a loader, from its beginning or from a state."""

import json
import random
from hashlib import sha256

import numpy as np
import torch
from accelerate.utils import set_seed

from rank_programs.rank_job import accelerator_for
from stream.loader import StreamLoader
from stream.options import StreamOptions


def jittered(example, generator):
    """An augmentation: noise and mirroring, by the row's own generator."""
    noise = torch.randint(256, example["image"].shape, generator=generator, dtype=torch.uint8)
    image = example["image"] ^ noise
    return {**example, "image": image.flip(-1) if torch.rand((), generator=generator) < 0.5 else image}


def walk(url, mode, options, *, epochs=1, state=None, seed=None, take=None):
    """This rank's keys and a digest of its pixels at each step, with the state after each, until `epochs` are over.

    `seed` moves the global generators before and after the loader is made; `take` ends after so many steps.
    """
    accelerator = accelerator_for(mode)
    if seed is not None:
        set_seed(seed, device_specific=True)
    size = tuple(options.pop("image_size"))
    loader = StreamLoader(url, accelerator=accelerator, transform=jittered, image_size=size, **options)
    if seed is not None:
        set_seed(seed + 1, device_specific=True)
    accelerator.prepare(loader)
    if state is not None:
        loader.load_state_dict(state)
    found = []
    while loader.epoch < epochs and (take is None or len(found) < take):
        epoch = loader.epoch
        for batch in loader:
            if seed is not None:
                torch.rand(3), np.random.rand(3), random.random()  # noqa: NPY002 - the global one
            pixels = [sha256(image.contiguous().numpy().tobytes()).hexdigest()[:16] for image in batch["image"]]
            real = loader.remainder if loader.end_of_dataloader else loader.total_batch_size
            found.append(
                {
                    "epoch": epoch,
                    "rows": list(zip(batch["key"], pixels, strict=True)),
                    "real": real,
                    "state": json.loads(json.dumps(loader.state_dict())),
                }
            )
            if len(found) == take:
                break
    loader.close()
    return {"ranks": accelerator.num_processes, "steps": found}


def bad_rows(url, mode, size, epochs):
    """This rank's keys over some epochs of data with bad rows, what it knows of them, and what a checkpoint says."""
    accelerator = accelerator_for(mode)
    options = StreamOptions(on_error="substitute", bad_rows_limit=5)
    made = {"batch_size": 12, "image_size": tuple(size), "shuffle": "full", "options": options}
    loader = StreamLoader(url, accelerator=accelerator, **made)
    accelerator.prepare(loader)
    keys = []
    while loader.epoch < epochs:
        keys += [list(batch["key"]) for batch in loader]
    found = {"keys": keys, "quarantine": loader.state_dict()["quarantine"], "saved": loader.saved_state()["quarantine"]}
    loader.close()
    return found


def failing_keep(url, mode, rank):
    """What each rank raises where the predicate of one fails, and the keys once it does not."""
    accelerator = accelerator_for(mode)
    fails = [accelerator.process_index == rank]

    def keep(rows):
        if fails.pop() if fails else False:
            raise ValueError("no such column")
        return rows.width > 0

    loader = StreamLoader(url, accelerator=accelerator, batch_size=12, parts=("txt",), keep=keep)
    accelerator.prepare(loader)
    said = ""
    try:
        for _ in loader:  # not list(), which asks for the length first
            pass
    except Exception as exc:  # noqa: BLE001 - told
        said = f"{type(exc).__name__}: {exc}"
    keys = [key for batch in loader for key in batch["key"]]
    loader.close()
    return {"said": said, "keys": keys}


def telling(rows, state=None):
    """This rank's keys of an epoch of a source that says where it is, the states, and what was read on this rank."""
    from test_stream_bookmarks import Noting

    accelerator = accelerator_for("dispatch")
    source = Noting(rows)
    loader = StreamLoader(source, accelerator=accelerator, batch_size=12)
    accelerator.prepare(loader)
    if state is not None:
        loader.load_state_dict(state)
    keys, states = [], []
    for batch in loader:
        keys.append(batch["key"])
        states.append(json.loads(json.dumps(loader.state_dict())))
    loader.close()
    return {"ranks": accelerator.num_processes, "keys": keys, "states": states, "read": source.read}
