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


def merge(spans: Sequence[tuple[int, int]], *, gap_bytes: int, max_bytes: int) -> list[Merged]:
    """Cover `spans` (start, end; end exclusive, any order, overlaps allowed) by reads in ascending order.

    Two neighbours share a read when at most `gap_bytes` lie between them and the read stays within `max_bytes`; a
    single span larger than that is one read of its own.
    """
    ordered = sorted(Piece(start, end, place) for place, (start, end) in enumerate(spans))
    reads: list[Merged] = []
    group: list[Piece] = []
    start = end = 0
    for piece in ordered:
        near = group and piece.start - end <= gap_bytes and max(end, piece.end) - start <= max_bytes
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
