"""What ranks are told to do by the tests of remote stores: read an epoch, or what is left of one."""

import json

from rank_programs.rank_job import accelerator_for, numbers_of
from stream.loader import StreamLoader
from stream.options import StreamOptions


def epoch(url, mode, storage_options, state=None, take=None, options=None):
    """This rank's keys and the numbers that its images show, step by step, the last state, or what was raised."""
    accelerator = accelerator_for(mode)
    loader = StreamLoader(
        url,
        accelerator=accelerator,
        batch_size=12,
        image_size=(16, 64),
        storage_options=storage_options,
        options=StreamOptions(**(options or {})),
    )
    accelerator.prepare(loader)
    if state is not None:
        loader.load_state_dict(state)
    steps, said = [], ""
    try:
        for batch in loader:
            steps.append(list(zip(batch["key"], numbers_of(batch["image"]), strict=True)))
            if len(steps) == take:
                break
    except OSError as exc:
        said = f"{type(exc).__name__}: {exc}"
    saved = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    return {"ranks": accelerator.num_processes, "steps": steps, "state": saved, "said": said}
