"""Writing files of a timeline's own: one table is one row group, and the file is durable before anything names it."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.ledger.layout import Layout
from floodmark.storage.arrays import I64
from floodmark.storage.scratch import explained
from floodmark.storage.slices import write_rows
from floodmark.timeline.order.pieces import How, Piece, Place
from floodmark.timeline.stored.footers import RowGroup, row_groups_of
from floodmark.timeline.stored.objects import TimelineObjects
from floodmark.timeline.stored.own_files import OwnFile, named_after

_CHUNK = 8 << 20


@dataclass(frozen=True)
class Written:
    """A stored file: its name below the dataset's folder, its bytes, and its row groups."""

    name: str
    size: int
    groups: tuple[RowGroup, ...]


def write_groups(objects: TimelineObjects, layout: Layout, groups: Iterator[pa.Table]) -> Written:
    """Store a file with these row groups durably."""
    folder = objects.store.staging()
    path = folder / f"timeline-{uuid.uuid4().hex}"
    try:
        with explained("a file of the timeline", folder):
            made = write_rows(path, groups, layout.slice_schema, layout.vocab)
            found = row_groups_of(pq.read_metadata(path))
        own = named_after(made)
        key = objects.key(own.name)
        if objects.store.stat(key) is not None and not is_whole(objects, own):
            objects.store.delete(key)  # the same rows have the same name: a put would leave the damaged one there
        objects.store.put_file(key, path)
    finally:
        path.unlink(missing_ok=True)
    return Written(own.name, made.size, tuple(found))


def is_whole(objects: TimelineObjects, own: OwnFile) -> bool:
    """Whether a file that is there has its hash; every byte is read."""
    hasher = hashlib.sha3_256()
    with objects.store.open(objects.key(own.name)) as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
    return hasher.digest() == own.physical_hash.digest


@dataclass(frozen=True)
class GroupRows:
    """Rows [lo, hi) of some sorted ones that lie in one row group, and where in it they begin."""

    row_group: int
    lo: int
    hi: int
    group_lo: int = 0


def pieces_of(
    file: str,
    groups: Sequence[RowGroup],
    stretches: Sequence[GroupRows],
    times: I64,
    offsets: I64,
    how: How,
    since: int,
) -> tuple[Piece, ...]:
    """The pieces that stretches of sorted rows with these places are, in the file they lie in."""
    return tuple(_piece(file, groups[s.row_group], s, times, offsets, how, since) for s in stretches)


def _piece(file: str, group: RowGroup, at: GroupRows, times: I64, offsets: I64, how: How, since: int) -> Piece:
    inside = offsets[at.lo : at.hi]
    rows = at.hi - at.lo
    return Piece(
        file=file,
        row_group=at.row_group,
        row_lo=at.group_lo,
        row_hi=at.group_lo + rows,
        group_rows=group.rows,
        first=Place(int(times[at.lo]), int(inside[0])),
        last=Place(int(times[at.hi - 1]), int(inside[-1])),
        offset_min=int(inside.min()),
        offset_max=int(inside.max()),
        size=group.size * rows // group.rows,
        how=how,
        since=since,
    )
