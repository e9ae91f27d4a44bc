"""Spans, the sections of a timeline that are read independently, and time ranges.

Each settled piece has a span, from its first time point to that of the next piece. Rows that overlap it are merged when
it is read. A span that would not fit into memory is cut further. Such cuts use real rows: the bounds of pieces do not
show how rows are distributed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from floodmark.errors import BadRange
from floodmark.ledger.moments import MissingZone, parse_moment, to_nanos
from floodmark.timeline.piece_cuts import ReadTimePoints
from floodmark.timeline.pieces import MAX_POINT, MIN_POINT, Piece, TimePoint, TimePoints, rows_between, sort_positions

MOST_ROWS = 1 << 20
"""A span with more than twice this many rows is cut into parts of about this many rows."""

MOST_BYTES = 64 << 20
"""The same limit in bytes of the rows in their files."""

LOOKED_AT_ROWS = 1 << 22
"""Read the time points of up to this many rows to see how rows are distributed. Beyond that, sample pieces."""


@dataclass(frozen=True, slots=True)
class Span:
    """The time points [lo, hi), the settled piece with rows there, if any, and the late pieces that overlap it."""

    lo: TimePoint
    hi: TimePoint
    settled: Piece | None
    over: tuple[Piece, ...]
    rows: int = 0  # estimated
    size: int = 0  # estimated bytes of these rows in their files

    @property
    def is_plain(self) -> bool:
        """Whether it has exactly one whole settled piece."""
        return self.settled is not None and not self.over and self.holds(self.settled)

    def holds(self, piece: Piece) -> bool:
        """Whether it contains all rows of a piece."""
        return self.lo <= piece.first and piece.last < self.hi

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return self.over if self.settled is None else (self.settled, *self.over)


def spans(
    settled: Sequence[Piece], over: Sequence[Piece], within: Range, most: int, read: ReadTimePoints
) -> Iterator[Span]:
    """The spans of a range in order, each with about `most` rows or one settled piece.

    Settled pieces are in order and do not overlap. The pieces `over` them may have any order and may overlap.
    `read` reads the time points of a piece, in any order.
    """
    if within.is_empty:
        return
    settled = [p for p in settled if within.meets(p.first, p.last)]
    waiting = sorted((p for p in over if within.meets(p.first, p.last)), key=lambda p: p.first)
    seen = _sample_rows(waiting, most, read)
    starts = [within.first, *(p.first for p in settled[1:])]
    at, here = 0, list[Piece]()
    for i, lo in enumerate(starts):
        hi = starts[i + 1] if i + 1 < len(starts) else within.end
        here = [p for p in here if p.last >= lo]
        while at < len(waiting) and waiting[at].first < hi:
            here.append(waiting[at])
            at += 1
        span = _span(lo, hi, settled[i] if settled else None, here, seen)
        if span is not None:
            yield from (span,) if seen is None else _cut(span, most, seen, read)


def groups(all_spans: Sequence[Span], most: int) -> list[list[Span]]:
    """Groups of consecutive spans, each with at most `most` bytes or a single span."""
    found: list[list[Span]] = []
    size = most
    for span in all_spans:
        if size + span.size > most:
            found.append([])
            size = 0
        found[-1].append(span)
        size += span.size
    return found


def estimate_share(piece: Piece, lo: TimePoint, hi: TimePoint) -> float:
    """The estimated fraction of a piece's rows in [lo, hi), if they are evenly distributed."""
    if lo <= piece.first and piece.last < hi:
        return 1.0
    if piece.first >= hi or piece.last < lo:
        return 0.0
    if piece.first.time == piece.last.time:
        first, last, low, high = piece.first.offset, piece.last.offset, lo.offset, hi.offset
        low = first if lo.time < piece.first.time else low
        high = last + 1 if hi.time > piece.last.time else high
    else:
        first, last, low, high = piece.first.time, piece.last.time, lo.time, hi.time
    return max(0.0, min(high, last) - max(low, first)) / max(last - first, 1)


@dataclass(frozen=True)
class _Distribution:
    """The real distribution of late rows: sorted time points, each of which represents a few rows."""

    places: TimePoints
    rows_each: float
    bytes_each: float

    def among(self, lo: TimePoint, hi: TimePoint) -> TimePoints:
        start, stop = rows_between(*self.places, lo, hi)
        return self.places[0][start:stop], self.places[1][start:stop]


def _sample_rows(over: Sequence[Piece], most: int, read: ReadTimePoints) -> _Distribution | None:
    """The distribution of the rows of pieces; None if there are too few rows to cut any span."""
    rows, size = sum(p.rows for p in over), sum(p.size for p in over)
    if rows <= most and size <= MOST_BYTES:
        return None
    stride = math.ceil(rows / LOOKED_AT_ROWS)
    places = _concat_sorted([read(piece) for piece in over[::stride]])
    count = max(len(places[0]), 1)
    return _Distribution(places, rows / count, size / count)


