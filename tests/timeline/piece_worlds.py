"""Pieces of a timeline made by hand, and the naive answer to what merging them gives."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.schema import Layout, derive_layout
from floodmark.storage.parquet import Vocabulary
from floodmark.storage.store import Store
from floodmark.timeline.manifest import TimelineObjects
from floodmark.timeline.piece_files import GroupRows, PieceFiles, make_pieces, write_groups
from floodmark.timeline.pieces import Piece, PieceOrigin

TIME = pa.timestamp("us", "UTC")
LAYOUT = derive_layout(pa.schema([("at", TIME), ("v", pa.string())]), Vocabulary(event_time="at"), "at")
WIDER = LAYOUT.with_fields([pa.field("more", pa.int64())])

Row = tuple[int, int]
"""An event time in microseconds and an offset: a place."""


def objects_in(store: Store) -> TimelineObjects:
    return TimelineObjects(DatasetObjects(store, "ticks"))


def table(rows: Sequence[Row], layout: Layout = LAYOUT) -> pa.Table:
    """Records at these places whose value tells their offset; every third one has none."""
    columns: dict[str, Any] = {
        "offset": [offset for _, offset in rows],
        "op": [0] * len(rows),
        "system_time": [0] * len(rows),
        "at": [time for time, _ in rows],
        "v": [None if offset % 3 == 0 else f"v{offset}" for _, offset in rows],
        "more": [offset * 10 for _, offset in rows],
    }
    fields = list(layout.slice_schema)
    integers = {"system_time", "at"}
    arrays = [
        pa.array(columns[f.name], pa.int64()).cast(f.type) if f.name in integers else pa.array(columns[f.name], f.type)
        for f in fields
    ]
    return pa.table(arrays, schema=pa.schema(fields))


def write_piece(objects: TimelineObjects, rows: Sequence[Row], layout: Layout = LAYOUT, cut: int = 0) -> Piece:
    """A stored piece of these rows, the first `cut` of which lie in its row group and do not belong to it."""
    rows = sorted(rows)
    written = write_groups(objects, layout, iter([table(rows, layout)]))
    times, offsets = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    stretch = GroupRows(0, cut, len(rows), cut)
    return make_pieces(written.name, written.groups, [stretch], times, offsets, PieceOrigin.SORTED, 1)[0]


def rows_of(objects: TimelineObjects, pieces: Sequence[Piece], layout: Layout = LAYOUT) -> list[dict[str, Any]]:
    """All rows of some pieces, one after the other."""
    files = PieceFiles(objects, layout)
    names = layout.slice_schema.names
    return [row for piece in pieces for row in files.read(piece, names).to_pylist()]


def check_pieces(objects: TimelineObjects, pieces: Sequence[Piece]) -> None:
    """What a piece says of its rows is what its rows say."""
    for piece in pieces:
        times, offsets = PieceFiles(objects, LAYOUT).places(piece)
        places = list(zip(times.tolist(), offsets.tolist(), strict=True))
        assert places == sorted(set(places))
        assert (piece.first, piece.last) == (places[0], places[-1])
        assert (piece.offset_min, piece.offset_max) == (offsets.min(), offsets.max())
    for one, following in pairwise(pieces):
        assert one.last < following.first
