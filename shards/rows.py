"""Read rows of one shard through its index: few merged reads, checksums verified, parts as views."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
from xxhash import xxh3_64_intdigest

from shards.errors import ChecksumError, MismatchError
from shards.index import ShardIndex
from shards.ranges import Merged, cut, merge
from shards.sample import Sample
from shards.store import Store


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Which reads give which parts: `wanted[i]` is (place in the caller's rows, suffix) of span number i."""

    reads: list[Merged]
    wanted: list[tuple[int, str]]

    @property
    def bytes(self) -> int:
        """What the reads amount to, in bytes."""
        return sum(read.end - read.start for read in self.reads)


class PlacedPart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One part of a planned sample: `[at, at + size)` of the filled memory, from byte `offset` of its shard on."""

    suffix: str
    at: int
    size: int
    offset: int
    checksum: int


class PlacedSample(msgspec.Struct, frozen=True, array_like=True):
    """One planned sample, its parts in tar order. `shard` is the place of its shard among those of the plan."""

    row: int
    shard: int
    key: str
    parts: list[PlacedPart]

    def open(self, memory: memoryview, *, url: str, verify: bool) -> Sample:
        """Return the sample out of the filled memory, its parts as views of it; `url` is that of its shard.

        Raises:
            ChecksumError: a part differs from the index.
        """
        found: dict[str, memoryview] = {}
        for part in self.parts:
            view = memory[part.at : part.at + part.size]
            if verify and xxh3_64_intdigest(view) != part.checksum:
                raise ChecksumError(url, self.key, part.suffix, part.offset)
            found[part.suffix] = view
        return Sample(self.key, found)


class ShardReader:
    """The rows of one shard.

    Thread-safe. `read` gives samples whose parts are views of what one read brought; they own that storage together.
    """

    def __init__(self, store: Store, name: str, index: ShardIndex, *, verify: bool = True) -> None:
        """Open nothing yet; `verify` compares every part with the checksum in the index.

        Raises:
            MismatchError: the index speaks of a shard of another name.
        """
        if index.shard != name:
            raise MismatchError(store.url_of(name), f"index {index.url} belongs to shard {index.shard}")
        self.store, self.name, self.index = store, name, index
        self._verify = verify

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, row: int) -> Sample:
        return self.read([row])[0]

    def check_size(self) -> None:
        """Compare the file's size with the index: finds a cut shard before anything is read from it.

        Raises:
            MismatchError: they differ.
        """
        size = self.store.size(self.name)
        if size != self.index.shard_bytes:
            raise MismatchError(
                self.store.url_of(self.name),
                f"the shard has {size} bytes, its index {self.index.url} says {self.index.shard_bytes}",
            )

    def plan(self, rows: Sequence[int], suffixes: Sequence[str] | None = None) -> ReadPlan:
        """Decide the reads for these rows and parts (all parts without `suffixes`); reads nothing.

        Raises:
            IndexError: there is no such row.
        """
        names = self.index.suffixes if suffixes is None else [s for s in suffixes if s in self.index.suffixes]
        spans: list[tuple[int, int]] = []
        wanted: list[tuple[int, str]] = []
        for place, row in enumerate(rows):
            self._check_row(row)
            for (offset, size), suffix in sorted((self.index.span(row, suffix), suffix) for suffix in names):
                if offset:
                    spans.append((offset, offset + size))
                    wanted.append((place, suffix))
        store, of_row = self.store, [rows[place] for place, _ in wanted] if self.store.in_place else None
        reads = merge(spans, gap_bytes=store.gap_bytes, max_bytes=store.max_read_bytes, rows=of_row)
        return ReadPlan(reads, wanted)

    def read(self, rows: Sequence[int], *, suffixes: Sequence[str] | None = None) -> list[Sample]:
        """Return the samples of these rows, in their order, with the parts asked for that they have, in tar order.

        Raises:
            IndexError: there is no such row.
            ChecksumError: a part differs from the index.
            StoreError, FileNotFoundError: the shard cannot be read.
        """
        plan = self.plan(rows, suffixes)
        answers = self.store.read_many([(self.name, read.start, read.end) for read in plan.reads])
        return self.assemble(rows, plan, map(memoryview, answers))

    def read_into(
        self, buffer: memoryview, rows: Sequence[int], *, suffixes: Sequence[str] | None = None
    ) -> list[Sample]:
        """As `read`, but straight into `buffer` (writable, at least `plan(rows, suffixes).bytes` long).

        The parts are views of the buffer and live as long as its content does.

        Raises:
            ValueError: the buffer is too short.
        """
        plan = self.plan(rows, suffixes)
        if len(buffer) < plan.bytes:
            raise ValueError(f"a buffer of {len(buffer)} bytes cannot take {plan.bytes} bytes; give a longer one")
        answers: list[memoryview] = []
        at = 0
        for read in plan.reads:
            piece = buffer[at : at + read.end - read.start]
            self.store.read_into(self.name, piece, start=read.start)
            answers.append(piece)
            at += len(piece)
        return self.assemble(rows, plan, answers)

    def lay_out(
        self, rows: Sequence[int], suffixes: Sequence[str] | None, *, at: int
    ) -> tuple[list[tuple[int, int]], list[list[PlacedPart]], int]:
        """Lay these rows and parts (all parts without `suffixes`) out in memory from byte `at` on; reads nothing.

        Returns the reads (start, end) as `plan` has them, the parts of each row in tar order, and where they end in
        memory. Whole reads stand one after another where the store reads in place, else the parts alone.

        Raises:
            IndexError: there is no such row.
            IndexFormatError: a part would end behind the shard.
        """
        # One pass over plain numbers: each object that is tracked brings the next garbage collection nearer
        gap, most, in_place = self.store.gap_bytes, self.store.max_read_bytes, self.store.in_place
        reads: list[tuple[int, int]] = []
        parts: list[list[PlacedPart]] = [[] for _ in rows]
        start = end = before = -1
        for offset, stop, place, suffix, checksum in self._spans(rows, suffixes):
            apart = in_place and rows[place] - before > 1  # other rows lie between, see `ranges.merge`
            before = rows[place]
            if start >= 0 and (apart or offset - end > gap or max(end, stop) - start > most):
                reads.append((start, end))
                at += end - start if in_place else 0
                start = -1
            if start < 0:
                start = end = offset
            where = at + offset - start if in_place else at
            parts[place].append(PlacedPart(suffix, where, stop - offset, offset, checksum))
            end = max(end, stop)
            at += 0 if in_place else stop - offset
        if start >= 0:
            reads.append((start, end))
            at += end - start if in_place else 0
        return reads, parts, at

    def _spans(self, rows: Sequence[int], suffixes: Sequence[str] | None) -> list[tuple[int, int, int, str, int]]:
        """Return (start, end, place in `rows`, suffix, checksum) of all parts, in the order of the shard."""
        index = self.index
        columns = [(name, *index.part(name)) for name in index.suffixes if suffixes is None or name in suffixes]
        spans: list[tuple[int, int, int, str, int]] = []
        for place, row in enumerate(rows):
            self._check_row(row)
            for suffix, offsets, sizes, checksums in columns:
                if offset := offsets[row]:
                    stop = offset + sizes[row]
                    if stop > index.shard_bytes:
                        index.span(row, suffix)  # raises
                    spans.append((offset, stop, place, suffix, checksums[row]))
        spans.sort()
        return spans

    def assemble(self, rows: Sequence[int], plan: ReadPlan, answers: Iterable[memoryview]) -> list[Sample]:
        """Cut the answers of a plan's reads into samples and verify them.

        Raises:
            ChecksumError: a part differs from the index.
        """
        found: list[memoryview | None] = [None] * len(plan.wanted)
        for read, data in zip(plan.reads, answers, strict=True):
            for number, piece in cut(read, data):
                found[number] = piece
        samples = [Sample(self.index.key(row)) for row in rows]
        for (place, suffix), view in zip(plan.wanted, found, strict=True):
            if view is None:
                raise KeyError(suffix)  # every span lies in one read by construction
            if self._verify:
                self._check(rows[place], suffix, view)
            samples[place].parts[suffix] = view
        return samples

    def _check_row(self, row: int) -> None:
        if not 0 <= row < len(self):
            raise IndexError(f"shard {self.store.url_of(self.name)} has {len(self)} rows, not one numbered {row}")

    def _check(self, row: int, suffix: str, view: memoryview) -> None:
        if xxh3_64_intdigest(view) != self.index.checksum(row, suffix):
            offset, _ = self.index.span(row, suffix)
            raise ChecksumError(self.store.url_of(self.name), self.index.key(row), suffix, offset)
