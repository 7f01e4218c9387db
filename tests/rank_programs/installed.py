"""What accelerate does with loaders while our dispatcher is installed, one case after another."""

import logging
import pickle
import warnings
from unittest import mock

import accelerate.data_loader
import torch
from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
from accelerate.utils import find_executable_batch_size, set_seed
from rank_job import run
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler

import stream
from ranks import left_behind, soon_left_behind

warnings.filterwarnings("ignore", ".*set_vital.*", UserWarning)  # torchdata's own affair
logging.getLogger("torchdata").setLevel(logging.ERROR)


class Numbers(Dataset):
    """Rows of their number; remembers what was read in this process."""

    def __init__(self, rows):
        self.rows, self.read = rows, []

    def __len__(self):
        return self.rows

    def __getitem__(self, row):
        if row == "bad":
            raise LookupError("no such row")
        self.read.append(row)
        return {"number": torch.tensor(row)}


class Lists(Numbers):
    """As `Numbers`, asked for lists."""

    def __getitem__(self, rows):
        self.read += rows
        return {"number": torch.tensor(rows)}


class Series(IterableDataset):
    """Rows one after another, worker w of n gives each nth; has a state of its own when `stateful`."""

    def __init__(self, rows, *, fails_at=None):
        self.rows, self.fails_at = rows, fails_at

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        for row in range(worker, self.rows, workers):
            if row == self.fails_at:
                raise LookupError(f"row {row} is lost")
            yield {"number": torch.tensor(row)}


class Counting(Series):
    """Can tell how many rows it gave, and go on behind them; says what it gave in this process."""

    def __init__(self, rows):
        super().__init__(rows)
        self.given, self.start = 0, 0
        self.read = []

    def __iter__(self):
        self.given, self.start = self.start, 0
        for row in range(self.given, self.rows):
            self.given += 1
            self.read.append(row)
            yield {"number": torch.tensor(row)}

    def state_dict(self):
        return {"given": self.given, "key": ("a", None)}

    def load_state_dict(self, state):
        self.start = state["given"]


class Batches(IterableDataset):
    """Six batches of four rows, made by itself."""

    def __iter__(self):
        return iter([torch.arange(4 * batch, 4 * batch + 4) for batch in range(6)])


def accelerator_of(*, split=False, even=True, dispatch=True, stateful=False, seedable=False, **options):
    config = DataLoaderConfiguration(
        dispatch_batches=dispatch,
        split_batches=split,
        even_batches=even,
        use_stateful_dataloader=stateful,
        use_seedable_sampler=seedable,
        data_seed=7 if seedable else None,
    )
    return Accelerator(cpu=True, dataloader_config=config, **options)


def main(config, _):
    with stream.installed():
        return {name: CASES[name]() for name in config["cases"]}


def numbers(loader, steps=None):
    """The rows of each step on this rank, of the first steps or of an epoch."""
    told = []
    for batch in loader:
        told.append((batch["number"] if isinstance(batch, dict) else batch).tolist())
        if len(told) == steps:
            break
    return told


def stateful_cases():
    """Stop after two steps, put a new loader where the first was; then both deliver another epoch."""
    told = {}
    for name, (made, options, seedable) in STATEFUL.items():
        for split in (False, True):
            accelerator = accelerator_of(stateful=True, split=split, seedable=seedable)
            set_seed(5)
            loader = accelerator.prepare(made(options))
            before, state, rest = [], None, []
            for batch in loader:
                (before if state is None else rest).append(batch["number"].tolist())
                if len(before) == 2 and state is None:
                    state = pickle.loads(pickle.dumps(loader.state_dict()))
            at_end = loader.state_dict()
            second = numbers(loader)
            set_seed(99)
            accelerator = accelerator_of(stateful=True, split=split, seedable=seedable)
            resumed = accelerator.prepare(made(options, seed=6))
            resumed.load_state_dict(state)
            same = resumed.state_dict()["steps"] == 2
            got, read = numbers(resumed), list(getattr(resumed.dataset, "read", []))
            after = accelerator.prepare(made(options, seed=6))
            after.load_state_dict(at_end)
            told[f"{name}, split={split}"] = {
                "rows": before + rest,
                "rest": rest,
                "resumed": got,
                "same": same,
                "read": read,
                "second": second,
                "after": numbers(after),
                "iteration": after.iteration,
                "finished": at_end["_iterator_finished"],
                "position": [state["epoch"], state["steps"], state["position"]],
            }
    return told


def by_number(options, seed=5):
    generator = torch.Generator().manual_seed(seed) if options.get("own") else None
    return DataLoader(
        Numbers(42), batch_size=4, shuffle=True, generator=generator, num_workers=options.get("workers", 0)
    )


def one_by_one(options, seed=5):
    return DataLoader(options["dataset"](42), batch_size=4, num_workers=options.get("workers", 0))


STATEFUL = {
    "rows by number": (by_number, {}, False),
    "a generator of its own": (by_number, {"own": True}, False),
    "seedable": (by_number, {}, True),
    "rows by number, workers": (by_number, {"workers": 2}, False),
    "a series": (one_by_one, {"dataset": Series}, False),
    "a series, workers": (one_by_one, {"dataset": Series, "workers": 2}, False),
    "a source with a state": (one_by_one, {"dataset": Counting}, False),
}


