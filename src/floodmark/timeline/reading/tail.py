"""The tail: records that the timeline has not taken in yet, as pieces of the ledger's own files.

A piece of the tail is a whole row group. Its rows may be in any order and are sorted when it is read; its places are
bounds that no row of it lies outside of.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from floodmark.ledger.current import current, without_lifeless
from floodmark.ledger.layout import Layout
from floodmark.ledger.selection import DataFile, Selection, select
from floodmark.ledger.snapshot import Snapshot
from floodmark.storage.arrays import I64
from floodmark.storage.errors import StorageError
from floodmark.timeline.errors import UnreadablePiece
from floodmark.timeline.order.pieces import How, Piece, Place
from floodmark.timeline.order.places import micros, time_column
from floodmark.timeline.order.ranges import Range
from floodmark.timeline.stored.objects import TimelineObjects


def tail(snapshot: Snapshot, layout: Layout, since: int, dead: I64, within: Range) -> list[Piece]:
    """The row groups with current records of a range from an offset on; folded files stand in for slices."""
    start = max(since, snapshot.purged_before)
    return _pieces(snapshot, layout, current(snapshot, start, snapshot.next_offset, dead), within)


def slices_alone(snapshot: Snapshot, layout: Layout, dead: I64, within: Range) -> list[Piece]:
    """The same for all current records, from nothing but the ledger's slices."""
    selection = select(snapshot, snapshot.purged_before, snapshot.next_offset)
    selection = Selection(selection.start, selection.end, selection.files, dead)
    return _pieces(snapshot, layout, without_lifeless(selection), within)


def _pieces(snapshot: Snapshot, layout: Layout, selection: Selection, within: Range) -> list[Piece]:
    objects = TimelineObjects(snapshot.objects)
    return [piece for file in _files(snapshot, selection, within) for piece in _groups(objects, layout, file, within)]


def _files(snapshot: Snapshot, selection: Selection, within: Range) -> Iterator[DataFile]:
    """The files of a selection that may have records in a range, by what the chain notes of their slices."""
    slices = snapshot.slices
    starts = slices.column("start").to_numpy()
    lows = pc.fill_null(slices.column("event_min"), within.first.time).to_numpy()
    highs = pc.fill_null(slices.column("event_max"), within.end.time).to_numpy()
    for file in selection.files:
        first, last = np.searchsorted(starts, [file.start, file.end])
        if first == last or (
            int(lows[first:last].min()) <= within.end.time and int(highs[first:last].max()) >= within.first.time
        ):
            yield file


def _groups(objects: TimelineObjects, layout: Layout, file: DataFile, within: Range) -> Iterator[Piece]:
    """The row groups of a file that may have records in a range."""
    name = objects.file(file.key)
    try:
        path = objects.store.local_path(file.key)
        with pq.ParquetFile(objects.store.open(file.key) if path is None else path) as opened:
            found = [_piece(opened, number, name, layout) for number in range(opened.metadata.num_row_groups)]
    except (StorageError, OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise UnreadablePiece(
            f"{name!r} in {objects.dataset.folder!r}, a file of the ledger, cannot be read: {error}",
            hint="a file of the dataset is missing or damaged: verify says which",
            file=name,
        ) from error
    return (piece for piece in found if piece.rows and within.meets(piece.first, piece.last))


def _piece(opened: pq.ParquetFile, number: int, name: str, layout: Layout) -> Piece:
    group = opened.metadata.row_group(number)
    low, high = micros(_bounds(opened, number, time_column(layout))).tolist()
    first, last = _bounds(opened, number, layout.vocab.offset).to_pylist()
    return Piece(
        file=name,
        row_group=number,
        row_lo=0,
        row_hi=group.num_rows,
        group_rows=group.num_rows,
        first=Place(low, first),
        last=Place(high, last),
        offset_min=first,
        offset_max=last,
        size=sum(group.column(i).total_compressed_size for i in range(group.num_columns)),
        how=How.SLICE,
        since=0,
    )


def _bounds(opened: pq.ParquetFile, number: int, column: str) -> pa.Array:
    """The least and the largest value of a column of a row group, from its statistics if its writer left any."""
    group, wanted = opened.metadata.row_group(number), opened.schema_arrow.field(column).type
    leaves = (group.column(i) for i in range(group.num_columns))
    leaf = next(leaf for leaf in leaves if leaf.path_in_schema == column)
    if leaf.is_stats_set and leaf.statistics.has_min_max:
        physical = pa.int32() if leaf.physical_type == "INT32" else pa.int64()
        return pa.array([leaf.statistics.min_raw, leaf.statistics.max_raw], physical).cast(wanted)
    values = opened.read_row_group(number, columns=[column]).column(column)
    bounds: Any = pc.min_max(values)
    return pa.array([bounds["min"].as_py(), bounds["max"].as_py()], wanted)
