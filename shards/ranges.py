"""Merge near byte ranges into few reads, and cut the answers back. Pure."""

from collections.abc import Sequence
from typing import NamedTuple


class Piece(NamedTuple):
    """One wanted span: `[start, end)` in bytes, and its place in the caller's list."""

    start: int
    end: int
    place: int


class Merged(NamedTuple):
    """One read `[start, end)` that covers `pieces`."""

    start: int
    end: int
    pieces: tuple[Piece, ...]


def merge(
    spans: Sequence[tuple[int, int]], *, gap_bytes: int, max_bytes: int, rows: Sequence[int] | None = None
) -> list[Merged]:
    """Cover `spans` (start, end; end exclusive, any order, overlaps allowed) by reads in ascending order.

    Two neighbours share a read when at most `gap_bytes` lie between them and the read stays within `max_bytes`; a
    single span larger than that is one read of its own. With `rows`, the row of each span in the order of the file, a
    read also goes over no other row: what was consumed is not read again between what was not.
    """
    ordered = sorted(Piece(start, end, place) for place, (start, end) in enumerate(spans))
    reads: list[Merged] = []
    group: list[Piece] = []
    start = end = 0
    for piece in ordered:
        near = group and piece.start - end <= gap_bytes and max(end, piece.end) - start <= max_bytes
        near = near and (rows is None or rows[piece.place] - rows[group[-1].place] <= 1)
        if group and not near:
            reads.append(Merged(start, end, tuple(group)))
            group = []
        if not group:
            start, end = piece.start, piece.end
        group.append(piece)
        end = max(end, piece.end)
    if group:
        reads.append(Merged(start, end, tuple(group)))
    return reads


def cut(read: Merged, data: memoryview) -> list[tuple[int, memoryview]]:
    """Cut the bytes of one read into its pieces: (place in the caller's list, view), no copy."""
    return [(piece.place, data[piece.start - read.start : piece.end - read.start]) for piece in read.pieces]
