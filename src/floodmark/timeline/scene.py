"""The scene of a picture: the pieces of a timeline as boxes on a time axis, independent of the output format."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from floodmark.timeline.pieces import Partition, Piece, PieceOrigin, WaitingRun
from floodmark.timeline.sections import Range
from floodmark.timeline.settings import Unit, partition_end, partition_label

_SECOND = 10**6
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_STEPS = (
    *(base * 10**power for power in range(6) for base in (1, 2, 5)),
    *(count * _SECOND for count in (1, 2, 5, 10, 15, 30)),
    *(count * _MINUTE for count in (1, 2, 5, 10, 15, 30)),
    *(count * _HOUR for count in (1, 2, 3, 6, 12)),
    *(count * _DAY for count in (1, 2, 7)),
)
"""The possible steps between two labels, in microseconds."""

_MONTHS = (1, 3, 6, 12)
_MONDAY = 4 * _DAY  # the first Monday of 1970: labels seven days apart are Mondays
_ROOM = 3
"""The free letters between two labels."""

# The time axis


@dataclass(frozen=True)
class Tick:
    """A label of the axis, and the cell where it begins."""

    cell: int
    text: str


@dataclass(frozen=True)
class Axis:
    """The time [lo, hi) in microseconds, divided into cells. A letter of a label is `letter` cells wide."""

    lo: int
    hi: int
    cells: int
    letter: int

    def cell(self, time: int) -> int:
        """The border between cells that is nearest to a time. Times outside the axis map to its nearer end."""
        within = min(max(time, self.lo), self.hi) - self.lo
        return (2 * within * self.cells + (self.hi - self.lo)) // (2 * (self.hi - self.lo))

    def ticks(self) -> tuple[Tick, ...]:
        """As many round times as fit; the first time of the axis if no round time fits."""
        for times, form in self._scales():
            found = [Tick(self.cell(time), _format_time(time, form)) for time in times]
            found = [tick for tick in found if tick.cell + len(tick.text) * self.letter <= self.cells]
            apart = all(self._is_apart(tick, following) for tick, following in itertools.pairwise(found))
            if found and apart:
                return tuple(found)
        return (Tick(0, _format_time(self.lo, "us")),)

    def _is_apart(self, tick: Tick, following: Tick) -> bool:
        return tick.cell + (len(tick.text) + _ROOM) * self.letter <= following.cell

    def _scales(self) -> list[tuple[list[int], str]]:
        """The round times on the axis and their formats. The finest scale that may fit comes first."""
        scales = []
        most = max(1, self.cells // (self.letter * (len("2026") + _ROOM)) + 1)
        for interval in _STEPS:
            origin = _MONDAY if interval == 7 * _DAY else 0
            first = -(-(self.lo - origin) // interval) * interval + origin
            if first < self.hi and (self.hi - 1 - first) // interval < most:
                scales.append((list(range(first, self.hi, interval)), self._form(interval)))
        for months in _MONTHS:
            ends = np.array([self.lo - 1, self.hi - 1], "M8[us]").astype("M8[M]").astype(np.int64)
            low, high = (int(end) for end in ends)
            first = -(-(low + 1) // months) * months
            if first <= high and (high - first) // months < most:
                starts = np.arange(first, high + 1, months).astype("M8[M]").astype("M8[us]").astype(np.int64)
                scales.append((starts.tolist(), "year" if months == _MONTHS[-1] else "month"))
        return scales

    def _form(self, interval: int) -> str:
        if interval < _SECOND:
            return "us"
        if interval < _MINUTE:
            return "second"
        if interval < _DAY:
            return "minute" if self.hi - self.lo <= _DAY else "day and minute"
        return "day"


def _format_time(time: int, form: str) -> str:
    text = str(np.datetime64(time, "us"))  # like 2026-11-01T13:45:00.123456; years may have more than four digits
    date, _, clock = text.partition("T")
    match form:
        case "us":
            return clock.rstrip("0").removesuffix(".")
        case "second":
            return clock[:8]
        case "minute":
            return clock[:5]
        case "day and minute":
            return f"{date[-5:]} {clock[:5]}"
        case "day":
            return date[-5:]
        case "month":
            return date[:-3]
        case _:
            return date[:-6]


# Boxes, lanes and panels

_FEWEST_PARTS = 4
"""If the pieces cover less than 1/4 of their partition, the axis shows only the covered time."""


class Shade(IntEnum):
    """The effect of the last update on a piece. If several pieces share a box, the box has the highest value."""

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
    """The cells [lo, hi) of a line: one piece, or several that are too narrow for separate boxes."""

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
        """One box for both, with the cells of this one."""
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
    waiting: tuple[Lane, ...]  # from bottom to top
    ticks: tuple[Tick, ...]

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """All lanes, from top to bottom."""
        return (*reversed(self.waiting), *([] if self.settled is None else [self.settled]))


@dataclass(frozen=True)
class Scene:
    """The panels of the shown partitions in time order, and the totals of all partitions."""

    cells: int
    panels: tuple[Panel, ...]
    partitions: int
    rows: int
    pieces: int

    @property
    def left_out(self) -> int:
        """The number of partitions that are not shown."""
        return self.partitions - len(self.panels)

    @property
    def boxes(self) -> list[Box]:
        return [box for panel in self.panels for lane in panel.lanes for box in lane.boxes]

    @property
    def legend(self) -> list[tuple[Shade, int]]:
        """The shades in use and their numbers of boxes. The most important shade comes first."""
        shades = [box.shade for box in self.boxes]
        return [(shade, shades.count(shade)) for shade in sorted(set(shades), reverse=True)]

    @property
    def fullest(self) -> int:
        """The largest number of pieces in one box."""
        return max((box.pieces for box in self.boxes), default=0)


@dataclass(frozen=True)
class PictureSize:
    """The size limits of a picture: cells per line, cells per letter, waiting lanes per panel, and panels."""

    cells: int
    letter: int
    lanes: int
    panels: int


def compose(partitions: Sequence[Partition], unit: Unit, version: int, size: PictureSize, within: Range) -> Scene:
    """The scene of some partitions as of a version of the root: pieces of that version are new or merged."""
    shown = [p for p in (_clip(p, within) for p in partitions) if p.pieces]
    chosen = _select(shown, version, size.panels)
    return Scene(
        cells=size.cells,
        panels=tuple(_panel(partition, unit, version, size, within) for partition in chosen),
        partitions=len(shown),
        rows=sum(p.rows for p in shown),
        pieces=sum(len(p.pieces) for p in shown),
    )


def _clip(partition: Partition, within: Range) -> Partition:
    """The partition with only the pieces that may have rows in a range."""

    def meets(piece: Piece) -> bool:
        return within.meets(piece.first, piece.last)

    runs = [replace(run, pieces=tuple(filter(meets, run.pieces))) for run in partition.waiting]
    settled = tuple(filter(meets, partition.settled))
    return replace(partition, settled=settled, waiting=tuple(run for run in runs if run.pieces))


def _select(partitions: Sequence[Partition], version: int, most: int) -> list[Partition]:
    """The partitions to show, in time order. Those that the version changed have priority, then the newest."""
    chosen = sorted(partitions, key=lambda p: (_is_touched(p, version), p.start), reverse=True)[:most]
    return sorted(chosen, key=lambda p: p.start)


def _is_touched(partition: Partition, version: int) -> bool:
    return any(piece.since == version for piece in partition.pieces)


def _panel(partition: Partition, unit: Unit, version: int, size: PictureSize, within: Range) -> Panel:
    axis = _axis(partition, unit, size, within)
    touched = _is_touched(partition, version)

    def boxes(pieces: Iterable[Piece]) -> Lane:
        return _lane(axis, [_box(axis, piece, _shade(piece, version, touched)) for piece in pieces])

    waiting = [piece for run in partition.waiting for piece in run.pieces]
    return Panel(
        label=partition_label(partition.start, unit),
        settled_rows=sum(p.rows for p in partition.settled),
        settled_pieces=len(partition.settled),
        waiting_rows=sum(p.rows for p in waiting),
        waiting_pieces=len(waiting),
        dead=partition.dead,
        settled=boxes(partition.settled) if partition.settled else None,
        waiting=_stack(axis, [boxes(run.pieces) for run in _by_age(partition.waiting)], size.lanes),
        ticks=axis.ticks(),
    )


def _axis(partition: Partition, unit: Unit, size: PictureSize, within: Range) -> Axis:
    """The axis of the partition within a range; only the time that its pieces cover if that is a small part."""
    lo = max(partition.start, within.first.time)
    hi = min(partition_end(partition.start, unit), within.end.time)
    first = max(lo, min(p.first.time for p in partition.pieces))
    last = min(hi - 1, max(p.last.time for p in partition.pieces))
    if first < last and (last - first) * _FEWEST_PARTS < hi - lo:
        return Axis(first, last + 1, size.cells, size.letter)
    return Axis(lo, hi, size.cells, size.letter)


def _shade(piece: Piece, version: int, touched: bool) -> Shade:
    if piece.since == version:
        return Shade.MERGED if piece.how in (PieceOrigin.MERGED, PieceOrigin.FOLDED, PieceOrigin.SHARED) else Shade.NEW
    return Shade.REFERENCED if touched else Shade.UNTOUCHED


def _box(axis: Axis, piece: Piece, shade: Shade) -> Box:
    lo = min(axis.cell(piece.first.time), axis.cells - 1)
    hi = max(lo + 1, axis.cell(piece.last.time + 1))
    return Box(lo, hi, shade, piece.rows, 1, piece.first.time, piece.last.time, piece.file, piece.row_group)


def _by_age(runs: Sequence[WaitingRun]) -> list[WaitingRun]:
    return sorted(runs, key=lambda run: run.id)


def _lane(axis: Axis, boxes: Iterable[Box]) -> Lane:
    """A lane of boxes. A box that begins inside the previous one is moved after it, or joined with it if too narrow."""
    placed: list[Box] = []
    for box in boxes:
        free = placed[-1].hi if placed else 0
        lo = max(box.lo, free)
        if placed and (box.first - placed[-1].last) * axis.cells < axis.hi - axis.lo:
            placed[-1] = replace(placed[-1], hi=lo)  # a gap of less than a cell is not shown
        if lo < axis.cells and (lo == box.lo or lo < box.hi):
            placed.append(replace(box, lo=lo))
        else:
            placed[-1] = placed[-1].joined(box)
    return Lane(tuple(placed))


def _stack(axis: Axis, runs: Sequence[Lane], most: int) -> tuple[Lane, ...]:
    """Runs as stacked lanes. Runs that do not overlap may share a lane; the last lane takes all remaining runs."""
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
