"""What a run of the benchmark gave: a JSON document for programs, a Markdown table for people (picture.py draws it)."""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Self

import msgspec

from messages import Config, Setting, Shot

NOTHING_TO_PIN = "no accelerator to pin for"


class Spread(msgspec.Struct, frozen=True):
    """Median, lowest and highest of some repeats."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """Return the spread of at least one value."""
        known = list(values)
        return cls(median(known), min(known), max(known))


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration.

    Where it could not be measured, `failed` says why and there are no figures. `share_of_ceiling` is samples/s over
    the decode ceiling; bytes are per sample. `in_grid` is False for a row that is only there as the common advice.
    """

    config: Config
    in_grid: bool
    common_advice: bool
    best: bool = False
    note: str = ""
    failed: str | None = None
    samples_per_s: Spread | None = None
    share_of_ceiling: float | None = None
    first_batch_s: Spread | None = None
    wait_ms: Spread | None = None
    peak_mib: Spread | None = None
    encoded_bytes: float
    delivered_bytes: float | None = None
    windows: list[Shot] = []


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where it ran. `cores` are those that the process may use, `load` is the 1-minute load before the start."""

    cpu: str
    cores: int
    memory_gib: float
    accelerator: str
    load: float
    python: str
    torch: str
    accelerate: str


class Dataset(msgspec.Struct, frozen=True, kw_only=True):
    """What was read. `rows` are those of an epoch: the samples, repeated under new keys if they were too few."""

    url: str
    samples: int
    rows: int
    encoded_bytes: float


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """Images a second that threads decode and resize from memory; `medians` came before and after each repeat."""

    images_per_s: float
    low: float
    high: float
    threads: int
    medians: list[float]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One epoch's keys over all ranks: did each sample come exactly once, padding apart?"""

    config: Config
    rows: int
    padding: int
    problem: str | None = None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run gave. `problems` are those that belong to no row."""

    date: str
    command: str
    machine: Machine
    dataset: Dataset
    setting: Setting
    repeats: int
    ceiling: Rate
    pillow: Rate
    rows: list[Row]
    checks: list[Check]
    problems: list[str]

    @property
    def sound(self) -> bool:
        """Whether everything was measured and every check held."""
        failed = [row for row in self.rows if row.failed] + [check for check in self.checks if check.problem]
        return not failed and not self.problems


def mark_best(rows: Sequence[Row]) -> list[Row]:
    """Mark the fastest row of each mode and number of ranks.

    Where nothing can be pinned, rows with pinning repeat those without: one of them is best only without any other.
    """
    best: dict[tuple[str, int], Row] = {}
    for row in rows:
        place = (row.config.mode, row.config.ranks)
        if row.samples_per_s is not None and _merit(row) > _merit(best.get(place)):
            best[place] = row
    chosen = [row.config for row in best.values()]
    return [msgspec.structs.replace(row, best=row.config in chosen) for row in rows]


def _merit(row: Row | None) -> tuple[bool, float]:
    if row is None or row.samples_per_s is None:
        return (False, 0.0)
    return (row.note != NOTHING_TO_PIN, row.samples_per_s.median)


_COLUMNS = (
    "mode",
    "ranks",
    "workers",
    "prefetch",
    "pin",
    "samples/s",
    "lowest-highest",
    "of ceiling",
    "first batch, s",
    "wait, ms",
    "peak, MiB",
    "encoded, kB",
    "delivered, kB",
    "",
)
_TEXT = (0, 4, len(_COLUMNS) - 1)  # columns that are not numbers


def to_markdown(result: Result) -> str:
    """Return the report: machine, table, what the columns mean, and the sentences that follow from it."""
    cells = [_COLUMNS, *(_cells(row) for row in result.rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_COLUMNS))]
    lines = [_line(line, widths) for line in cells]
    lines.insert(1, _rule(widths))
    return "\n\n".join((_head(result), "\n".join(lines), *_sentences(result))) + "\n"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    placed = (
        cell.ljust(width) if column in _TEXT else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return f"| {' | '.join(placed)} |"


def _rule(widths: Sequence[int]) -> str:
    dashes = ("-" * (width + 1) + ("-" if column in _TEXT else ":") for column, width in enumerate(widths))
    return f"|{'|'.join(dashes)}|"


def _cells(row: Row) -> tuple[str, ...]:
    config = row.config
    pin = "on" if config.pin_memory else "off"
    about = (config.mode, str(config.ranks), str(config.workers), str(config.prefetch), pin)
    if row.samples_per_s is None:
        return (*about, *("-",) * 8, _remarks(row))
    rate = row.samples_per_s
    return (
        *about,
        f"{rate.median:,.0f}",
        f"{rate.low:,.0f}-{rate.high:,.0f}",
        _number(row.share_of_ceiling, ".0%"),
        _number(row.first_batch_s, ".2f"),
        _number(row.wait_ms, ".1f"),
        _number(row.peak_mib, ",.0f"),
        f"{row.encoded_bytes / 1e3:.1f}",
        _number(row.delivered_bytes and row.delivered_bytes / 1e3, ".1f"),
        _remarks(row),
    )


def _number(value: Spread | float | None, form: str) -> str:
    number = value.median if isinstance(value, Spread) else value
    return "-" if number is None else format(number, form)


def _remarks(row: Row) -> str:
    if row.failed:
        return f"FAILED: {row.failed}".replace("|", "/").replace("\n", " ")
    best = f"**best of {row.config.mode}**" if row.best else ""
    advice = "common advice" if row.common_advice else ""
    return "; ".join(part for part in (best, advice, row.note) if part)


def _head(result: Result) -> str:
    machine, data, setting = result.machine, result.dataset, result.setting
    times = f", repeated under new keys to {data.rows:,}" if data.rows != data.samples else ""
    where = (
        f"{machine.cpu}, {machine.cores} cores, {machine.memory_gib:.0f} GiB, {machine.accelerator}; "
        f"Python {machine.python}, torch {machine.torch}, accelerate {machine.accelerate}; {result.date}; "
        f"load before the start {machine.load:.1f}."
    )
    what = (
        f"{data.samples:,} samples of {data.encoded_bytes / 1e3:.0f} kB{times}; {setting.batch_size} rows a step over "
        f"all ranks, images to {setting.image_size} x {setting.image_size}; medians of {result.repeats} windows of "
        f"{setting.window_s:g} s, each after {setting.warmup_s:g} s of warming up, the rows taking turns."
    )
    rates = f"{_rate_line('Decode ceiling', result.ceiling)} {_rate_line('Pillow instead', result.pillow)}"
    return "\n\n".join((where, f"`{result.command}`", what, rates))


def _rate_line(name: str, rate: Rate) -> str:
    spread = f"{rate.low:,.0f}-{rate.high:,.0f}"
    return f"{name}: {rate.images_per_s:,.0f} images/s by {rate.threads} threads ({spread})."


def _sentences(result: Result) -> list[str]:
    columns = (
        "First batch: from making the loader, on the slowest rank. Wait: in `next()`, the median step. Peak: of the "
        "largest rank with its workers, proportional set size, looked at four times a second. Encoded: image and "
        "caption as stored, per sample; delivered: as they arrive in a batch."
    )
    checks = [_check_line(check) for check in result.checks]
    return [columns, *_compare(result.rows), *checks, *(f"PROBLEM: {problem}" for problem in result.problems)]


def _compare(rows: Sequence[Row]) -> list[str]:
    """Say how each best row stands to the common advice, and how many rows cannot be told from it."""
    lines = []
    for best in (row for row in rows if row.best and row.samples_per_s):
        rivals = [row for row in rows if _place(row) == _place(best) and row is not best]
        level = [row for row in rivals if _overlap(row, best)]
        line = f"Best of {best.config.mode} on {count(best.config.ranks, 'rank')}: {_told(best)}; "
        line += f"{len(level)} of the {len(rivals)} other rows overlap its spread."
        advised = [row for row in rows if row.common_advice and row.samples_per_s and _place(row) == _place(best)]
        lines.append(line + "".join(f" Common advice: {_told(row)}." for row in advised))
    return lines


def _place(row: Row) -> tuple[str, int]:
    return row.config.mode, row.config.ranks


def _overlap(row: Row, best: Row) -> bool:
    return bool(row.samples_per_s and best.samples_per_s and row.samples_per_s.high >= best.samples_per_s.low)


def _told(row: Row) -> str:
    config, rate = row.config, _number(row.samples_per_s, ",.0f")
    pin = "on" if config.pin_memory else "off"
    return f"{rate} samples/s with {count(config.workers, 'worker')}, prefetch {config.prefetch}, pin {pin}"


def count(number: int, noun: str) -> str:
    """Return "1 rank", "2 ranks"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _check_line(check: Check) -> str:
    if check.problem:
        return f"CHECK FAILED, {check.config}: {check.problem}"
    return (
        f"Checked, {check.config}: one epoch brought each of {check.rows:,} rows to exactly one rank "
        f"({check.padding} rows of padding)."
    )