def other_sizes():
    """Load a state into loaders of other batch sizes."""
    accelerator = accelerator_of(stateful=True)
    loader = accelerator.prepare(DataLoader(Numbers(48), batch_size=4))
    numbers(loader, 2)
    state, step = loader.state_dict(), 4 * accelerator.num_processes
    fits = accelerator.prepare(DataLoader(Numbers(48), batch_size=2))
    fits.load_state_dict(state)
    other = accelerator.prepare(DataLoader(Numbers(48), batch_size=3))
    other.load_state_dict(state)
    told = {"fits": numbers(fits), "step": step}
    try:
        numbers(other)
    except ValueError as exc:
        told["refused"] = str(exc)
    return told


def saved():
    """The state is that of the step in hand on every rank, whatever was read ahead."""
    loader = accelerator_of(stateful=True).prepare(DataLoader(Series(40), batch_size=4))
    told = [loader.state_dict()["position"]]
    told += [loader.state_dict()["position"] for _ in loader]
    return told


def refusals():
    told = {}
    plain = accelerator_of().prepare(DataLoader(Numbers(8), batch_size=4))
    for name, ask in {
        "no state": plain.state_dict,
        "another state": lambda: (
            accelerator_of(stateful=True)
            .prepare(DataLoader(Numbers(8), batch_size=4))
            .load_state_dict({"_num_yielded": 3})
        ),
        "size": lambda: accelerator_of().prepare(DataLoader(Batches(), batch_size=None)).total_batch_size,
        "length": lambda: len(accelerator_of().prepare(DataLoader(Series(8), batch_size=4))),
        "odd split": lambda: numbers(
            accelerate.data_loader.prepare_data_loader(
                DataLoader(Numbers(8), batch_size=1), split_batches=True, put_on_device=True, dispatch_batches=True
            )
        ),
    }.items():
        try:
            told[name] = repr(ask())
        except (ValueError, TypeError) as exc:
            told[name] = f"{type(exc).__name__}: {exc}"
    return told


def cut(data, place, process_index=None, num_processes=None):
    """A slicing of a user's own: turns the rows round, and notes for whom."""
    return {"number": data["number"][place].flip(0) + 1000 * process_index * (num_processes > 1)}


def sliced():
    """Let a function of the user's own slice, in every way of ending."""
    told = {}
    for split in (False, True):
        for even in (False, True):
            for drop in (False, True):
                accelerator = accelerator_of(split=split, even=even)
                plain = DataLoader(Numbers(19), batch_size=4, drop_last=drop)
                loader = accelerator.prepare_data_loader(plain, slice_fn_for_dispatch=cut)
                told[f"split={split}, even={even}, drop={drop}"] = numbers(loader)
    return told


def no_loaders():
    """Prepare what is no DataLoader: a dataset that makes batches, and an iterable of another class."""
    heard, handler = [], logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())
    logging.getLogger("stream").addHandler(handler)

    class Iterated:
        def __iter__(self):
            return iter([1, 2])

    told = {}
    for dispatch in (None, True, False):
        prepared = accelerator_of(dispatch=dispatch).prepare(Batches())
        told[str(dispatch)] = numbers(prepared)
    plain, other = Iterated(), {"a": 1}
    accelerator = accelerator_of()
    same = accelerator.prepare(plain, plain, other)
    logging.getLogger("stream").removeHandler(handler)
    return {**told, "same": same[0] is plain and same[2] is other, "heard": heard}


def given_batches():
    """Batches made by the dataset, whole and split; lists of row numbers that a sampler makes."""
    whole = numbers(accelerator_of().prepare(DataLoader(Batches(), batch_size=None)))
    split = numbers(accelerator_of(split=True).prepare(DataLoader(Batches(), batch_size=None)))
    lists = BatchSampler(range(10), batch_size=4, drop_last=False)
    loader = accelerator_of().prepare(DataLoader(Lists(10), sampler=lists, batch_size=None))
    size, length = loader.total_batch_size, len(loader)
    return {"whole": whole, "split": split, "lists": numbers(loader), "size": size, "length": length}


def lengths():
    """What `len` says and how many steps come."""
    told = {}
    for split in (False, True):
        for even in (False, True):
            for drop in (False, True):
                for name, made in {
                    "numbers": DataLoader(Numbers(19), batch_size=4, drop_last=drop),
                    "lists": DataLoader(
                        Numbers(19), batch_sampler=BatchSampler(RandomSampler(Numbers(19)), 4, drop_last=drop)
                    ),
                }.items():
                    loader = accelerator_of(split=split, even=even).prepare(made)
                    told[f"{name}, split={split}, even={even}, drop={drop}"] = [len(loader), len(numbers(loader))]
    return told


