"""Train a small captioner on packed shards: an example to copy.

    torchrun --standalone --nproc_per_node 2 tools/train_captioner.py --data packed/train

`accelerate launch --multi_gpu --num_processes 2 tools/train_captioner.py ...` does the same, with or without GPUs, and
`python tools/train_captioner.py ...` trains in one process. `--mode dispatch` lets rank 0 read for all ranks, `--mode
shard` lets every rank read its own rows; both train on the same steps.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import broadcast_object_list, set_seed
from torch import Tensor, nn
from torch.optim import Optimizer

from captioner import Captioner, Vocabulary, frequent_words, read_captions
from shards.dataset import DatasetReader
from shards.errors import ShardsError
from stream import StreamError, StreamLoader, StreamOptions, normalize

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class RanksError(RuntimeError):
    """The launcher started `launched` processes, but `ranks` train together."""

    def __init__(self, launched: int, ranks: int) -> None:
        super().__init__(
            f"the launcher started {launched} processes, but {ranks} would train together; start them with "
            "torchrun --standalone --nproc_per_node N, or accelerate launch --multi_gpu --num_processes N"
        )
        self.launched, self.ranks = launched, ranks


class Epoch(NamedTuple):
    """What an epoch gave: mean loss of a row over all ranks; rows without padding; `wait_s`: rank 0 waited for data."""

    epoch: int
    loss: float
    rows: int
    seconds: float
    wait_s: float

    def __str__(self) -> str:
        rate = f"{self.rows:,} samples in {self.seconds:.1f} s, {self.rows / self.seconds:,.0f} samples/s"
        return f"epoch {self.epoch}: loss {self.loss:.3f}; {rate}; rank 0 waited {self.wait_s:.1f} s for data"


class Captioned(NamedTuple):
    """A generated caption beside the true ones."""

    key: str
    generated: str
    true: list[str]

    def __str__(self) -> str:
        return "\n      ".join(
            [f"image {self.key}", f"model: {self.generated}", *(f" true: {text}" for text in self.true)]
        )


def train(args: argparse.Namespace) -> None:
    """Train, and show what was learned.

    Raises:
        RanksError: the processes do not train together.
        StreamError, ShardsError, OSError: the data, or an option, is bad.
    """
    accelerator = Accelerator(
        cpu=args.cpu or not torch.cuda.is_available(),  # else ranks on a machine without GPUs are alone
        gradient_accumulation_steps=args.accumulate,
        dataloader_config=DataLoaderConfiguration(dispatch_batches=args.mode == "dispatch", split_batches=True),
    )
    check_ranks(accelerator)
    loader, samples = make_loaders(accelerator, args)
    set_seed(args.seed % 2**32)  # what numpy takes
    model = Captioner(make_vocabulary(accelerator, args.data, args.min_count))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    model, optimizer, loader, samples = accelerator.prepare(model, optimizer, loader, samples)
    accelerator.print(loader.describe())

    epochs = []
    while loader.epoch < args.epochs:
        epochs.append(train_epoch(accelerator, model, optimizer, loader, args.log_every))
        accelerator.print(epochs[-1])
        if args.checkpoint is not None:
            save(accelerator, model, args.checkpoint / f"epoch-{loader.epoch}")

    captions = generate(accelerator, model, samples)
    accelerator.print(*captions, sep="\n")
    if args.json is not None and accelerator.is_main_process:
        tables = {"epochs": [row._asdict() for row in epochs], "captions": [row._asdict() for row in captions]}
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({"ranks": accelerator.num_processes, "mode": args.mode, **tables}, indent=2))
    accelerator.end_training()


def check_ranks(accelerator: Accelerator) -> None:
    """Print how many ranks there are, and refuse to go on when it is not what the launcher started."""
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != launched:
        raise RanksError(launched, accelerator.num_processes)
    accelerator.print(f"training on {launched} rank{'s' if launched > 1 else ''}, rank 0 on {accelerator.device}")


def make_vocabulary(accelerator: Accelerator, url: str, min_count: int) -> Vocabulary:
    """Let rank 0 read all captions, and give every rank the words that they are made of."""
    words: list[str] = []
    if accelerator.is_main_process:
        words = frequent_words(read_captions(DatasetReader(url)), min_count=min_count)
    return Vocabulary(broadcast_object_list([words])[0])


def make_loaders(accelerator: Accelerator, args: argparse.Namespace) -> tuple[StreamLoader, StreamLoader]:
    """Return the loader to train on, and one of images to show; neither has read anything yet."""
    train_on = StreamLoader(
        args.data,
        accelerator=accelerator,
        batch_size=args.batch_size,
        image_size=args.image_size,
        captions=args.captions,
        seed=args.seed,
        options=StreamOptions(workers=args.workers, prefetch_steps=args.prefetch_steps),
    )
    show = StreamLoader(
        args.eval_data or args.data,
        accelerator=accelerator,
        batch_size=args.eval_samples * accelerator.num_processes,
        image_size=args.image_size,
        captions="all",
        shuffle=None,
        name="eval",
    )
    return train_on, show


def train_epoch(
    accelerator: Accelerator, model: nn.Module, optimizer: Optimizer, loader: StreamLoader, log_every: int
) -> Epoch:
    """Train on the loader's next epoch; print the loss every `log_every` steps."""
    model.train()
    vocabulary = accelerator.unwrap_model(model).vocabulary
    losses: list[Tensor] = []
    epoch, start, waited_s = loader.epoch + 1, time.perf_counter(), loader.stats.wait_s
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(*model_inputs(batch, vocabulary))
            accelerator.backward(loss.mean())
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather_for_metrics(loss.detach()))  # of the rows of all ranks, without padding
        if len(losses) % log_every == 0:
            recent = torch.cat(losses[-log_every:]).mean()
            accelerator.print(f"epoch {epoch}, step {len(losses)} of {len(loader)}: loss {recent:.3f}")
    all_losses, seconds = torch.cat(losses), time.perf_counter() - start
    return Epoch(epoch, all_losses.mean().item(), len(all_losses), seconds, loader.stats.wait_s - waited_s)


