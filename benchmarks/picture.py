"""Draw a run of the benchmark: samples/s over prefetch, a panel for each number of ranks and workers.

The modes differ by colour, pinning by line and marker, so the picture can be read without its colours. All panels
share one scale, which starts at zero and holds the decode ceiling.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from report import NOTHING_TO_PIN, Result, Row, count

_COLORS = {"dispatch": "#0057a8", "shard": "#c75000"}
_INK, _PALE = "#222222", "#777777"
_DOTS_PER_INCH = 130
_LABEL_GAP = 0.055  # of the height of a panel: what two labels must lie apart


def draw(result: Result, path: Path) -> None:
    """Write the picture as PNG. Rows that failed are counted below it, not drawn."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - only a picture needs it, 0.5 s
    from matplotlib.figure import Figure  # noqa: PLC0415 - as above

    rows = [row for row in result.rows if row.samples_per_s is not None]
    ranks = sorted({row.config.ranks for row in rows}) or [1]
    workers = sorted({row.config.workers for row in rows}) or [0]
    figure = Figure(figsize=(1.6 + 3.4 * len(workers), 1.9 + 3.3 * len(ranks)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(ranks), len(workers), sharex=True, sharey=True, squeeze=False)
    prefetches = sorted({row.config.prefetch for row in rows})
    top = 1.16 * max([result.ceiling.images_per_s, *(row.samples_per_s.high for row in rows if row.samples_per_s)])
    for line, ranks_here in enumerate(ranks):
        for column, workers_here in enumerate(workers):
            here = [r for r in rows if (r.config.ranks, r.config.workers) == (ranks_here, workers_here)]
            panel = panels[line][column]
            if not here:
                panel.set_axis_off()
                continue
            panel.set_title(f"{count(ranks_here, 'rank')}, {count(workers_here, 'worker')}", fontsize=10, color=_INK)
            _panel(panel, here, prefetches, top, result.ceiling.images_per_s)
        panels[line][0].set_ylabel("samples/s over all ranks", color=_INK)
    for panel in panels[-1]:
        panel.set_xlabel("prefetch, steps", fontsize=8, color=_INK)
    figure.supxlabel(_legend(result, failed=len(result.rows) - len(rows)), fontsize=8, color=_INK)
    figure.suptitle(_title(result), fontsize=10, color=_INK)
    figure.savefig(path, format="png", dpi=_DOTS_PER_INCH)


def _panel(panel: Any, rows: Sequence[Row], prefetches: Sequence[int], top: float, ceiling: float) -> None:  # noqa: ANN401 - matplotlib has no types
    """Draw one panel; the places of the horizontal axis are the prefetches, evenly spaced."""
    panel.set_ylim(0, top)
    panel.set_xlim(-0.4, len(prefetches) - 0.6 + 0.32 * max(2, len(prefetches)))
    panel.set_xticks(range(len(prefetches)), [str(steps) for steps in prefetches])
    panel.tick_params(labelsize=8, colors=_INK)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.axhline(ceiling, color=_PALE, linewidth=1, linestyle=(0, (6, 3)))
    panel.text(-0.35, ceiling + 0.01 * top, f"decode ceiling {ceiling:,.0f}", fontsize=7, color=_PALE, va="bottom")
    labels = [_curve(panel, rows, prefetches, (mode, pin)) for mode in _COLORS for pin in (False, True)]
    _label(panel, [label for label in labels if label is not None], len(prefetches) - 1 + 0.28, top)
    for row in rows:
        _mark(panel, row, prefetches)


def _curve(
    panel: Any,  # noqa: ANN401 - matplotlib has no types
    rows: Sequence[Row],
    prefetches: Sequence[int],
    kind: tuple[str, bool],
) -> tuple[str, str, float] | None:
    """Draw the rows of one mode and pinning, and return the label for its end: (text, colour, height)."""
    mode, pin = kind
    known = sorted((row.config.prefetch, row.samples_per_s) for row in rows if _kind(row) == kind and row.samples_per_s)
    if not known:
        return None
    xs = [prefetches.index(prefetch) + _shift(kind) for prefetch, _ in known]
    rates = [rate for _, rate in known]
    medians = [rate.median for rate in rates]
    panel.errorbar(
        xs,
        medians,
        yerr=[[rate.median - rate.low for rate in rates], [rate.high - rate.median for rate in rates]],
        color=_COLORS[mode],
        linestyle="--" if pin else "-",
        marker="s" if pin else "o",
        markerfacecolor="white" if pin else _COLORS[mode],
        markersize=5,
        linewidth=1.3,
        elinewidth=0.8,
    )
    return f"{mode}, pin {'on' if pin else 'off'}", _COLORS[mode], medians[-1]


def _shift(kind: tuple[str, bool]) -> float:
    """Keep curves of equal height apart."""
    mode, pin = kind
    return (0.05 if pin else -0.05) + (0.02 if mode == "shard" else -0.02)


def _kind(row: Row) -> tuple[str, bool]:
    return row.config.mode, row.config.pin_memory


def _label(panel: Any, labels: Sequence[tuple[str, str, float]], x: float, top: float) -> None:  # noqa: ANN401 - as _panel
    """Write the labels beside the ends of their curves, moved apart where they would cover each other."""
    heights = spread_out([height for _, _, height in labels], gap=_LABEL_GAP * top)
    for (text, color, _), height in zip(labels, heights, strict=True):
        panel.text(x, height, text, color=color, fontsize=7, va="center")


def spread_out(heights: Sequence[float], *, gap: float) -> list[float]:
    """Return the heights, in their order, moved so that each two are at least `gap` apart and above zero."""
    order = sorted(range(len(heights)), key=lambda place: heights[place])
    groups: list[tuple[float, list[int]]] = []  # (centre, places), each group `gap` apart inside
    for place in order:
        groups.append((heights[place], [place]))
        while len(groups) > 1 and _top(groups[-2], gap) + gap > _bottom(groups[-1], gap):
            (one, below), (other, above) = groups[-2:]
            total = len(below) + len(above)
            groups[-2:] = [((one * len(below) + other * len(above)) / total, below + above)]
    placed: dict[int, float] = {}
    floor = gap / 2
    for group in groups:
        start = max(floor, _bottom(group, gap))
        placed |= {place: start + gap * number for number, place in enumerate(group[1])}
        floor = start + gap * len(group[1])
    return [placed[place] for place in range(len(heights))]


def _bottom(group: tuple[float, list[int]], gap: float) -> float:
    return group[0] - gap * (len(group[1]) - 1) / 2


def _top(group: tuple[float, list[int]], gap: float) -> float:
    return group[0] + gap * (len(group[1]) - 1) / 2


def _mark(panel: Any, row: Row, prefetches: Sequence[int]) -> None:  # noqa: ANN401 - as _panel
    """Put a star on the best row and a ring around the common advice; the legend says what they are."""
    if row.samples_per_s is None:
        return
    place = [prefetches.index(row.config.prefetch) + _shift(_kind(row))], [row.samples_per_s.median]
    color = _COLORS[row.config.mode]
    if row.best:
        panel.plot(*place, marker="*", markersize=15, color=color, markeredgecolor="white", linestyle="", zorder=4)
    if row.common_advice:
        panel.plot(*place, marker="o", markersize=13, color=_INK, markerfacecolor="none", linestyle="", zorder=5)


def _title(result: Result) -> str:
    machine, setting = result.machine, result.setting
    return (
        f"{machine.cpu}, {count(machine.cores, 'core')}, {machine.accelerator}; {result.date}\n"
        f"{setting.batch_size} rows a step, {setting.image_size} x {setting.image_size} pixels, "
        f"medians of {result.repeats} windows of {setting.window_s:g} s, bars from lowest to highest"
    )


def _legend(result: Result, *, failed: int) -> str:
    pinned = any(row.note == NOTHING_TO_PIN for row in result.rows)
    on = f"pin_memory on ({NOTHING_TO_PIN}: these repeat the others)" if pinned else "pin_memory on"
    lost = f"; {count(failed, 'row')} failed and not drawn" if failed else ""
    lines = [
        f"solid, filled: pin_memory off; dashed, hollow: {on}{lost}",
        _named("star: best of its mode", [row for row in result.rows if row.best]),
        _named("ring: common advice", [row for row in result.rows if row.common_advice]),
    ]
    return "\n".join(line for line in lines if line)


def _named(what: str, rows: Sequence[Row]) -> str:
    """Name rows with their rates; nothing where none was measured."""
    told = [
        f"{row.config.mode} on {count(row.config.ranks, 'rank')} {row.samples_per_s.median:,.0f}"
        for row in rows
        if row.samples_per_s is not None
    ]
    return f"{what}: {', '.join(told)}" if told else ""
