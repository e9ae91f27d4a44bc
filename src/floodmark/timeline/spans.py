"""Spans: a timeline cut into stretches that can be read one after the other, each by itself. Pure.

Each settled piece has a span, from its first place to that of the next one. What lies over it is merged with it when it
is read. Where so much lies over one place that a span would not fit into memory, it is cut further.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from floodmark.ledger.keys.records import I64
from floodmark.timeline.pieces import Piece, Place
from floodmark.timeline.range import Range

MOST_ROWS = 1 << 20
"""A span with more rows than these is cut, as far as the bounds of its pieces tell where its rows are."""

MOST_BYTES = 64 << 20
"""The same for the bytes that they have in their files."""

_EDGES = 1024
"""At so many moments at most the rows before them are estimated."""

_F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Span:
    """The places in [lo, hi), the settled piece that has rows there, if any, and the pieces that lie over it."""

    lo: Place
    hi: Place
    settled: Piece | None
    over: tuple[Piece, ...]

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

    @property
    def size(self) -> int:
        """About how many bytes its rows have in their files."""
        return round(sum(part * piece.size for part, piece in shares(self)))


def spans(settled: Sequence[Piece], over: Sequence[Piece], within: Range, most: int) -> Iterator[Span]:
    """The spans of a range in order, each of about `most` rows or a settled piece.

    Settled pieces are in order and apart from each other; those over them lie as they like.
    """
    if within.is_empty:
        return
    settled = [p for p in settled if within.meets(p.first, p.last)]
    waiting = sorted((p for p in over if within.meets(p.first, p.last)), key=lambda p: p.first)
    starts = [within.first, *(p.first for p in settled[1:])]
    at, here = 0, list[Piece]()
    for i, lo in enumerate(starts):
        hi = starts[i + 1] if i + 1 < len(starts) else within.end
        here = [p for p in here if p.last >= lo]
        while at < len(waiting) and waiting[at].first < hi:
            here.append(waiting[at])
            at += 1
        span = Span(lo, hi, settled[i] if settled else None, tuple(here))
        if span.pieces:
            yield from _cut(span, most)


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


def shares(span: Span) -> list[tuple[float, Piece]]:
    """The pieces of a span, and about which part of each lies in it."""
    return [(share(piece, span.lo, span.hi), piece) for piece in span.pieces]


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


def _cut(span: Span, most: int) -> Iterator[Span]:
    """A span as it is, or in parts of about so many rows."""
    if not span.over:
        yield span
        return
    known = shares(span)
    load = max(sum(part * p.rows for part, p in known) / most, sum(part * p.size for part, p in known) / MOST_BYTES)
    if load <= 2:
        yield span
        return
    parts = math.ceil(load)
    places = [span.lo, *_places(span, parts), span.hi]
    for lo, hi in pairwise(places):
        near = tuple(p for p in span.over if p.first < hi and p.last >= lo)
        settled = (
            span.settled if span.settled is not None and span.settled.last >= lo and span.settled.first < hi else None
        )
        part = Span(lo, hi, settled, near)
        if part.pieces:
            yield part


def _places(span: Span, parts: int) -> list[Place]:
    """Where to cut a span into about even parts: by time, or by offset where all of its rows have one time."""
    pieces = span.pieces
    first, last = max(span.lo, min(p.first for p in pieces)), min(span.hi, max(p.last for p in pieces))
    rows = np.array([p.rows for p in pieces], np.float64)
    if first.time == last.time:
        ends = np.array([(p.first.offset, p.last.offset) for p in pieces], np.int64)
        found = [Place(first.time, offset) for offset in _quantiles(ends, rows, (first.offset, last.offset), parts)]
    else:
        ends = np.array([(p.first.time, p.last.time) for p in pieces], np.int64)
        found = [Place(time, -1) for time in _quantiles(ends, rows, (first.time, last.time), parts)]
    return [place for place in found if span.lo < place < span.hi]


def _quantiles(ends: I64, rows: _F64, bounds: tuple[int, int], parts: int) -> list[int]:
    """Where 1/parts, 2/parts, … of the rows lie between two bounds, each piece's rows spread between its ends."""
    edges = np.unique(np.clip(ends, *bounds))
    if len(edges) > _EDGES:
        edges = edges[np.linspace(0, len(edges) - 1, _EDGES).astype(np.int64)]
    # Counted from the first bound: times are large numbers, and these are floats.
    base = int(edges[0])
    at = (edges - base).astype(np.float64)
    firsts, lasts = (np.clip(ends[:, i], *bounds).astype(np.int64) - base for i in (0, 1))
    lengths = np.maximum(lasts - firsts, 1).astype(np.float64)
    before = np.zeros(len(at))
    for first, length, count in zip(firsts.tolist(), lengths.tolist(), rows.tolist(), strict=True):
        before += count * np.clip((at - first) / length, 0.0, 1.0)
    wanted = before[0] + (before[-1] - before[0]) * np.arange(1, parts) / parts
    found = np.unique(np.interp(wanted, before, at).astype(np.int64))
    return [base + int(each) for each in found.tolist()]
