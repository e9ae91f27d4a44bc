"""Segment files: the values of a computed column for a range of offsets, as Parquet that is checked when read."""

from __future__ import annotations

import hashlib
import uuid
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.compute.errors import UnreadableColumn
from floodmark.compute.stored.catalog import FIELD_ID
from floodmark.compute.stored.manifest import Segment
from floodmark.compute.stored.objects import ColumnObjects
from floodmark.engine.rounds import fitting
from floodmark.storage.errors import ObjectNotFound, StorageError
from floodmark.storage.page_headers import HEADERS_KEY, PageHeaders
from floodmark.storage.scratch import explained
from floodmark.storage.slices import ROW_GROUP_ROWS, write_columns

Values: TypeAlias = pa.Array | pa.ChunkedArray

START_KEY = b"floodmark.start"
"""Where a file's footer has its first offset."""

_REMEDY = "backfill({!r}) makes it anew; what checkpoints hold is not computed again"
DELETE_FIRST = f"delete it, then {_REMEDY}"
"""What to do about damage that only reading finds: a backfill looks, and does not read."""

GROUP_BYTES = 64 << 20
"""How much a row group holds at most, unless a single value is larger: readers decode one at a time."""

_CHUNK = 8 << 20
_UNREADABLE = (StorageError, OSError, pa.ArrowException, KeyError, ValueError)
"""What stores and pyarrow raise on missing and damaged files."""


def write_segment(
    objects: ColumnObjects, field: pa.Field, start: int, chunks: Iterable[Values], folder: Path | None = None
) -> Segment:
    """Store the values of the offsets from `start` on durably, one for each, given piece by piece.

    `field` is the column's, with its field id; `folder` takes the unfinished file. Nothing names the file yet.
    """
    folder = objects.store.staging() if folder is None else folder
    path = folder / f"{uuid.uuid4().hex}.parquet"
    # Rows that are dead or not computed are null in any column. The offset makes each range's file one of its own.
    schema = pa.schema([field.with_nullable(True)], {START_KEY: str(start).encode()})
    try:
        with explained("a file of computed values", folder):
            made = write_columns(path, _row_groups(chunks, schema), schema)
        digest = made.physical_hash.digest.hex()
        segment = Segment(start, start + made.rows, digest, made.size, made.tail, made.tail_checksum)
        key = segment.key(objects)
        if objects.store.stat(key) is not None and not is_whole(objects, segment):
            objects.store.delete(key)  # the same values have the same name: a put would leave the damaged one there
        objects.store.put_file(key, path)
    finally:
        path.unlink(missing_ok=True)
    return segment


def _row_groups(chunks: Iterable[Values], schema: pa.Schema) -> Iterator[pa.Table]:
    """The values in tables of a row group each, however they come: so many rows, or fewer when these are wide."""
    data_type = schema.field(0).type
    waiting = pa.chunked_array([], data_type)
    for chunk in chunks:
        more = chunk.chunks if isinstance(chunk, pa.ChunkedArray) else [chunk]
        waiting = pa.chunked_array([*waiting.chunks, *more], data_type)
        while (rows := min(fitting(waiting, GROUP_BYTES), ROW_GROUP_ROWS)) < len(waiting):
            yield pa.table([waiting.slice(0, rows)], schema)
            waiting = waiting.slice(rows)
    if len(waiting):
        yield pa.table([waiting], schema)


@dataclass(frozen=True)
class SegmentFile:
    """An opened segment: everything but its pages has been checked, and each page is when it is read."""

    segment: Segment
    field: pa.Field
    key: str
    _file: pq.ParquetFile
    _bounds: Any  # the first row of each row group, and the number of rows

    def read(self, start: int, end: int) -> pa.ChunkedArray:
        """The values of the offsets [start, end); no other row group is read."""
        first, last = start - self.segment.start, end - self.segment.start
        if first >= last:
            return pa.chunked_array([], self.field.type)
        low = int(np.searchsorted(self._bounds, first, "right")) - 1
        high = int(np.searchsorted(self._bounds, last))
        try:
            values = self._file.read_row_groups(range(low, high), use_threads=False).column(0)
            if values.type != self.field.type:
                values = values.cast(self.field.type)
        except _UNREADABLE as error:
            problem = f"is damaged ({error})"
            raise unreadable(self.key, self.segment, self.field, problem, DELETE_FIRST) from error
        return values.slice(first - int(self._bounds[low]), last - first)

    def group_at(self, offset: int) -> tuple[int, int]:
        """The offsets [start, end) of the row group in which one lies: what is decoded at once in any case."""
        after = int(np.searchsorted(self._bounds, offset - self.segment.start, "right"))
        return self.segment.start + int(self._bounds[after - 1]), self.segment.start + int(self._bounds[after])


