"""What every rank program does first and last, and how it looks at batches."""

import json
import os
import sys
from pathlib import Path

from accelerate import Accelerator, DataLoaderConfiguration

from packed import number_of


def run(find):
    """Write what `find(config, accelerator)` returns to the path that was given, and end the job."""
    accelerator = accelerator_for("dispatch")
    assert accelerator.num_processes == int(os.environ["WORLD_SIZE"])
    config = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps(find(config, accelerator)))
    accelerator.end_training()  # else gloo sometimes aborts at exit


def accelerator_for(mode, *, split_batches=True, even_batches=True, **options):
    """An Accelerator of this job that asks for a mode; None leaves the choice to the loader."""
    config = DataLoaderConfiguration(
        dispatch_batches={"dispatch": True, "shard": False, None: None}[mode],
        split_batches=split_batches,
        even_batches=even_batches,
    )
    return Accelerator(cpu=True, dataloader_config=config, **options)


def numbers_of(images):
    return [number_of(image) for image in images]
