"""Iterate loaders for long as a user who keeps the last batches, and tell what was wrong in them and what memory grew.

Every row says its own number in all of its bytes (packed ones in their picture). A batch is looked at when it comes,
and once more when it is let go: nothing may have been written over it meanwhile.
"""

import time
from collections import deque
from mmap import mmap
from pathlib import Path

import torch
from rank_job import accelerator_for, numbers_of, run
from torch.utils.data import Dataset

from packed import SIZE
from ranks import left_behind
from stream.loader import StreamLoader
from stream.options import StreamOptions

KEPT = 4
SINCE = 100
"""From this step on memory may not grow."""


class Rows(Dataset):
    """Rows of int64 words that all are the row's number; every so many rows one that is large."""

    def __init__(self, rows, words, large_words, large_every):
        self.rows, self.words, self.large_words, self.large_every = rows, words, large_words, large_every

    def __len__(self):
        return self.rows

    def __getitem__(self, number):
        if not self.large_every or number % self.large_every != self.large_every // 2:
            return number, torch.full((self.words,), number)
        # Memory that goes back to the system at once: what the allocator keeps of a user's large rows is not looked at
        memory = mmap(-1, self.large_words * torch.int64.itemsize)
        return number, torch.frombuffer(memory, dtype=torch.int64).fill_(number)


def together(rows):
    return {"number": [number for number, _ in rows], "payload": [payload for _, payload in rows]}


class User:
    """Takes batches, keeps the last of them, and looks at all that it has."""

    def __init__(self, loader, rank, portion):
        self.loader, self.rank, self.portion = loader, rank, portion
        self.kept = deque()
        self.wrong, self.steps = [], 0
        self.peaks = {}  # only the highest: what is noted of every step would be memory that grows

    def take(self, batch):
        first = self.loader.position - self.loader.total_batch_size + self.rank * self.portion
        expected = list(range(first, first + self.portion))
        self.look(batch, expected)
        self.kept.append((batch, expected))
        if len(self.kept) > KEPT:
            self.look(*self.kept.popleft())
        self.measure()

    def look(self, batch, expected):
        if "payload" in batch:
            same = [bool((words == number).all()) for words, number in zip(batch["payload"], expected, strict=True)]
            right = batch["number"] == expected and all(same)
        else:
            right = list(map(int, batch["key"])) == expected and numbers_of(batch["image"]) == expected
        if not right:
            self.wrong.append([self.steps, expected[0]])

    def measure(self):
        kib = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
        own, files, shared = (int(kib[name].split()[0]) for name in ("RssAnon", "RssFile", "RssShmem"))
        self.note("before_kib" if self.steps < SINCE else "after_kib", own + files)
        self.note("shared_kib", shared)
        # The reader's own count, for each rank that it feeds
        memories = [peer.memory for peer in self.loader._place.exchange._peers if peer.rank]
        for number, memory in enumerate(memories):
            self.note(("rings", number), memory.file_bytes)
            self.note(("lent", number), getattr(memory, "lent_bytes", 0))
        self.steps += 1

    def note(self, name, value):
        self.peaks[name] = max(value, self.peaks.get(name, 0))

    def told(self):
        return {
            "steps": self.steps,
            "wrong": self.wrong[:5],
            **{name: self.peaks.get(name, 0) for name in ("before_kib", "after_kib", "shared_kib")},
            **{
                name: [peak for place, peak in sorted(self.peaks.items(), key=str) if place[0] == name]
                for name in ("rings", "lent")
            },
        }


def main(config, accelerator):
    return {case["name"]: case_of(case, accelerator) for case in config["cases"]}


def case_of(case, accelerator):
    ranks, rank = accelerator.num_processes, accelerator.process_index
    accelerator = accelerator_for("dispatch")
    loader = accelerator.prepare(loader_of(case, accelerator, ranks))
    user = User(loader, rank, case["portion"])
    while user.steps < case["steps"]:
        iterate(loader, user, case)
    kinds = loader.describe()
    loader.close()
    return {**user.told(), "described": kinds, "left": left_behind()}


def iterate(loader, user, case):
    for taken, batch in enumerate(loader, 1):
        user.take(batch)
        if user.rank == 1:
            time.sleep(case["sleep_s"])
        if taken == case["breaks_after"] or user.steps == case["steps"]:
            return


def loader_of(case, accelerator, ranks):
    options = StreamOptions(same_host=case["same_host"], read_ahead_bytes=case["budget"] * ranks)
    common = {"accelerator": accelerator, "batch_size": case["portion"] * ranks, "shuffle": None, "options": options}
    if case["url"] is not None:
        return StreamLoader(case["url"], image_size=SIZE, **common)
    rows = Rows(
        case["epoch"] * case["portion"] * ranks, case["words"], case["large_words"], case["large_every"] * ranks
    )
    return StreamLoader(rows, collate=together, **common)


run(main)
