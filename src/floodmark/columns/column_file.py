"""Segment files: Parquet files with the values of a computed column for a range of offsets, checked when read."""

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

from floodmark.columns.catalog import FIELD_ID, ColumnObjects
from floodmark.columns.manifest import ColumnSegment
from floodmark.engine.rounds import rows_that_fit
from floodmark.errors import ObjectNotFound, StorageError, UnreadableColumn
from floodmark.storage.page_checksums import HEADERS_KEY, PageHeaders
from floodmark.storage.parquet import ROW_GROUP_ROWS, write_columns
from floodmark.storage.scratch import explain_write_errors

ArrowValues: TypeAlias = pa.Array | pa.ChunkedArray

START_KEY = b"floodmark.start"
"""The key of the first offset in the metadata of a file's footer."""

_REMEDY = "run backfill({!r}) to write it again; values in checkpoints are not computed again"
DELETE_FIRST = f"delete it, then {_REMEDY}"
"""The hint for damage that only reading finds: a backfill checks footers and page headers, not the pages."""

GROUP_BYTES = 64 << 20
"""The size limit of a row group, unless a single value is larger. Readers decode one row group at a time."""

_CHUNK = 8 << 20
_UNREADABLE = (StorageError, OSError, pa.ArrowException, KeyError, ValueError)
"""The errors that stores and pyarrow raise on missing and damaged files."""


def write_segment(
    objects: ColumnObjects, field: pa.Field, start: int, chunks: Iterable[ArrowValues], folder: Path | None = None
) -> ColumnSegment:
    """Write a file with one value for each offset from `start` on, and store it durably.

    `field` is the column's, with its field id. The unfinished file is in `folder`. No manifest names the file yet.
    """
    folder = objects.store.staging() if folder is None else folder
    path = folder / f"{uuid.uuid4().hex}.parquet"
    # Nullable, since dead rows and rows without a value are null. The start offset keeps equal values of two ranges
    # from having the same hash, hence the same file.
    schema = pa.schema([field.with_nullable(True)], {START_KEY: str(start).encode()})
    try:
        with explain_write_errors("a file of computed values", folder):
            made = write_columns(path, _row_groups(chunks, schema), schema)
        digest = made.physical_hash.digest.hex()
        segment = ColumnSegment(start, start + made.rows, digest, made.size, made.tail, made.tail_checksum)
        key = segment.key(objects)
        if objects.store.stat(key) is not None and not has_valid_hash(objects, segment):
            objects.store.delete(key)  # the same values have the same key: a put would leave the damaged file there
        objects.store.put_file(key, path)
    finally:
        path.unlink(missing_ok=True)
    return segment


def _row_groups(chunks: Iterable[ArrowValues], schema: pa.Schema) -> Iterator[pa.Table]:
    """The values as one table per row group, for chunks of any size. Row groups of wide values have fewer rows."""
    data_type = schema.field(0).type
    waiting = pa.chunked_array([], data_type)
    for chunk in chunks:
        more = chunk.chunks if isinstance(chunk, pa.ChunkedArray) else [chunk]
        waiting = pa.chunked_array([*waiting.chunks, *more], data_type)
        while (rows := min(rows_that_fit(waiting, GROUP_BYTES), ROW_GROUP_ROWS)) < len(waiting):
            yield pa.table([waiting.slice(0, rows)], schema)
            waiting = waiting.slice(rows)
    if len(waiting):
        yield pa.table([waiting], schema)


@dataclass(frozen=True)
class SegmentFile:
    """An open segment. Everything except its pages has been checked; each page is checked when it is read."""

    segment: ColumnSegment
    field: pa.Field
    key: str
    _file: pq.ParquetFile
    _bounds: Any  # the first row of each row group, and the number of rows

    def read(self, start: int, end: int) -> pa.ChunkedArray:
        """The values of the offsets [start, end). Only the row groups that contain them are read."""
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
            raise unreadable_error(self.key, self.segment, self.field, problem, DELETE_FIRST) from error
        return values.slice(first - int(self._bounds[low]), last - first)

    def group_at(self, offset: int) -> tuple[int, int]:
        """The offsets [start, end) of the row group that contains an offset. It is always decoded as a whole."""
        after = int(np.searchsorted(self._bounds, offset - self.segment.start, "right"))
        return self.segment.start + int(self._bounds[after - 1]), self.segment.start + int(self._bounds[after])


def open_segment(objects: ColumnObjects, segment: ColumnSegment, field: pa.Field) -> SegmentFile:
    """Open a segment to read values; `UnreadableColumn` when it is missing, damaged or belongs to another column."""
    opened = open_raw(objects, segment, field)
    found = _field_id(opened._file.schema_arrow.field(0))
    if found != _field_id(field):
        problem = f"was written for field {found}, not for {_field_id(field)}"
        raise unreadable_error(opened.key, segment, field, problem)
    return opened


def open_raw(objects: ColumnObjects, segment: ColumnSegment, field: pa.Field) -> SegmentFile:
    """Open a segment that any column wrote: a column that was dropped and added again may use its old files."""
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
        raise unreadable_error(key, segment, field, f"cannot be used: {error}", remedy) from error
    groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    bounds = np.concatenate([[0], np.cumsum(groups, dtype=np.int64)])
    if bounds[-1] != segment.rows:
        raise unreadable_error(key, segment, field, f"has {bounds[-1]} rows")
    if len(file.schema_arrow) != 1 or metadata.metadata.get(START_KEY) != str(segment.start).encode():
        raise unreadable_error(key, segment, field, "contains other rows or columns")
    return SegmentFile(segment, field, key, file, bounds)


def read_values(
    objects: ColumnObjects, segment: ColumnSegment, field: pa.Field, start: int, end: int
) -> pa.ChunkedArray:
    """The values of the offsets [start, end) of a segment."""
    return open_segment(objects, segment, field).read(start, end)


def has_valid_footer(objects: ColumnObjects, segment: ColumnSegment) -> bool:
    """Whether the file exists and everything except its pages is unchanged."""
    key = segment.key(objects)
    try:
        found = objects.store.stat(key)
        if found is None or found.size != segment.size:
            return False
        _checked_metadata(objects, segment, objects.store.local_path(key))
    except _UNREADABLE:
        return False
    return True


def has_valid_hash(objects: ColumnObjects, segment: ColumnSegment) -> bool:
    """Whether the file exists and has its hash. Every byte is read."""
    hasher = hashlib.sha3_256()
    try:
        with objects.store.open(segment.key(objects)) as file:
            while chunk := file.read(_CHUNK):
                hasher.update(chunk)
    except _UNREADABLE:
        return False
    return hasher.hexdigest() == segment.digest


def _checked_metadata(objects: ColumnObjects, segment: ColumnSegment, path: Path | None) -> pq.FileMetaData:
    """The footer of a file. ValueError when it changed, or when a page header of a local file changed.

    In a bucket, page headers are not checked: each would cost a request.
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


def unreadable_error(
    key: str, segment: ColumnSegment, field: pa.Field, problem: str, remedy: str = _REMEDY
) -> UnreadableColumn:
    """The error for a segment that cannot be read."""
    return UnreadableColumn(
        f"the file {key!r} with the values of {field.name!r} for offsets {segment.start}–{segment.end - 1} {problem}",
        hint=remedy.format(field.name),
        column=field.name,
        key=key,
        start=segment.start,
        end=segment.end,
    )
