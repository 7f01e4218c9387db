"""A1 to A5 and A11 to A16 without the meshes: data that is wrong, and nobody says so."""

import tarfile
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
import webdataset

from fault_cases.making import LOADER, Asked, Fault, Found, Make, Verdict, Wanted, shared_folder
from fault_cases.rows import Numbers, Series, numbers_of, once_each, real_rows, whole_steps

_SIDE = 6
_CHANNELS = 3
_BREAKS = 12


def picture(number: int) -> torch.Tensor:
    """Return an image, float32 [3, 6, 6], that differs from all others in every pixel."""
    size = _CHANNELS * _SIDE * _SIDE
    return torch.arange(size, dtype=torch.float32).reshape(_CHANNELS, _SIDE, _SIDE) + number * size


def _as_channels_last(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    numbers = torch.stack([row["number"] for row in rows])
    images = torch.stack([picture(int(number)) for number in numbers])
    return {
        "image": images.contiguous(memory_format=torch.channels_last),
        "permuted": images.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1),
        "number": numbers,
    }


def a1(make: Make) -> Found:
    """Iterate batches whose images are channels_last."""
    accelerator = make.accelerator()
    loader = make.loader(accelerator, Numbers(16), Wanted(collate=_as_channels_last))
    wrong, rows, strides = 0, 0, set()
    for batch in loader:
        rows += len(batch["number"])
        for name in ("image", "permuted"):
            wanted = torch.stack([picture(int(number)) for number in batch["number"]])
            wrong += sum(not torch.equal(*pair) for pair in zip(batch[name].cpu(), wanted, strict=True))
            strides.add(f"{name} {batch[name].stride()}")
    return {"wrong": wrong, "rows": rows, "strides": sorted(strides)}


def judge_a1(ranks: Sequence[Found]) -> Verdict:
    """Look for other pixels and for other strides."""
    scrambled = [f"{rank['wrong']} of {2 * rank['rows']} images on rank {number}" for number, rank in enumerate(ranks)]
    wanted = _as_channels_last([{"number": torch.tensor(0)}] * 4)
    strides = sorted(f"{name} {wanted[name].stride()}" for name in ("image", "permuted"))
    kept = all(rank["strides"] == strides for rank in ranks)
    wrong = [words for words, rank in zip(scrambled, ranks, strict=True) if rank["wrong"]]
    words = f"scrambled: {', '.join(wrong) or 'none'}; strides {'kept' if kept else 'changed'}"
    return Verdict(not wrong and kept and all(rank["rows"] for rank in ranks), words)


def a2(make: Make) -> Found:
    """Iterate a source whose two worker processes end unevenly."""
    accelerator = make.accelerator()
    source = Series(21, shares=(5, 16))
    return numbers_of(make.loader(accelerator, source, Wanted(workers=2)), accelerator)


def judge_a2(ranks: Sequence[Found]) -> Verdict:
    """Every row must come once, only the last step may be short."""
    return once_each(ranks, range(21))


def make_tars(folder: Path, *, shards: int, rows: int) -> list[str]:
    """Write tars of `rows` samples each, whose text is their number."""
    urls = []
    for shard in range(shards):
        path = folder / f"{shard:06d}.tar"
        with tarfile.open(path, "w") as tar:
            for number in range(shard * rows, (shard + 1) * rows):
                data = str(number).encode()
                info = tarfile.TarInfo(f"{number:06d}.txt")
                info.size = len(data)
                tar.addfile(info, BytesIO(data))
        urls.append(str(path))
    return urls


def _rows_of(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, torch.Tensor]]:
    """Stand at the end of a pipeline; its own `map` would add the keys, which stock cannot carry."""
    return ({"number": torch.tensor(int(sample["txt"]))} for sample in samples)


def _read_pipeline(make: Make, splitter: Any) -> Found:  # noqa: ANN401 - a stage of webdataset
    with shared_folder() as folder:
        urls = make_tars(folder, shards=8, rows=3) if not any(folder.iterdir()) else []
        torch.distributed.barrier()
        urls = urls or sorted(map(str, folder.iterdir()))
        chosen = {} if splitter is None else {"nodesplitter": splitter}
        pipeline = webdataset.WebDataset(urls, shardshuffle=False, empty_check=False, **chosen)
        pipeline = pipeline.compose(_rows_of)
        accelerator = make.accelerator()
        return numbers_of(make.loader(accelerator, pipeline, Wanted(batch_size=3)), accelerator)


