"""Several datasets read as one: their rows stand one after another, in the order in which the datasets are given."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from shards.dataset import DatasetReader
from shards.planned import DatasetPlan, PlanStart, assign
from shards.rows import PlacedSample
from shards.sample import Sample


@dataclass(frozen=True, slots=True)
class JoinedPlan:
    """How to bring some samples into one memory of `size` bytes; the fields are those of `DatasetPlan`.

    `plans` are those of the datasets that have some of them, each with the number of its dataset.
    """

    size: int
    urls: list[str]
    samples: list[PlacedSample]
    plans: list[tuple[int, DatasetPlan]]


class JoinedReader:
    """The rows of several datasets, numbered from 0 over all of them. Thread-safe and picklable, as `DatasetReader`.

    Raises:
        ShardsError, FileNotFoundError: as `DatasetReader`, at first use.
    """

    def __init__(self, readers: Sequence[DatasetReader]) -> None:
        self.readers = tuple(readers)

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def url(self) -> str:
        """The URLs of all datasets, for messages."""
        return ", ".join(reader.url for reader in self.readers)

    def first_row(self, number: int) -> int:
        """Return the row of a dataset's first sample."""
        return self._starts[number]

    def shard_url(self, row: int) -> str:
        """Return the URL of the shard that holds a row."""
        number, within = self._locate(row)
        return self.readers[number].shard_url(within)

    def sample_bytes(self, row: int) -> int:
        """Return about how many bytes a row's sample takes in its shard."""
        number, within = self._locate(row)
        return self.readers[number].sample_bytes(within)

    def read(self, rows: Sequence[int], *, suffixes: Sequence[str] | None = None) -> list[Sample]:
        """Return the samples of these rows, in their order, see `DatasetReader.read`."""
        found: dict[int, Sample] = {}
        for number, mine in self._groups(rows).items():
            first = self._starts[number]
            samples = self.readers[number].read([row - first for row in mine], suffixes=suffixes)
            found |= zip(mine, samples, strict=True)
        return [found[row] for row in rows]

    def plan(self, rows: Sequence[int], *, suffixes: Sequence[str] | None = None) -> JoinedPlan:
        """Decide how these rows are brought into one memory, see `DatasetReader.plan`."""
        joined = JoinedPlan(0, [], [], [])
        size = 0
        for number, mine in self._groups(rows).items():
            first = self._starts[number]
            start = PlanStart(size, first, len(joined.urls))
            plan = self.readers[number].plan([row - first for row in mine], suffixes=suffixes, start=start)
            joined.plans.append((number, plan))
            joined.urls.extend(plan.urls)
            joined.samples.extend(plan.samples)
            size = plan.size
        return JoinedPlan(size, joined.urls, joined.samples, joined.plans)

    def local_reads(self, plan: JoinedPlan) -> list[tuple[str, list[tuple[int, int]]]] | None:
        """Return what `fill` brings as ranges of local files, see `DatasetReader.local_reads`; None: not all are."""
        found: list[tuple[str, list[tuple[int, int]]]] = []
        for number, of_one in plan.plans:
            reads = self.readers[number].local_reads(of_one)
            if reads is None:
                return None
            found += reads
        return found

    def fill_at_once(self, plan: JoinedPlan, memory: memoryview) -> bool:
        """Fill only if that waits for nothing, see `DatasetReader.fill_at_once`."""
        return all(self.readers[number].fill_at_once(of_one, memory) for number, of_one in plan.plans)

    def fill(
        self, plan: JoinedPlan, memory: memoryview, *, copy: Callable[[memoryview, memoryview], None] = assign
    ) -> None:
        """Bring the bytes of a plan into `memory`, see `DatasetReader.fill`."""
        for number, of_one in plan.plans:
            self.readers[number].fill(of_one, memory, copy=copy)

    def _groups(self, rows: Sequence[int]) -> dict[int, list[int]]:
        groups: dict[int, list[int]] = {}
        for row in rows:
            groups.setdefault(self._locate(row)[0], []).append(row)
        return groups

    def _locate(self, row: int) -> tuple[int, int]:
        if not 0 <= row < len(self):
            raise IndexError(f"datasets {self.url} have {len(self)} rows, not one numbered {row}")
        number = bisect_right(self._starts, row) - 1
        return number, row - self._starts[number]

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(len(reader) for reader in self.readers)]
