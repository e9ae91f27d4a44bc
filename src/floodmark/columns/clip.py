"""Fragments without the values of records before or after some offsets: files are written again if they have others."""

from __future__ import annotations

import logging

import pyarrow.compute as pc
from pyroaring import BitMap

from floodmark.columns import row_errors
from floodmark.columns.catalog import ColumnDefinition, ColumnObjects
from floodmark.columns.column_file import read_values, write_segment
from floodmark.columns.manifest import ColumnSegment, Fragment
from floodmark.errors import UnreadableColumn
from floodmark.storage import row_sets

_log = logging.getLogger(__name__)

NO_END = 1 << 62


def clip_fragment(
    objects: ColumnObjects, column: ColumnDefinition, fragment: Fragment, rows: int, start: int, end: int = NO_END
) -> Fragment:
    """A fragment without the values of records outside [start, end)."""
    base = fragment.number * rows
    if base >= start and base + rows <= end:
        return fragment
    clipped = (_clip_segment(objects, column, s, start, end) for s in fragment.segments)
    segments = tuple(s for s in clipped if s is not None)
    there = BitMap.union(BitMap(), BitMap(), *[row_sets.span(s.start - base, s.end - base) for s in segments])
    return Fragment(
        number=fragment.number,
        segments=segments,
        done=fragment.done & there,
        kept=fragment.kept & there,
        hidden=fragment.hidden & there,
        errors=_clip_errors(objects, fragment.errors, start, end),
        carried=fragment.carried & there,
    )


def _clip_segment(
    objects: ColumnObjects, column: ColumnDefinition, segment: ColumnSegment, start: int, end: int
) -> ColumnSegment | None:
    """A segment without the rows outside [start, end): unchanged, None, or a new file."""
    low, high = max(segment.start, start), min(segment.end, end)
    if (low, high) == (segment.start, segment.end):
        return segment
    if low >= high:
        return None
    try:
        values = read_values(objects, segment, column.field, low, high)
    except UnreadableColumn as error:
        _log.warning("%s; it is dropped, and the next backfill computes its other rows again", error.message)
        return None
    return write_segment(objects, column.field, low, [values])


def _clip_errors(objects: ColumnObjects, digest: str | None, start: int, end: int) -> str | None:
    try:
        errors = row_errors.load(objects, digest)
    except UnreadableColumn as error:
        _log.warning("%s; it is dropped", error.message)
        return None
    offset = pc.field("offset")
    return row_errors.put(objects, errors.filter((offset >= start) & (offset < end)))