def _concat_sorted(parts: Sequence[TimePoints]) -> TimePoints:
    times, offsets = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    positions = sort_positions(times, offsets)
    return (times, offsets) if positions is None else (times[positions], offsets[positions])


def _span(
    lo: TimePoint, hi: TimePoint, settled: Piece | None, near: Sequence[Piece], seen: _Distribution | None
) -> Span | None:
    """The span between two time points; None if it is empty."""
    over = tuple(p for p in near if p.first < hi and p.last >= lo)
    if settled is not None and (settled.last < lo or settled.first >= hi):
        settled = None
    if settled is None and not over:
        return None
    known = [(estimate_share(p, lo, hi), p) for p in (over if seen is None else ())]
    if settled is not None:
        known.append((estimate_share(settled, lo, hi), settled))
    rows, size = sum(part * p.rows for part, p in known), sum(part * p.size for part, p in known)
    if seen is not None:
        count = len(seen.among(lo, hi)[0])
        rows, size = rows + count * seen.rows_each, size + count * seen.bytes_each
    return Span(lo, hi, settled, over, round(rows), round(size))


def _cut(span: Span, most: int, seen: _Distribution, read: ReadTimePoints) -> Iterator[Span]:
    """The span, cut into parts of about `most` rows if it is too large."""
    load = max(span.rows / most, span.size / MOST_BYTES)
    if load <= 2 or not span.over:
        yield span
        return
    places = [span.lo, *_cut_points(span, math.ceil(load), seen, read), span.hi]
    for lo, hi in pairwise(places):
        part = _span(lo, hi, span.settled, span.over, seen)
        if part is not None:
            yield part


def _cut_points(span: Span, parts: int, seen: _Distribution, read: ReadTimePoints) -> list[TimePoint]:
    """The time points at which to cut a span into about even parts. Offsets allow cuts between equal times."""
    times, offsets = seen.among(span.lo, span.hi)
    weights: npt.NDArray[np.float64] = np.full(len(times), seen.rows_each)
    if span.settled is not None:
        more = read(span.settled)
        times, offsets = np.concatenate([times, more[0]]), np.concatenate([offsets, more[1]])
        weights = np.concatenate([weights, np.ones(len(more[0]))])
        positions = sort_positions(times, offsets)
        if positions is not None:
            times, offsets, weights = times[positions], offsets[positions], weights[positions]
    before = np.cumsum(weights)
    at = np.unique(np.searchsorted(before, before[-1] * np.arange(1, parts) / parts)) if len(before) else ()
    found = {TimePoint(int(times[i]), int(offsets[i])) for i in at}
    return sorted(place for place in found if span.lo < place < span.hi)


# Time ranges

Moment = str | date | datetime | None
"""A time with a zone, a date (midnight in UTC), or either as text. None means no limit."""

_BEFORE_ALL = -1  # smaller than all offsets: comes before every record of the same time


@dataclass(frozen=True)
class Range:
    """All time points in [first, end)."""

    first: TimePoint = MIN_POINT
    end: TimePoint = MAX_POINT

    @property
    def is_empty(self) -> bool:
        return self.first >= self.end

    def meets(self, first: TimePoint, last: TimePoint) -> bool:
        """Whether records between these two time points, both inclusive, may be in it."""
        return first < self.end and last >= self.first

    def holds(self, first: TimePoint, last: TimePoint) -> bool:
        """Whether all records between these two time points, both inclusive, are in it."""
        return self.first <= first and last < self.end

    def after(self, place: TimePoint) -> Range:
        """The part of the range from a time point on."""
        return Range(max(self.first, place), self.end)


def parse_range(start: Moment, end: Moment, *, in_plain_column: bool = False) -> Range:
    """The range [start, end) as a user gives it."""

    def micros(given: object) -> int:
        try:
            moment = parse_moment(given, in_plain_column=in_plain_column)
        except MissingZone as error:
            raise BadRange(error.message, hint=error.hint, start=start, end=end) from error
        if moment is None:
            hint = "give a time such as 2026-11-15 or 2026-11-15T12:00:00Z, a date or a datetime"
            raise BadRange(f"{given!r} is not a time", hint=hint, start=start, end=end)
        return to_nanos(moment) // 1000

    first = MIN_POINT if start is None else TimePoint(micros(start), _BEFORE_ALL)
    after = MAX_POINT if end is None else TimePoint(micros(end), _BEFORE_ALL)
    if first > after:
        raise BadRange(
            f"the range from {start} to {end} ends before it starts",
            hint="give the earlier time first",
            start=start,
            end=end,
        )
    return Range(first, after)
