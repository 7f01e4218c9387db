"""The plain case of accelerate's documentation, unchanged but for our dispatcher in its place; and learning rates."""

import warnings

import stream

stream.install()

import torch  # noqa: E402 - installed before all else, as a script would
from accelerate import Accelerator, DataLoaderConfiguration  # noqa: E402
from rank_job import run  # noqa: E402
from torch.utils.data import DataLoader, Dataset, TensorDataset  # noqa: E402

from stream.loader import StreamLoader  # noqa: E402

ROWS, BATCH, EPOCHS = 32, 8, 2
warnings.filterwarnings("ignore", ".*pin_memory.*no accelerator is found.*", UserWarning)


class Rows(Dataset):
    """Rows of one number."""

    def __len__(self):
        return ROWS + 3

    def __getitem__(self, row):
        return {"number": torch.tensor(float(row))}


def main(_, __):
    plain = {str(dispatch): plain_case(dispatch) for dispatch in (True, False)}
    rates = {
        f"{made}, split={split}": learning_rate(made, split=split)
        for made in ("installed", "installed shard", "StreamLoader")
        for split in (True, False)
        if refusal(ROWS, split=split) is None
    }
    return {"plain": plain, "rates": rates}


def refusal(batch, *, split):
    """Why a batch size is not prepared, None if it is."""
    accelerator = accelerator_of(dispatch=True, split=split)
    try:
        accelerator.prepare(DataLoader(Rows(), batch_size=batch))
    except ValueError as exc:
        return str(exc)
    return None


def accelerator_of(*, dispatch, split, **options):
    config = DataLoaderConfiguration(dispatch_batches=dispatch, split_batches=split, even_batches=True)
    return Accelerator(cpu=True, dataloader_config=config, **options)


def plain_case(dispatch):
    accelerator = accelerator_of(dispatch=dispatch, split=True)
    dataset = TensorDataset(torch.arange(ROWS))
    try:
        loader = accelerator.prepare(DataLoader(dataset, batch_size=BATCH, shuffle=True, pin_memory=True))
    except ValueError as exc:
        return str(exc)
    epochs = []
    for _ in range(EPOCHS):
        batches, gathered = [], []
        for (numbers,) in loader:
            batches.append(len(numbers))
            gathered += accelerator.gather_for_metrics(numbers).tolist()
            ended = accelerator.gradient_state.end_of_dataloader
        epochs.append({"sizes": batches, "rows": gathered, "ended": ended})
    return {"epochs": epochs, "steps": len(loader), "ours": type(loader).__module__.startswith("stream.")}


def learning_rate(made, *, split):
    """The rate of a prepared cosine schedule after one epoch with the same global batch, in two accumulated steps."""
    accelerator = accelerator_of(dispatch=made != "installed shard", split=split, gradient_accumulation_steps=2)
    batch = BATCH if split else BATCH // accelerator.num_processes
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if made == "StreamLoader":
        loader = StreamLoader(Rows(), accelerator=accelerator, batch_size=batch, shuffle=None)
        steps = loader.scheduler_steps()
    else:
        loader = accelerator.prepare(DataLoader(Rows(), batch_size=batch))
        steps = -(-len(loader) // 2) * (1 if split else accelerator.num_processes)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2 * steps)
    model, optimizer, schedule, loader = accelerator.prepare(model, optimizer, schedule, loader)
    for got in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(got["number"].reshape(-1, 1)).square().mean())
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return schedule.get_last_lr()[0]


run(main)