def model_inputs(batch: dict[str, Any], vocabulary: Vocabulary) -> tuple[Tensor, Tensor]:
    """Return what the model takes: images, float32 [B, 3, H, W], and tokens, int64 [B, T], on the batch's device."""
    images = normalize(batch, mean=MEAN, std=STD)["image"]
    return images, vocabulary.encode(batch["caption"]).to(images.device)


def generate(accelerator: Accelerator, model: nn.Module, loader: StreamLoader) -> list[Captioned]:
    """Caption images of the first step. Every rank takes part in it, each gets the captions of its own portion."""
    captioner = accelerator.unwrap_model(model).eval()
    batch = next(iter(loader))
    loader.close()
    told = captioner.caption(normalize(batch, mean=MEAN, std=STD)["image"])
    return [Captioned(*row) for row in zip(batch["key"], told, batch["caption"], strict=True)]


def save(accelerator: Accelerator, model: nn.Module, folder: Path) -> None:
    """Write a checkpoint that `accelerator.load_state(folder)` reads, and the words beside it."""
    accelerator.save_state(folder)
    if accelerator.is_main_process:
        words = accelerator.unwrap_model(model).vocabulary.words
        (folder / "vocabulary.json").write_text(json.dumps(words, ensure_ascii=False), encoding="utf-8")
    accelerator.print(f"checkpoint: {folder}")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; leaves the program with status 2 where it is wrong."""
    parser = argparse.ArgumentParser(
        prog="train_captioner.py",
        description="Train a small captioner on packed shards.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--data", required=True, help="packed dataset: a folder or fsspec URL (s3://bucket/train)")
    add("--eval-data", help="packed dataset of the images to caption at the end (default: those of --data)")
    add("--mode", choices=("dispatch", "shard"), default="dispatch", help="rank 0 reads for all, or each rank reads")
    add("--epochs", type=whole(1), default=2, help="passes over the data")
    add("--batch-size", type=whole(1), default=24, help="rows of a step over all ranks")
    add("--image-size", type=whole(8), default=64, help="side of the images in pixels")
    add("--captions", choices=("first", "random", "each"), default="each", help="captions of an image to train on")
    add("--min-count", type=whole(1), default=2, help="a rarer word counts as unknown")
    add("--lr", type=above_zero, default=1.5e-3, help="learning rate")
    add("--accumulate", type=whole(1), default=1, help="steps whose gradients are added up before an update")
    add("--checkpoint", type=Path, help="folder for a checkpoint of each epoch")
    add("--seed", type=whole(0), default=0, help="of the model, the order and the choice of captions")
    add("--eval-samples", type=whole(1), default=3, help="images to caption at the end")
    add("--workers", type=whole(0), default=0, help="worker processes beside each reader")
    add("--prefetch-steps", type=whole(1), default=2, help="steps to read ahead")
    add("--log-every", type=whole(1), default=50, help="steps between two lines of loss")
    add("--json", type=Path, help="file for the measured results")
    add("--cpu", action="store_true", help="leave GPUs alone")
    return parser.parse_args(arguments)


def whole(least: int) -> Callable[[str], int]:
    """Return a reader of whole numbers from `least` up."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} up")
        return int(text)

    return read


def above_zero(text: str) -> float:
    """Read a number above 0."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status."""
    try:
        train(parse(arguments))
    except (RanksError, StreamError, ShardsError, OSError) as exc:
        sys.stderr.write(f"train_captioner: {exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
