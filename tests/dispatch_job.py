"""What ranks are told to do by the tests of odd batches: take epochs of a loader, and tell what came."""

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import stream
from rank_programs.rank_job import accelerator_for
from stream.loader import StreamLoader


class Rows(Dataset):
    def __init__(self, count):
        self.tensors = [torch.full((50_000,), number, dtype=torch.int32) for number in range(count)]

    def __len__(self):
        return len(self.tensors)

    def __getitem__(self, number):
        return self.tensors[number].clone()


class Given(IterableDataset):
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(list(self.items))


def nothing_for_odd(rows):
    numbers = [int(row[0]) for row in rows]
    return None if numbers[0] % 4 == 2 else numbers


def batches_of_nothing(kind, rows):
    """Each rank's batches where some are None, for two epochs."""
    accelerator = accelerator_for("dispatch", split_batches=kind != "given")
    if kind == "install":
        stream.install()
        loader = accelerator.prepare(DataLoader(Rows(rows), batch_size=4, collate_fn=nothing_for_odd))
    elif kind == "given":
        items = [None if number % 2 else {"number": number} for number in range(rows)]
        loader = accelerator.prepare(StreamLoader(Given(items), accelerator=accelerator, batch_size=None))
    else:
        options = {"batch_size": 4, "shuffle": None, "collate": nothing_for_odd}
        made = stream.StreamOptions(same_rows=False)
        loader = StreamLoader(Rows(rows), accelerator=accelerator, options=made, **options)
        accelerator.prepare(loader)
    found = [list(loader) for _ in range(2)]
    loader.close()
    return found


def altered_in_place(kind, rows):
    """The first number of each row, altered in place after it was told; two epochs."""
    accelerator = accelerator_for("dispatch")
    if kind == "given":
        items = [{"x": row} for row in Rows(rows).tensors]
        source, options = Given(items), {"batch_size": None}
        accelerator = accelerator_for("dispatch", split_batches=False)
    else:
        source, options = Given(Rows(rows).tensors), {"batch_size": 4, "collate": list}
    loader = StreamLoader(source, accelerator=accelerator, **options)
    accelerator.prepare(loader)
    found = []
    for batch in loader:
        tensors = [batch["x"]] if kind == "given" else batch
        found.append([int(one[0]) for one in tensors])
        for one in tensors:
            one.add_(1000)
    loader.close()
    return found


def one_tensor_twice():
    """Whether a tensor that stands in a batch twice is one memory."""
    accelerator = accelerator_for("dispatch")

    def collate(rows):
        both = torch.stack(rows)
        return {"x": both, "y": both, "z": both.numpy()}

    loader = StreamLoader(Rows(8), accelerator=accelerator, batch_size=4, collate=collate, shuffle=None)
    accelerator.prepare(loader)
    found = []
    for batch in loader:
        batch["x"].zero_()
        found.append([int(batch["y"].sum() > 0), int(batch["z"].sum() > 0)])
    loader.close()
    return found


def uneven_epochs(rows):
    """Epochs of fewer rows than ranks under install(), which not every rank has a part in."""
    stream.install()
    accelerator = accelerator_for("dispatch", even_batches=False)
    loader = accelerator.prepare(
        DataLoader(Rows(rows), batch_size=4, collate_fn=lambda many: [int(one[0]) for one in many])
    )
    found = [list(loader) for _ in range(3)]
    loader.close()
    return found


def kept_labels(rows):
    """What a small tensor keeps in memory, in bytes."""
    accelerator = accelerator_for("dispatch")

    def collate(many):
        return {"image": torch.stack(many), "label": torch.stack(many)[:, 0].clone()}

    loader = StreamLoader(Rows(rows), accelerator=accelerator, batch_size=4, collate=collate, shuffle=None)
    accelerator.prepare(loader)
    found = [batch["label"].untyped_storage().nbytes() for batch in loader]
    loader.close()
    return found