def skipped():
    """Skip two steps, by names that were imported before ours was installed."""
    told = {}
    for name, source in {"numbers": Numbers(40), "series": Series(40)}.items():
        accelerator = accelerator_of(even=False)
        loader = accelerator.prepare(DataLoader(source, batch_size=4))
        found = skip_first_batches(loader, 2)
        again = accelerator.skip_first_batches(skip_first_batches(loader, 1), 1)
        length = len(found) if name == "numbers" else None
        rows = [numbers(found), numbers(again), numbers(found)]
        told[name] = {
            "rows": rows[0],
            "same": rows[0] == rows[1] == rows[2],
            "read": sorted(set(getattr(source, "read", []))),
            "length": length,
            "kept": [found.even_batches, type(found) is type(loader), found is not loader],
            "iterations": [loader.iteration, found.iteration],
        }
    shard = accelerator_of(dispatch=False).prepare(DataLoader(Numbers(40), batch_size=4))
    told["shard"] = {"rows": numbers(skip_first_batches(shard, 2)), "ours": type(shard).__module__.startswith("stream")}
    return told


def lives():
    """Leave by break, begin again, close, pickle, copy, free: what is left, and what still works."""
    accelerator = accelerator_of()
    loader = accelerator.prepare(DataLoader(Numbers(40), batch_size=4, num_workers=1, persistent_workers=True))
    first = numbers(loader, 1)
    registered = accelerator.gradient_state.in_dataloader
    whole = numbers(loader)
    again = accelerator.prepare(loader) is loader and accelerator.prepare_data_loader(loader) is loader
    known = sum(one is loader for one in accelerator._dataloaders)
    pickled = pickle.loads(pickle.dumps(accelerator))
    copied = pickle.loads(pickle.dumps(loader))
    from_copy = numbers(copied)
    copied.close()
    loader.close()
    loader.close()
    left = left_behind()
    after_close = numbers(loader)
    loader.close()
    held = accelerator.prepare(DataLoader(Numbers(40), batch_size=4))
    iteration = iter(held)
    next(iteration)
    (held,) = accelerator.free_memory(held)
    del iteration, copied, pickled
    return {
        "first": first == whole[:1],
        "registered": registered,
        "again": again and known == 1,
        "copy": from_copy == whole,
        "left": left,
        "after_close": after_close == whole,
        "freed": [held, accelerator._dataloaders, soon_left_behind()],
    }


def failing():
    """Errors of a dataset, of a sampler and of a collate function: what each rank got and raised."""
    told = {}
    for name, loader in {
        "dataset": DataLoader(Series(40, fails_at=18), batch_size=4),
        "sampler": DataLoader(Numbers(40), batch_size=4, sampler=[*range(18), "bad", *range(19, 40)]),
        "set_epoch": DataLoader(Refusing(40), batch_size=4),
    }.items():
        accelerator = accelerator_of()
        prepared, steps = accelerator.prepare(loader), []
        try:
            steps.extend(batch["number"].tolist() for batch in prepared)
        except LookupError as exc:
            told[name] = [steps, str(exc), prepared.iteration, accelerator.gradient_state.in_dataloader]
    return told


class Refusing(Numbers):
    """Will not hear of an epoch."""

    def set_epoch(self, epoch):
        raise LookupError("no epochs here")


def training():
    """Accumulate, join uneven inputs, find a batch size that fits."""
    accelerator = accelerator_of(even=False)
    model = accelerator.prepare(torch.nn.Linear(1, 1))
    loader = accelerator.prepare(DataLoader(Numbers(4 * accelerator.num_processes + 1), batch_size=4))
    joined = 0
    # On CPUs accelerate leaves the ranks to themselves; here it shall do what it does on GPUs
    with mock.patch.object(Accelerator, "multi_device", new=True), accelerator.join_uneven_inputs([model]):
        for batch in loader:
            model(batch["number"].float().reshape(-1, 1)).sum().backward()
            joined += 1
    ended = accelerator.gradient_state.in_dataloader
    sizes = []

    @find_executable_batch_size(starting_batch_size=8)
    def fit(batch_size):
        accelerator = accelerator_of()
        loader = accelerator.prepare(DataLoader(Numbers(32), batch_size=batch_size))
        sizes.append(batch_size)
        for batch in loader:
            if len(batch["number"]) > 2:
                raise RuntimeError("CUDA out of memory.")
        return loader.total_batch_size

    return {"joined": joined, "ended": ended, "fits": fit(), "sizes": sizes}


def uninstalled():
    """A loader that was prepared while ours was installed, after it was put back."""
    loader = accelerator_of().prepare(DataLoader(Numbers(16), batch_size=4))
    again = accelerate.data_loader.DataLoaderDispatcher is type(loader)
    return {"ours": again, "loader": KEPT.append(loader)}


KEPT = []


def after(config, accelerator):
    told = main(config, accelerator)
    for loader in KEPT:
        told["uninstalled"] = [numbers(loader), type(loader) is accelerate.data_loader.DataLoaderDispatcher]
    return told


CASES = {
    case.__name__: case
    for case in (
        stateful_cases,
        other_sizes,
        saved,
        refusals,
        sliced,
        no_loaders,
        given_batches,
        lengths,
        skipped,
        lives,
        failing,
        training,
        uninstalled,
    )
}

run(after)