def a3(make: Make) -> Found:
    """Iterate a webdataset pipeline that splits its shards by node."""
    return _read_pipeline(make, webdataset.split_by_node)


def a3_default(make: Make) -> Found:
    """Iterate a webdataset pipeline as its constructor makes it."""
    return _read_pipeline(make, None)


def judge_a3(ranks: Sequence[Found]) -> Verdict:
    """All shards must be read."""
    return once_each(ranks, range(24))


def _patches_of(number: int) -> int:
    return 1 + number % 3


def _as_patches(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    numbers = [int(row["number"]) for row in rows]
    patches = [torch.full((_patches_of(number), 2), number) for number in numbers]
    grids = [[1, 1, _patches_of(number)] for number in numbers]
    return {"number": torch.tensor(numbers), "pixel_values": torch.cat(patches), "image_grid_thw": torch.tensor(grids)}


def a4(make: Make) -> Found:
    """Iterate batches with a tensor that has one row for each patch, not for each sample."""
    accelerator = make.accelerator()
    wrong = steps = 0
    for batch in make.loader(accelerator, Numbers(24), Wanted(batch_size=3, collate=_as_patches)):
        wanted = _as_patches([{"number": number} for number in batch["number"]])
        wrong += any(not torch.equal(batch[name], wanted[name]) for name in wanted)
        steps += 1
    return {"wrong": wrong, "steps": steps}


def judge_a4(ranks: Sequence[Found]) -> Verdict:
    """Every batch must have the patches of its own samples."""
    wrong, steps = sum(rank["wrong"] for rank in ranks), sum(rank["steps"] for rank in ranks)
    return Verdict(not wrong and steps > 0, f"{wrong} of {steps} batches with patches of other samples")


def _as_list(rows: list[dict[str, torch.Tensor]]) -> dict[str, Any]:
    return {
        "number": torch.stack([row["number"] for row in rows]),
        "images": [picture(int(row["number"])) for row in rows],
    }


def a5(make: Make) -> Found:
    """Iterate batches with a list of one tensor for each sample, a step split over the ranks."""
    accelerator = make.accelerator(Asked(split=True))
    told = []
    for batch in make.loader(accelerator, Numbers(32), Wanted(batch_size=16, collate=_as_list)):
        wanted = [picture(int(number)) for number in batch["number"]]
        right = len(batch["images"]) == len(wanted) and all(map(torch.equal, batch["images"], wanted))
        told.append([right, len(batch["number"]), len(batch["images"]), list(batch["images"][0].shape)])
    return {"told": told}


def judge_a5(ranks: Sequence[Found]) -> Verdict:
    """Every rank must get the images of its own samples, whole."""
    told = [one for rank in ranks for one in rank["told"]]
    _, samples, images, shape = told[0]
    return Verdict(all(one[0] for one in told), f"{images} images of shape {shape} for {samples} samples")


def a11(make: Make) -> Found:
    """Iterate two epochs of a source that turns its order with the epoch, read by a worker that lives on."""
    accelerator = make.accelerator()
    source = Series(12, shares=(12,), turned=True)
    loader = make.loader(accelerator, source, Wanted(batch_size=3, workers=1, persistent=True))
    return {"epochs": [numbers_of(loader, accelerator) for _ in range(2)]}


def judge_a11(ranks: Sequence[Found]) -> Verdict:
    """The second epoch must have its own order."""
    first, second = (real_rows([rank["epochs"][epoch] for rank in ranks]) for epoch in range(2))
    right = first == list(range(12)) and second == [*range(1, 12), 0]
    return Verdict(right, f"epoch 0 begins {first[:3]}, epoch 1 begins {second[:3]}")


class _NoDataLoader:
    """What can be iterated and is no DataLoader and no Dataset."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return iter([{"number": torch.tensor(number)} for number in range(12)])


def a13(make: Make) -> Found:
    """Prepare something that is no DataLoader."""
    accelerator = make.accelerator()
    if make.side == "loader":
        return numbers_of(make.loader(accelerator, _NoDataLoader(), Wanted(batch_size=3)), accelerator)
    steps = [[int(row["number"])] for row in accelerator.prepare(_NoDataLoader())]
    return {"steps": steps, "last": False, "remainder": -1}


def judge_a13(ranks: Sequence[Found]) -> Verdict:
    """No row may come twice."""
    if all(len(set(real_rows([rank]))) == len(list(_NoDataLoader())) for rank in ranks):
        return Verdict(right=False, words="every rank reads all rows")
    return once_each(ranks, range(12))


def a14(make: Make) -> Found:
    """Iterate with drop_last a source that does not fill its last step by almost all of it."""
    accelerator = make.accelerator()
    rows = 4 * 4 * accelerator.num_processes - 1
    loader = make.loader(accelerator, Numbers(rows), Wanted(drop_last=True))
    described = loader.describe() if make.side == "loader" else ""
    return {**numbers_of(loader, accelerator), "rows": rows, "described": described}


def judge_a14(ranks: Sequence[Found]) -> Verdict:
    """A whole step at most may be dropped, and describe() must say how many rows."""
    got, step, rows = len(real_rows(ranks)), 4 * len(ranks), ranks[0]["rows"]
    dropped = rows - got
    said = all(f"({dropped} rows) is dropped" in rank["described"] for rank in ranks)
    words = f"{dropped} of {rows} rows dropped, {'told by describe()' if said else 'without a word'}"
    return Verdict(dropped == rows % step and said, words)


def a15(make: Make) -> Found:
    """Iterate with even_batches=False a source that leaves less than a whole step."""
    accelerator = make.accelerator(Asked(even=False))
    return numbers_of(make.loader(accelerator, Numbers(4 * accelerator.num_processes + 1)), accelerator)


def judge_a15(ranks: Sequence[Found]) -> Verdict:
    """Nothing may be padded; the ranks without a row end one step earlier, each at its own last batch."""
    got, wanted = [number for step in whole_steps(ranks) for number in step], list(range(4 * len(ranks) + 1))
    right = sorted(got) == wanted and [len(rank["steps"]) for rank in ranks] == [2, *[1] * (len(ranks) - 1)]
    words = f"{len(wanted)} rows in, {len(got)} out" + ("" if right else ": padded")
    return Verdict(right and all(rank["last"] for rank in ranks), words)


def a16(make: Make) -> Found:
    """Leave an evaluation within training by break, while gradients are accumulated."""
    accelerator = make.accelerator(Asked(accumulation=2))
    steps = 4 * accelerator.num_processes
    training = make.loader(accelerator, Numbers(5 * steps))
    evaluation = make.loader(accelerator, Numbers(5 * steps), Wanted(name="eval"))
    model, synced = accelerator.prepare(torch.nn.Linear(1, 1)), []
    for step, _batch in enumerate(training):
        if step == 1:
            for _ in range(_BREAKS):  # ranks that leave and begin again at their own pace must not miss each other
                for _inner in evaluation:
                    break
        with accelerator.accumulate(model):
            synced.append(accelerator.sync_gradients)
    return {"synced": synced}


def judge_a16(ranks: Sequence[Found]) -> Verdict:
    """The last step must be synced on every rank."""
    right = all(rank["synced"] == [False, True, False, True, True] for rank in ranks)
    return Verdict(right, f"of 5 steps accumulated by 2 synced: {[int(one) for one in ranks[0]['synced']]}")


FAULTS = (
    Fault(id="A1", what="channels_last batches", run=a1, judge=judge_a1),
    Fault(id="A2", what="workers that end unevenly", run=a2, judge=judge_a2),
    Fault(id="A3", what="a webdataset pipeline that splits by node", run=a3, judge=judge_a3),
    Fault(
        id="A3-default",
        what="a webdataset pipeline as it is",
        run=a3_default,
        judge=judge_a3,
        stock="rank 0 raises and the others wait for the group's time-out",
    ),
    Fault(id="A4", what="image patches", run=a4, judge=judge_a4),
    Fault(id="A5", what="a list of tensors", run=a5, judge=judge_a5),
    Fault(id="A11", what="workers that live on, second epoch", run=a11, judge=judge_a11),
    Fault(id="A13", what="what is no DataLoader", run=a13, judge=judge_a13, sides=LOADER),
    Fault(id="A14", what="drop_last", run=a14, judge=judge_a14, sides=LOADER),
    Fault(id="A15", what="even_batches=False", run=a15, judge=judge_a15),
    Fault(id="A16", what="break out of an evaluation", run=a16, judge=judge_a16, limit_s=25.0),
)
