"""Markdown tables that also line up as plain text."""

from collections.abc import Collection, Sequence


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, text: Collection[int] = (0,)) -> str:
    """Return a table without a last line break; `text` names the columns that are not numbers."""
    lines = [columns, *rows]
    widths = [max(len(line[number]) for line in lines) for number in range(len(columns))]

    def placed(line: Sequence[str]) -> str:
        cells = (
            cell.ljust(width) if number in text else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        return f"| {' | '.join(cells)} |"

    rule = "|".join("-" * (width + 1) + ("-" if n in text else ":") for n, width in enumerate(widths))
    return "\n".join([placed(columns), f"|{rule}|", *(placed(row) for row in rows)])
