"""Loaders beside models, optimizers and each other: what accelerate knows, and what is left."""

import itertools

import torch
from rank_job import accelerator_for, run

from packed import SIZE, number_of
from ranks import child_processes, left_behind
from stream.loader import StreamLoader
from stream.options import StreamOptions

LIVE = []
"""Iterations that are still held when the process ends."""


def main(config, _):
    parts, modes = (prepared, trained, accumulated, evaluated, left_early, epochs, abandoned), ("dispatch", "shard")
    told = {mode: {part.__name__: part(config["url"], mode) for part in parts} for mode in modes}
    for mode in modes:
        accelerator = accelerator_for(mode)
        LIVE.append(iter(accelerator.prepare(loader_of(config["url"], accelerator))))
        next(LIVE[-1])
    return told


def loader_of(url, accelerator, *, workers=0, **options):
    options = {"batch_size": 12, "image_size": SIZE, "shuffle": "window", **options}
    return StreamLoader(url, accelerator=accelerator, options=StreamOptions(workers=workers), **options)


def prepared(url, mode):
    """For every order in `prepare`: is it the same object, how often is it registered, how many batches."""
    told = []
    for order in itertools.permutations(range(3)):
        accelerator = accelerator_for(mode)
        loader, model = loader_of(url, accelerator), torch.nn.Linear(3, 1)
        given = [loader, model, torch.optim.SGD(model.parameters(), lr=0.1)]
        found = accelerator.prepare(*(given[place] for place in order))
        registered = sum(known is loader for known in accelerator._dataloaders)
        told.append([found[order.index(0)] is loader, registered, sum(1 for _ in loader)])
    return told


def trained(url, mode):
    """Train over two epochs with accumulated gradients: the weights at the end."""
    accelerator = accelerator_for(mode, gradient_accumulation_steps=2)
    model = torch.nn.Linear(3, 1)
    torch.nn.init.constant_(model.weight, 0.1)
    torch.nn.init.constant_(model.bias, 0.0)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.01), loader_of(url, accelerator, drop_last=True)
    )
    while loader.epoch < 2:
        for batch in loader:
            with accelerator.accumulate(model):
                means = batch["image"].float().mean(dim=(2, 3)) / 255
                target = torch.tensor([[number_of(image) / 50] for image in batch["image"]])
                accelerator.backward((model(means) - target).square().mean())
                optimizer.step()
                optimizer.zero_grad()
    return [weight.tolist() for weight in model.parameters()]


def accumulated(url, mode):
    """At which steps of two epochs of 5 steps gradients are synced."""
    accelerator = accelerator_for(mode, gradient_accumulation_steps=2)
    model, loader = accelerator.prepare(torch.nn.Linear(3, 1), loader_of(url, accelerator))
    synced = []
    while loader.epoch < 2:
        for _ in loader:
            with accelerator.accumulate(model):
                synced.append(accelerator.sync_gradients)
    return synced


def evaluated(url, mode):
    """Evaluate within training and leave the evaluation by break: what training sees of its own end."""
    accelerator = accelerator_for(mode)
    loader, evaluation = accelerator.prepare(
        loader_of(url, accelerator), loader_of(url, accelerator, name="eval", batch_size=6, shuffle=None, workers=1)
    )
    told = []
    for batch in loader:
        seen = []
        for inner in evaluation:
            seen += accelerator.gather_for_metrics(inner["key"])
            if len(seen) > 6:
                break
        state = accelerator.gradient_state
        gathered = accelerator.gather_for_metrics(batch["key"])
        told.append({"last": state.end_of_dataloader, "gathered": gathered, "eval": seen})
    return told


def left_early(url, mode):
    """Leave an epoch by break, with threads and with workers; then run it whole."""
    told = []
    for workers in (0, 2):
        accelerator = accelerator_for(mode)
        loader = accelerator.prepare(loader_of(url, accelerator, workers=workers))
        first = leave_after_one(loader)
        left, registered = left_behind(), accelerator.gradient_state.in_dataloader
        keys = [batch["key"] for batch in loader]
        told.append([left, registered, first == keys[0], len(keys), loader.epoch, left_behind()])
    return told


def leave_after_one(loader):
    for batch in loader:
        return batch["key"]
    return None


def epochs(url, mode):
    """Choose epochs: the first keys of each."""
    accelerator = accelerator_for(mode)
    loader = accelerator.prepare(loader_of(url, accelerator))
    counted = [[batch["key"] for batch in loader] for _ in range(3)]
    chosen = []
    for epoch in (2, 0, 1):
        loader.set_epoch(epoch)
        chosen.append([batch["key"] for batch in loader] == counted[epoch])
    return {"chosen": chosen, "differ": counted[0] != counted[1] != counted[2], "epoch": loader.epoch}


def abandoned(url, mode):
    """Close what is held, twice; drop what is held; count the worker processes meanwhile."""
    accelerator = accelerator_for(mode)
    loader, other = accelerator.prepare(
        loader_of(url, accelerator), loader_of(url, accelerator, workers=1, batch_size=2)
    )
    held = iter(loader)
    next(held)
    loader.close()
    loader.close()
    told = [left_behind(), list(held)]
    dropped = iter(other)
    next(dropped)
    workers = len(child_processes())
    del dropped
    return [*told, workers, left_behind()]


run(main)
