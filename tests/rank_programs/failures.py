"""Iterate loaders that must fail, and tell what this rank got before, what it raised, and what it left."""

from rank_job import accelerator_for, run

from packed import SIZE
from ranks import soon_left_behind
from stream.loader import StreamLoader
from stream.options import StreamOptions


def refuse(examples):
    if "000000000019" in [example["key"] for example in examples]:
        raise LookupError("no word for sample 19")
    return {"key": [example["key"] for example in examples]}


def unequal(examples):
    return {"key": ["one"]}


COLLATES = {None: None, "refuse": refuse, "unequal": unequal}


def main(config, _):
    return {case["name"]: case_of(case) for case in config["cases"]}


def case_of(case):
    accelerator = accelerator_for(case["mode"])
    loader = StreamLoader(
        case["url"],
        accelerator=accelerator,
        batch_size=12,
        image_size=SIZE,
        shuffle=None,
        collate=COLLATES[case["collate"]],
        options=StreamOptions(workers=case["workers"]),
    )
    loader = accelerator.prepare(loader)
    told = {"keys": [], "kind": None, "text": None}
    try:
        for batch in loader:
            told["keys"].append(batch["key"])
    except Exception as exc:  # noqa: BLE001 - any error is what is looked at
        told |= {"kind": type(exc).__name__, "text": str(exc)}
    told |= {"left": soon_left_behind(5), "registered": accelerator.gradient_state.in_dataloader, "epoch": loader.epoch}
    accelerator.wait_for_everyone()  # the ranks still understand each other
    return told


run(main)
