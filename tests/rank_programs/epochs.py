"""Iterate loaders over packed data and tell what this rank got, step by step."""

import hashlib

import torch
from rank_job import accelerator_for, run

from packed import number_of
from ranks import left_behind
from stream.loader import StreamLoader
from stream.options import StreamOptions


def as_dict(examples):
    return {
        "pixels": torch.stack([example["image"] for example in examples]),
        "more": {"words": [example["caption"].split() for example in examples]},
        "key": [example["key"] for example in examples],
    }


def as_tuple(examples):
    ids = torch.tensor([int(example["key"]) for example in examples])
    return torch.stack([example["image"] for example in examples]), ids, [example["caption"] for example in examples]


COLLATES = {None: None, "dict": as_dict, "tuple": as_tuple}


def main(config, _):
    return {case["name"]: case_of(case) for case in config["cases"]}


def case_of(case):
    accelerator = accelerator_for(case["mode"], **case.get("accelerator", {}))
    options = {"batch_size": 12, **case["options"]}
    if isinstance(options.get("image_size"), list):
        options["image_size"] = tuple(options["image_size"])
    loader = StreamLoader(
        case["url"],
        accelerator=accelerator,
        collate=COLLATES[case.get("collate")],
        options=StreamOptions(**case.get("made", {})),
        **options,
    )
    loader = accelerator.prepare(loader)
    epochs = [[step_of(batch, accelerator, case) for batch in loader] for _ in range(case["epochs"])]
    return {"epochs": epochs, "length": len(loader), "epoch": loader.epoch, "left": left_behind()}


def step_of(batch, accelerator, case):
    state = accelerator.gradient_state
    told = {"last": state.end_of_dataloader, "remainder": state.remainder, "form": type(batch).__name__}
    if case.get("gather", True):
        told["gathered"] = gathered(batch, accelerator)
    if case.get("collate") == "tuple":
        pixels, ids, texts = batch
        return {**told, "ids": ids.tolist(), "caption": texts, "image": [image_of(image) for image in pixels]}
    images = batch["pixels"] if "pixels" in batch else batch["image"]
    told["list"] = isinstance(images, list)
    told["channels_last"] = not told["list"] and images.is_contiguous(memory_format=torch.channels_last)
    rest = {name: value for name, value in batch.items() if name not in {"image", "pixels"}}
    return {**told, **rest, "image": [image_of(image) for image in images] if case.get("look", True) else None}


def gathered(batch, accelerator):
    """What gather_for_metrics makes of the step, as objects and as a tensor: the same ids on every rank."""
    ids = batch[1] if isinstance(batch, tuple) else torch.tensor([int(key) for key in batch["key"]])
    objects = accelerator.gather_for_metrics(ids.tolist(), use_gather_object=True)
    return [objects, accelerator.gather_for_metrics(ids).tolist()]


def image_of(image):
    return [number_of(image), str(image.dtype), list(image.shape), hashlib.sha256(image.numpy().tobytes()).hexdigest()]


run(main)
