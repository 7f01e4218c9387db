"""Iterate loaders over sources that are no packed dataset, and tell what this rank got."""

import itertools
import warnings

import torch
import webdataset
from rank_job import accelerator_for, run
from torch.utils.data import Dataset, IterableDataset

from packed import SIZE, number_of
from ranks import left_behind
from stream.loader import StreamLoader

# webdataset 1.0 leaves closing its tars to the garbage collector
warnings.filterwarnings("ignore", "unclosed file <_io.BufferedReader name=.*tar", ResourceWarning)

ROWS = 29


class Numbers(Dataset):
    def __len__(self):
        return ROWS

    def __getitem__(self, number):
        return {"number": number, "text": f"row {number}"}


class ManyNumbers(Numbers):
    def __getitems__(self, numbers):
        return [self[number] for number in numbers]


class Sequence(IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return (Numbers()[number] for number in range(self.rows))


class FailingSequence(Sequence):
    def __iter__(self):
        yield from itertools.islice(super().__iter__(), 15)
        raise OSError("the connection was reset")


def tars(config, **options):
    return webdataset.WebDataset(config["tars"], shardshuffle=False, **options)


def decoded(config):
    rows = tars(config).decode("torchrgb8").to_tuple("jpg", "txt", "__key__")
    return rows.map_tuple(small, str, str)


def small(image):
    """The picture at the smaller of the two sizes that are packed."""
    return image[:, :: image.shape[1] // SIZE[0], :: image.shape[2] // SIZE[1]]


def one_sample(config, **options):
    return webdataset.DataPipeline(tars(config, **options), lambda rows: itertools.islice(rows, 1))


def no_sample(config, **options):
    return webdataset.WebDataset([config["empty"]], shardshuffle=False, **options)


SOURCES = {
    "webdataset": tars,
    "webdataset split by node": lambda config: tars(config, nodesplitter=webdataset.split_by_node),
    "webdataset loader": lambda config: webdataset.WebLoader(tars(config), batch_size=None),
    "webdataset decoded": decoded,
    "webdataset of one": one_sample,
    "webdataset of none": lambda config: no_sample(config, empty_check=False),
    "webdataset of none, checked": no_sample,
    "sequence": lambda config: Sequence(ROWS),
    "sequence of one": lambda config: Sequence(1),
    "sequence of none": lambda config: Sequence(0),
    "sequence that fails": lambda config: FailingSequence(ROWS),
    "map": lambda config: Numbers(),
    "map of many": lambda config: ManyNumbers(),
    "list": lambda config: [Numbers()[number] for number in range(ROWS)],
    "list of none": lambda config: [],
}


def main(config, _):
    cases = [("dispatch", name) for name in SOURCES] + [("shard", name) for name in ("map", "map of many", "list")]
    cases += [("shard", "list of none"), ("shard", "sequence")]
    return {f"{mode} {name}": case_of(config, mode, SOURCES[name]) for mode, name in cases}


def case_of(config, mode, source):
    told, loader = {"steps": [], "error": None, "length": None}, None
    try:
        accelerator = accelerator_for(mode)
        loader = StreamLoader(
            source(config), accelerator=accelerator, batch_size=6, image_size=SIZE, shuffle=None, name="foreign"
        )
        loader = accelerator.prepare(loader)
        told["length"] = length_of(loader)
        for _ in range(2):
            told["steps"].append([])
            told["steps"][-1].extend(step_of(batch, accelerator) for batch in loader)
    except Exception as exc:  # noqa: BLE001 - any error is what is looked at
        told["error"] = f"{type(exc).__name__}: {exc}"
    told["left"] = left_behind()
    if loader is not None:
        loader.close()  # else a garbage collection in a later case does, in a thread of its own
    return told


def length_of(loader):
    try:
        return len(loader)
    except TypeError as exc:
        return str(exc)


def step_of(batch, accelerator):
    state = accelerator.gradient_state
    told = {"last": state.end_of_dataloader, "remainder": state.remainder, "form": type(batch).__name__}
    if isinstance(batch, list):
        image, text, key = batch
        return {**told, "ids": [int(one) for one in key], "images": [number_of(one) for one in image], "text": text}
    if "image" in batch:
        strides = batch["image"].is_contiguous(memory_format=torch.channels_last)
        images = [number_of(image) for image in batch["image"]]
        return {**told, "ids": [int(key) for key in batch["key"]], "images": images, "channels_last": strides}
    return {**told, "ids": batch["number"].tolist(), "text": batch["text"]}


run(main)
