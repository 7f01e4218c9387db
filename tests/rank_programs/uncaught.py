"""A training script that does not catch what its loader raises."""

from rank_job import accelerator_for, run

from packed import SIZE
from stream.loader import StreamLoader


def main(config, _):
    accelerator = accelerator_for(config["mode"])
    loader = accelerator.prepare(
        StreamLoader(config["url"], accelerator=accelerator, batch_size=12, image_size=SIZE, shuffle=None)
    )
    for batch in loader:
        accelerator.gather(batch["image"])


run(main)
