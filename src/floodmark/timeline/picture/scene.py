"""What a picture of a timeline shows: for each partition its pieces as boxes, those that wait above the settled ones.

A scene knows cells, not pixels or colours: whoever draws it says how many cells a line has. Pieces that are too many
for their cells share a box.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from floodmark.timeline.order.partitions import Unit, end, label
from floodmark.timeline.order.pieces import How, Partition, Piece, Run
from floodmark.timeline.order.ranges import Range
from floodmark.timeline.picture.axis import Axis, Tick

_FEWEST_PARTS = 4
"""Pieces that cover less than this part of a partition get the whole axis."""


class Shade(IntEnum):
    """What the last update did with a piece; where several share a box, the greatest is shown."""

    UNTOUCHED = 0
    REFERENCED = 1
    MERGED = 2
    NEW = 3

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_MEANINGS = {
    Shade.NEW: "new",
    Shade.MERGED: "merged",
    Shade.REFERENCED: "referenced",
    Shade.UNTOUCHED: "untouched",
}


@dataclass(frozen=True)
class Box:
    """The cells [lo, hi) of a line: one piece, or several that have no room of their own."""

    lo: int
    hi: int
    shade: Shade
    rows: int
    pieces: int
    first: int  # the times of its first and last row
    last: int
    file: str  # of its first piece
    row_group: int

    def joined(self, other: Box) -> Box:
        """One box for both; it does not grow."""
        return replace(
            self,
            shade=max(self.shade, other.shade),
            rows=self.rows + other.rows,
            pieces=self.pieces + other.pieces,
            first=min(self.first, other.first),
            last=max(self.last, other.last),
        )


@dataclass(frozen=True)
class Lane:
    """One line of boxes that do not overlap."""

    boxes: tuple[Box, ...]

    @property
    def lo(self) -> int:
        return self.boxes[0].lo

    @property
    def hi(self) -> int:
        return self.boxes[-1].hi


@dataclass(frozen=True)
class Panel:
    """One partition."""

    label: str
    settled_rows: int
    settled_pieces: int
    waiting_rows: int
    waiting_pieces: int
    dead: int
    settled: Lane | None
    waiting: tuple[Lane, ...]  # the lowest first
    ticks: tuple[Tick, ...]

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """All of them, from the top."""
        return (*reversed(self.waiting), *([] if self.settled is None else [self.settled]))


@dataclass(frozen=True)
class Scene:
    """Partitions in order of time, and what was left out of them."""

    cells: int
    panels: tuple[Panel, ...]
    partitions: int
    rows: int
    pieces: int

    @property
    def left_out(self) -> int:
        """How many partitions there was no room for."""
        return self.partitions - len(self.panels)

    @property
    def boxes(self) -> list[Box]:
        return [box for panel in self.panels for lane in panel.lanes for box in lane.boxes]

    @property
    def legend(self) -> list[tuple[Shade, int]]:
        """The shades that occur, and how many boxes have each; the most striking first."""
        shades = [box.shade for box in self.boxes]
        return [(shade, shades.count(shade)) for shade in sorted(set(shades), reverse=True)]

    @property
    def fullest(self) -> int:
        """The most pieces that share a box."""
        return max((box.pieces for box in self.boxes), default=0)


@dataclass(frozen=True)
class Size:
    """How much a picture has room for: cells in a line, of which a letter takes some, lanes in a panel, and panels."""

    cells: int
    letter: int
    lanes: int
    panels: int


def compose(partitions: Sequence[Partition], unit: Unit, version: int, size: Size, wanted: Range) -> Scene:
    """The scene of some partitions as of a version of the root: what that version brought is new or merged."""
    shown = [p for p in (_within(p, wanted) for p in partitions) if p.pieces]
    chosen = _chosen(shown, version, size.panels)
    return Scene(
        cells=size.cells,
        panels=tuple(_panel(partition, unit, version, size, wanted) for partition in chosen),
        partitions=len(shown),
        rows=sum(p.rows for p in shown),
        pieces=sum(len(p.pieces) for p in shown),
    )


def _within(partition: Partition, wanted: Range) -> Partition:
    """The same with only the pieces that may have rows of a range."""

    def meets(piece: Piece) -> bool:
        return wanted.meets(piece.first, piece.last)

    runs = [replace(run, pieces=tuple(filter(meets, run.pieces))) for run in partition.waiting]
    settled = tuple(filter(meets, partition.settled))
    return replace(partition, settled=settled, waiting=tuple(run for run in runs if run.pieces))


def _chosen(partitions: Sequence[Partition], version: int, most: int) -> list[Partition]:
    """Those that the version touched come first, then the newest; in order of time."""
    chosen = sorted(partitions, key=lambda p: (_is_touched(p, version), p.start), reverse=True)[:most]
    return sorted(chosen, key=lambda p: p.start)


def _is_touched(partition: Partition, version: int) -> bool:
    return any(piece.since == version for piece in partition.pieces)


def _panel(partition: Partition, unit: Unit, version: int, size: Size, wanted: Range) -> Panel:
    axis = _axis(partition, unit, size, wanted)
    touched = _is_touched(partition, version)

    def boxes(pieces: Iterable[Piece]) -> Lane:
        return _lane(axis, [_box(axis, piece, _shade(piece, version, touched)) for piece in pieces])

    waiting = [piece for run in partition.waiting for piece in run.pieces]
    return Panel(
        label=label(partition.start, unit),
        settled_rows=sum(p.rows for p in partition.settled),
        settled_pieces=len(partition.settled),
        waiting_rows=sum(p.rows for p in waiting),
        waiting_pieces=len(waiting),
        dead=partition.dead,
        settled=boxes(partition.settled) if partition.settled else None,
        waiting=_stacked(axis, [boxes(run.pieces) for run in _by_age(partition.waiting)], size.lanes),
        ticks=axis.ticks(),
    )


def _axis(partition: Partition, unit: Unit, size: Size, wanted: Range) -> Axis:
    """The partition, as far as it was asked for; only what its pieces cover when that is a small part."""
    lo = max(partition.start, wanted.first.time)
    hi = min(end(partition.start, unit), wanted.end.time)
    first = max(lo, min(p.first.time for p in partition.pieces))
    last = min(hi - 1, max(p.last.time for p in partition.pieces))
    if first < last and (last - first) * _FEWEST_PARTS < hi - lo:
        return Axis(first, last + 1, size.cells, size.letter)
    return Axis(lo, hi, size.cells, size.letter)


def _shade(piece: Piece, version: int, touched: bool) -> Shade:
    if piece.since == version:
        return Shade.MERGED if piece.how in (How.MERGED, How.FOLDED, How.SHARED) else Shade.NEW
    return Shade.REFERENCED if touched else Shade.UNTOUCHED


def _box(axis: Axis, piece: Piece, shade: Shade) -> Box:
    lo = min(axis.cell(piece.first.time), axis.cells - 1)
    hi = max(lo + 1, axis.cell(piece.last.time + 1))
    return Box(lo, hi, shade, piece.rows, 1, piece.first.time, piece.last.time, piece.file, piece.row_group)


def _by_age(runs: Sequence[Run]) -> list[Run]:
    return sorted(runs, key=lambda run: run.id)


def _lane(axis: Axis, boxes: Iterable[Box]) -> Lane:
    """Boxes beside each other: one that begins in the last one's cells begins after it, or joins it without room."""
    placed: list[Box] = []
    for box in boxes:
        free = placed[-1].hi if placed else 0
        lo = max(box.lo, free)
        if placed and (box.first - placed[-1].last) * axis.cells < axis.hi - axis.lo:
            placed[-1] = replace(placed[-1], hi=lo)  # a gap of less than a cell is none
        if lo < axis.cells and (lo == box.lo or lo < box.hi):
            placed.append(replace(box, lo=lo))
        else:
            placed[-1] = placed[-1].joined(box)
    return Lane(tuple(placed))


def _stacked(axis: Axis, runs: Sequence[Lane], most: int) -> tuple[Lane, ...]:
    """Runs one above the other, several in a lane where they do not overlap; the last lane takes all that are left."""
    lanes: list[list[Lane]] = []
    for run in runs:
        free = [lane for lane in lanes if all(run.hi <= other.lo or other.hi <= run.lo for other in lane)]
        if free:
            free[0].append(run)
        elif len(lanes) < most:
            lanes.append([run])
        else:
            lanes[-1].append(run)
    ordered = (sorted((box for run in lane for box in run.boxes), key=lambda box: (box.lo, box.hi)) for lane in lanes)
    return tuple(_lane(axis, boxes) for boxes in ordered)