def open_segment(objects: ColumnObjects, segment: Segment, field: pa.Field) -> SegmentFile:
    """A segment to read values from; `UnreadableColumn` when it is missing, damaged or another column's."""
    opened = open_raw(objects, segment, field)
    found = _field_id(opened._file.schema_arrow.field(0))
    if found != _field_id(field):
        problem = f"was written for field {found}, not for {_field_id(field)}"
        raise unreadable(opened.key, segment, field, problem)
    return opened


def open_raw(objects: ColumnObjects, segment: Segment, field: pa.Field) -> SegmentFile:
    """The same whatever column the file was written for: one of its type, dropped and added again, may use it."""
    key = segment.key(objects)
    try:
        path = objects.store.local_path(key)
        metadata = _checked_metadata(objects, segment, path)
        source: Any = objects.store.open(key) if path is None else path
        file = pq.ParquetFile(
            source,
            metadata=metadata,
            memory_map=path is not None,
            page_checksum_verification=True,
            pre_buffer=path is None,
        )
    except _UNREADABLE as error:
        remedy = _REMEDY if isinstance(error, ObjectNotFound) else DELETE_FIRST
        raise unreadable(key, segment, field, f"cannot be used: {error}", remedy) from error
    groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    bounds = np.concatenate([[0], np.cumsum(groups, dtype=np.int64)])
    if bounds[-1] != segment.rows:
        raise unreadable(key, segment, field, f"has {bounds[-1]} rows")
    if len(file.schema_arrow) != 1 or metadata.metadata.get(START_KEY) != str(segment.start).encode():
        raise unreadable(key, segment, field, "holds other rows or columns")
    return SegmentFile(segment, field, key, file, bounds)


def read_values(objects: ColumnObjects, segment: Segment, field: pa.Field, start: int, end: int) -> pa.ChunkedArray:
    """The values of the offsets [start, end) of a segment."""
    return open_segment(objects, segment, field).read(start, end)


def looks_whole(objects: ColumnObjects, segment: Segment) -> bool:
    """Whether the file is there and everything but its pages is as it was written."""
    key = segment.key(objects)
    try:
        found = objects.store.stat(key)
        if found is None or found.size != segment.size:
            return False
        _checked_metadata(objects, segment, objects.store.local_path(key))
    except _UNREADABLE:
        return False
    return True


def is_whole(objects: ColumnObjects, segment: Segment) -> bool:
    """Whether the file is there and has its hash; every byte is read."""
    hasher = hashlib.sha3_256()
    try:
        with objects.store.open(segment.key(objects)) as file:
            while chunk := file.read(_CHUNK):
                hasher.update(chunk)
    except _UNREADABLE:
        return False
    return hasher.hexdigest() == segment.digest


def _checked_metadata(objects: ColumnObjects, segment: Segment, path: Path | None) -> pq.FileMetaData:
    """A file's footer, when it and, in a local file, the pages' headers are as they were written.

    In a bucket each header would be a request.
    """
    tail = objects.store.get_range(segment.key(objects), segment.size - segment.tail, segment.size)
    if len(tail) != segment.tail or zlib.crc32(tail) != segment.tail_checksum:
        raise ValueError("its footer was changed or damaged")
    metadata = pq.read_metadata(pa.BufferReader(tail))
    if path is not None and not PageHeaders.decode(metadata.metadata[HEADERS_KEY]).are_in(path):
        raise ValueError("its pages were changed or damaged")
    return metadata


def _field_id(field: pa.Field) -> int | None:
    found = (field.metadata or {}).get(FIELD_ID)
    return None if found is None else int(found)


def unreadable(key: str, segment: Segment, field: pa.Field, problem: str, remedy: str = _REMEDY) -> UnreadableColumn:
    """What to raise when a segment cannot be read."""
    return UnreadableColumn(
        f"the file {key!r} with the values of {field.name!r} for offsets {segment.start}–{segment.end - 1} {problem}",
        hint=remedy.format(field.name),
        column=field.name,
        key=key,
        start=segment.start,
        end=segment.end,
    )
