"""Spans: a timeline cut into stretches that can be read one after the other, each by itself.

Each settled piece has a span, from its first place to that of the next one. What lies over it is merged with it when it
is read. Where so much lies over one place that a span would not fit into memory, it is cut further: where rows really
are, since bounds do not tell how they are spread between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from floodmark.timeline.order.pieces import Piece, Place
from floodmark.timeline.order.places import Places, order, rows_between
from floodmark.timeline.order.ranges import Range

MOST_ROWS = 1 << 20
"""A span with more than twice as many rows is cut into parts of about so many."""

MOST_BYTES = 64 << 20
"""The same for the bytes that they have in their files."""

LOOKED_AT_ROWS = 1 << 22
"""The places of so many rows are looked at to find out where rows are; of more, those of some pieces tell of all."""

Look = Callable[[Piece], Places]
"""The places of a piece's rows, in any order."""


@dataclass(frozen=True, slots=True)
class Span:
    """The places in [lo, hi), the settled piece that has rows there, if any, and the pieces that lie over it."""

    lo: Place
    hi: Place
    settled: Piece | None
    over: tuple[Piece, ...]
    rows: int = 0  # about how many it has
    size: int = 0  # about how many bytes these have in their files

    @property
    def is_plain(self) -> bool:
        """Whether it is one whole settled piece."""
        return self.settled is not None and not self.over and self.holds(self.settled)

    def holds(self, piece: Piece) -> bool:
        """Whether all rows of a piece lie in it."""
        return self.lo <= piece.first and piece.last < self.hi

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return self.over if self.settled is None else (self.settled, *self.over)


def spans(settled: Sequence[Piece], over: Sequence[Piece], within: Range, most: int, look: Look) -> Iterator[Span]:
    """The spans of a range in order, each of about `most` rows or a settled piece.

    Settled pieces are in order and apart from each other; those over them lie as they like.
    """
    if within.is_empty:
        return
    settled = [p for p in settled if within.meets(p.first, p.last)]
    waiting = sorted((p for p in over if within.meets(p.first, p.last)), key=lambda p: p.first)
    seen = _seen(waiting, most, look)
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
            yield from (span,) if seen is None else _cut(span, most, seen, look)


def groups(all_spans: Sequence[Span], most: int) -> list[list[Span]]:
    """Consecutive spans in groups of so many bytes at most, or of one span."""
    found: list[list[Span]] = []
    size = most
    for span in all_spans:
        if size + span.size > most:
            found.append([])
            size = 0
        found[-1].append(span)
        size += span.size
    return found


def share(piece: Piece, lo: Place, hi: Place) -> float:
    """About which part of a piece's rows lies in [lo, hi), if they are spread evenly."""
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
class _Seen:
    """Where rows over the settled pieces really are: places in order, each of which stands for a few rows."""

    places: Places
    rows_each: float
    bytes_each: float

    def among(self, lo: Place, hi: Place) -> Places:
        start, stop = rows_between(*self.places, lo, hi)
        return self.places[0][start:stop], self.places[1][start:stop]


def _seen(over: Sequence[Piece], most: int, look: Look) -> _Seen | None:
    """Where the rows of pieces are; None when they are so few that no span needs to be cut."""
    rows, size = sum(p.rows for p in over), sum(p.size for p in over)
    if rows <= most and size <= MOST_BYTES:
        return None
    step = math.ceil(rows / LOOKED_AT_ROWS)
    places = _together([look(piece) for piece in over[::step]])
    count = max(len(places[0]), 1)
    return _Seen(places, rows / count, size / count)


def _together(parts: Sequence[Places]) -> Places:
    times, offsets = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    positions = order(times, offsets)
    return (times, offsets) if positions is None else (times[positions], offsets[positions])


def _span(lo: Place, hi: Place, settled: Piece | None, near: Sequence[Piece], seen: _Seen | None) -> Span | None:
    """The span between two places, None when there is nothing in it."""
    over = tuple(p for p in near if p.first < hi and p.last >= lo)
    if settled is not None and (settled.last < lo or settled.first >= hi):
        settled = None
    if settled is None and not over:
        return None
    known = [(share(p, lo, hi), p) for p in (over if seen is None else ())]
    if settled is not None:
        known.append((share(settled, lo, hi), settled))
    rows, size = sum(part * p.rows for part, p in known), sum(part * p.size for part, p in known)
    if seen is not None:
        count = len(seen.among(lo, hi)[0])
        rows, size = rows + count * seen.rows_each, size + count * seen.bytes_each
    return Span(lo, hi, settled, over, round(rows), round(size))


def _cut(span: Span, most: int, seen: _Seen, look: Look) -> Iterator[Span]:
    """A span as it is, or in parts of about so many rows."""
    load = max(span.rows / most, span.size / MOST_BYTES)
    if load <= 2 or not span.over:
        yield span
        return
    places = [span.lo, *_places(span, math.ceil(load), seen, look), span.hi]
    for lo, hi in pairwise(places):
        part = _span(lo, hi, span.settled, span.over, seen)
        if part is not None:
            yield part


def _places(span: Span, parts: int, seen: _Seen, look: Look) -> list[Place]:
    """Where to cut a span into about even parts: real places, so that rows of one time come apart too."""
    times, offsets = seen.among(span.lo, span.hi)
    weights: npt.NDArray[np.float64] = np.full(len(times), seen.rows_each)
    if span.settled is not None:
        more = look(span.settled)
        times, offsets = np.concatenate([times, more[0]]), np.concatenate([offsets, more[1]])
        weights = np.concatenate([weights, np.ones(len(more[0]))])
        positions = order(times, offsets)
        if positions is not None:
            times, offsets, weights = times[positions], offsets[positions], weights[positions]
    before = np.cumsum(weights)
    at = np.unique(np.searchsorted(before, before[-1] * np.arange(1, parts) / parts)) if len(before) else ()
    found = {Place(int(times[i]), int(offsets[i])) for i in at}
    return sorted(place for place in found if span.lo < place < span.hi)
