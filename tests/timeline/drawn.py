"""Partitions to draw, made by hand: no rows, only pieces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from floodmark.timeline.pieces import Partition, Piece, PieceOrigin, TimePoint, WaitingRun
from floodmark.timeline.settings import parse_partition

HOUR = 3600 * 10**6
DAY = 24 * HOUR


def piece(
    first: int, last: int, *, since: int = 1, how: PieceOrigin = PieceOrigin.SLICE, rows: int = 10, group: int = 0
) -> Piece:
    """Rows between two times, both included."""
    places = TimePoint(first, 0), TimePoint(last, rows - 1)
    return Piece("data/f1620aa", group, 0, rows, rows, *places, 0, rows - 1, 100, how, since)


def day(label: str, settled: Iterable[Piece], runs: Sequence[Sequence[Piece]] = ()) -> Partition:
    """A day whose pieces have times since its midnight."""
    start = parse_partition(label, "day")

    def moved(p: Piece) -> Piece:
        first, last = TimePoint(start + p.first.time, 0), TimePoint(start + p.last.time, p.rows - 1)
        places = (first, last, p.offset_min, p.offset_max, p.size)
        return Piece(p.file, p.row_group, p.row_lo, p.row_hi, p.group_rows, *places, p.how, p.since)

    waiting = tuple(WaitingRun(number, 0, tuple(map(moved, run))) for number, run in enumerate(runs))
    return Partition(start, tuple(map(moved, settled)), waiting)


def even(count: int, *, since: int = 1) -> list[Piece]:
    """A day cut into so many pieces."""
    length = DAY // count
    return [piece(n * length, (n + 1) * length - 1, since=since, group=n) for n in range(count)]
