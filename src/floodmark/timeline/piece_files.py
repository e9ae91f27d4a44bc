"""The files of pieces: read rows from slices and own files, list the pieces of the ledger's tail, write own files."""

from __future__ import annotations

import hashlib
import threading
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from floodmark.errors import StorageError, UnreadablePiece
from floodmark.ledger.schema import Layout
from floodmark.ledger.selection import DataFile, Selection, select
from floodmark.ledger.snapshot import Snapshot
from floodmark.rows.live_rows import select_current, without_dead_files
from floodmark.storage.arrays import I64
from floodmark.storage.page_checksums import HEADERS_KEY, PageHeaders, check_open_slice, check_slice
from floodmark.storage.parquet import open_slice, write_rows
from floodmark.storage.scratch import explain_write_errors
from floodmark.timeline.bundles import RowGroup, row_groups_of
from floodmark.timeline.manifest import (
    OwnFile,
    TimelineObjects,
    WeightedCache,
    make_own_file,
    parse_own_file,
    repair_hint,
)
from floodmark.timeline.pieces import Piece, PieceOrigin, TimePoint, TimePoints, micros, time_column, time_points_of
from floodmark.timeline.sections import Range

OPEN_FILES = 128
"""The most files that stay open."""

DECODED_CACHE_BYTES = 64 << 20
"""The size of the cache of decoded columns: a row group that was cut into several pieces is decoded once."""

_ONE_THREAD_ROWS = 16_384
"""Row groups up to this many rows are decoded by one thread: starting more threads costs more."""

_FEW_TEXTS = 4096
"""A dictionary of at most this many strings is small for any row group."""

_UNREADABLE = (StorageError, OSError, pa.ArrowException, KeyError, ValueError)
"""The errors that stores and pyarrow raise on missing and damaged files."""

# Reading


@dataclass
class PieceFiles:
    """The files of a dataset's pieces. Threads may share it. Its caches are not pickled."""

    objects: TimelineObjects
    layout: Layout
    _fields: dict[str, pa.Field] = field(init=False, repr=False, compare=False)
    _opened: WeightedCache[str, _OpenFile] = field(init=False, repr=False, compare=False)
    _decoded: WeightedCache[tuple[str, int, str, bool], pa.ChunkedArray] = field(init=False, repr=False, compare=False)
    _texts: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._fields = {f.name: f for f in self.layout.slice_schema}
        self._texts = frozenset(name for name, f in self._fields.items() if f.type in (pa.string(), pa.binary()))
        self._opened = WeightedCache(OPEN_FILES)
        self._decoded = WeightedCache(DECODED_CACHE_BYTES)

    def __reduce__(self) -> tuple[Any, ...]:
        return PieceFiles, (self.objects, self.layout)

    def read(self, piece: Piece, columns: Sequence[str]) -> pa.Table:
        """Some columns of the layout, by name, of a piece's rows. Columns that are newer than the file are null."""
        return self._readable(piece, columns, frozenset())

    def read_encoded(self, piece: Piece, columns: Sequence[str]) -> pa.Table:
        """The same, but a string column may be dictionary-encoded: it is then faster to merge."""
        return self._readable(piece, columns, self._texts)

    def _readable(self, piece: Piece, columns: Sequence[str], texts: frozenset[str]) -> pa.Table:
        try:
            return self._read(piece, columns, texts)
        except _UNREADABLE as error:
            raise UnreadablePiece(
                f"rows {piece.row_lo} to {piece.row_hi - 1} of row group {piece.row_group} of {piece.file!r} in "
                f"{self.objects.dataset.folder!r} cannot be read: {error}",
                hint=repair_hint(piece.file),
                file=piece.file,
                row_group=piece.row_group,
            ) from error

    def places(self, piece: Piece) -> TimePoints:
        """The event times and offsets of a piece's rows."""
        return time_points_of(self.read(piece, (time_column(self.layout), self.layout.vocab.offset)), self.layout)

    def row_groups(self, file: str) -> list[RowGroup]:
        """The rows and bytes of a file's row groups."""
        try:
            return self._file(file, frozenset()).row_groups()
        except _UNREADABLE as error:
            raise UnreadablePiece(
                f"{file!r} in {self.objects.dataset.folder!r} cannot be read: {error}",
                hint=repair_hint(file),
                file=file,
            ) from error

    def _read(self, piece: Piece, columns: Sequence[str], texts: frozenset[str]) -> pa.Table:
        file = self._file(piece.file, texts)
        if file.group_rows(piece.row_group) != piece.group_rows:
            raise ValueError(f"it should have a row group {piece.row_group} of {piece.group_rows} rows")
        fields = [self._fields[name] for name in columns]
        known = self._columns(piece, file, [name for name in columns if name in file.names], texts)
        arrays = [
            _cast(known[f.name].slice(piece.row_lo, piece.rows), f.type)
            if f.name in known
            else pa.chunked_array([pa.nulls(piece.rows, f.type)])
            for f in fields
        ]
        if texts:
            fields = [f if f.type == a.type else f.with_type(a.type) for f, a in zip(fields, arrays, strict=True)]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))

    def _columns(
        self, piece: Piece, file: _OpenFile, names: Iterable[str], texts: frozenset[str]
    ) -> dict[str, pa.ChunkedArray]:
        """Whole columns of a piece's row group, from the cache or decoded."""
        found: dict[str, pa.ChunkedArray] = {}
        missing: list[str] = []
        for name in names:
            kept = self._decoded.get((piece.file, piece.row_group, name, name in texts))
            if kept is None:
                missing.append(name)
            else:
                found[name] = kept
        if missing:
            table = file.decode(piece.row_group, missing, texts)
            weight = int(table.nbytes) // len(missing)
            for name, column in zip(table.column_names, table.columns, strict=True):
                found[name] = column
                self._decoded.put((piece.file, piece.row_group, name, name in texts), column, weight)
                if name in texts and not _has_few_values(column):
                    self._texts -= {name}
        return found

    def _file(self, name: str, texts: frozenset[str]) -> _OpenFile:
        file = self._opened.get(name)
        if file is None:
            file = _open_file(self.objects, name, texts)
            self._opened.put(name, file, 1)
        return file


def _cast(column: pa.ChunkedArray, data_type: pa.DataType) -> pa.ChunkedArray:
    """The column cast to a type, unless it has this type or is a dictionary of it."""
    found: Any = column.type
    if found == data_type or (pa.types.is_dictionary(found) and found.value_type == data_type):
        return column
    return column.cast(data_type)


def _has_few_values(column: pa.ChunkedArray) -> bool:
    """Whether a dictionary column has few different values. With many, dictionaries are slower than plain values."""
    chunks = (chunk for chunk in column.chunks if pa.types.is_dictionary(chunk.type))
    return all(len(chunk.dictionary) <= max(_FEW_TEXTS, len(chunk) // 4) for chunk in chunks)


class _OpenFile:
    """An open Parquet file. One thread decodes at a time; any thread may read its metadata."""

    def __init__(self, open_: Callable[[list[str]], pq.ParquetFile], texts: frozenset[str]) -> None:
        self._open = open_
        try:
            file = open_(sorted(texts))
        except KeyError:  # the file is older than one of these columns
            texts, file = frozenset(), open_([])
        self._files = {texts: file}  # the same file, by the set of columns read as dictionaries
        self._metadata = file.metadata
        self._turn = threading.Lock()
        self.names = frozenset(file.schema_arrow.names)

    def group_rows(self, number: int) -> int:
        """The number of rows of a row group; -1 if there is no such row group."""
        if number >= self._metadata.num_row_groups:
            return -1
        return int(self._metadata.row_group(number).num_rows)

    def row_groups(self) -> list[RowGroup]:
        return row_groups_of(self._metadata)

    def decode(self, number: int, names: list[str], texts: frozenset[str]) -> pa.Table:
        """Some columns of a row group; the columns `texts` as dictionaries."""
        with self._turn:
            if (file := self._files.get(texts)) is None:
                file = self._files[texts] = self._open(sorted(texts & self.names))
            return file.read_row_group(number, columns=names, use_threads=self.group_rows(number) > _ONE_THREAD_ROWS)


def _open_file(objects: TimelineObjects, name: str, texts: frozenset[str]) -> _OpenFile:
    store, key = objects.store, objects.key(name)
    path = store.local_path(key)
    source = store.open(key) if path is None else pa.memory_map(str(path))
    metadata = _checked_metadata(objects, source, name, path)

    def open_(dictionaries: list[str]) -> pq.ParquetFile:
        return pq.ParquetFile(
            source,
            metadata=metadata,
            pre_buffer=path is None,
            page_checksum_verification=True,
            read_dictionary=dictionaries,
        )

    return _OpenFile(open_, texts)


def _checked_metadata(
    objects: TimelineObjects, source: pa.NativeFile, name: str, path: Path | None
) -> pq.FileMetaData | None:
    """The checked footer of an own file; None for a slice, which is checked too. An error if the file is damaged.

    Page headers are only checked in local files: in a bucket, each header would be a request.
    """
    own = parse_own_file(name)
    if own is None:
        if path is None:
            check_open_slice(objects.store, objects.key(name), source)
        else:
            check_slice(objects.store, objects.key(name))
        return None
    if source.size() < own.tail:
        raise ValueError("it is truncated")
    source.seek(source.size() - own.tail)
    tail = source.read_buffer(own.tail)
    if zlib.crc32(tail) != own.tail_checksum:
        raise ValueError("its footer was changed or damaged")
    metadata = pq.read_metadata(pa.BufferReader(tail))
    if path is not None and not PageHeaders.decode(metadata.metadata[HEADERS_KEY]).are_in(path):
        raise ValueError("its pages were changed or damaged")
    return metadata


# The ledger's tail


def tail(snapshot: Snapshot, layout: Layout, since: int, dead: I64, within: Range) -> list[Piece]:
    """The row groups with live records of a range, from an offset on. Folded files replace slices."""
    start = max(since, snapshot.purged_before)
    return _tail_pieces(snapshot, layout, select_current(snapshot, start, snapshot.next_offset, dead), within)


def find_slice_pieces(snapshot: Snapshot, layout: Layout, dead: I64, within: Range) -> list[Piece]:
    """The row groups with live records of a range, only from the ledger's slices."""
    selection = select(snapshot, snapshot.purged_before, snapshot.next_offset)
    selection = Selection(selection.start, selection.end, selection.files, dead)
    return _tail_pieces(snapshot, layout, without_dead_files(selection), within)


def _tail_pieces(snapshot: Snapshot, layout: Layout, selection: Selection, within: Range) -> list[Piece]:
    objects = TimelineObjects(snapshot.objects)
    return [
        piece
        for file in _files_in_range(snapshot, selection, within)
        for piece in _group_pieces(objects, layout, file, within)
    ]


def _files_in_range(snapshot: Snapshot, selection: Selection, within: Range) -> Iterator[DataFile]:
    """The files of a selection that may have records in a range, by the slice statistics on the chain."""
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


def _group_pieces(objects: TimelineObjects, layout: Layout, file: DataFile, within: Range) -> Iterator[Piece]:
    """The row groups of a file that may have records in a range."""
    name = objects.file(file.key)
    try:
        is_slice = file.key.startswith(objects.dataset.data_prefix)
        path = objects.store.local_path(file.key)
        with (
            open_slice(objects.store, file.key, file.size)
            if is_slice
            else pq.ParquetFile(objects.store.open(file.key) if path is None else path)
        ) as opened:
            found = [_tail_piece(opened, number, name, layout) for number in range(opened.metadata.num_row_groups)]
    except (StorageError, OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise UnreadablePiece(
            f"{name!r} in {objects.dataset.folder!r}, a file of the ledger, cannot be read: {error}",
            hint="run verify() to find the missing or damaged files",
            file=name,
        ) from error
    return (piece for piece in found if piece.rows and within.meets(piece.first, piece.last))


def _tail_piece(opened: pq.ParquetFile, number: int, name: str, layout: Layout) -> Piece:
    group = opened.metadata.row_group(number)
    low, high = micros(_bounds(opened, number, time_column(layout))).tolist()
    first, last = _bounds(opened, number, layout.vocab.offset).to_pylist()
    return Piece(
        file=name,
        row_group=number,
        row_lo=0,
        row_hi=group.num_rows,
        group_rows=group.num_rows,
        first=TimePoint(low, first),
        last=TimePoint(high, last),
        offset_min=first,
        offset_max=last,
        size=sum(group.column(i).total_compressed_size for i in range(group.num_columns)),
        how=PieceOrigin.SLICE,
        since=0,
    )


def _bounds(opened: pq.ParquetFile, number: int, column: str) -> pa.Array:
    """The smallest and largest value of a column of a row group: from statistics if present, else from its rows."""
    group, data_type = opened.metadata.row_group(number), opened.schema_arrow.field(column).type
    leaves = (group.column(i) for i in range(group.num_columns))
    leaf = next(leaf for leaf in leaves if leaf.path_in_schema == column)
    if leaf.is_stats_set and leaf.statistics.has_min_max:
        physical = pa.int32() if leaf.physical_type == "INT32" else pa.int64()
        return pa.array([leaf.statistics.min_raw, leaf.statistics.max_raw], physical).cast(data_type)
    values = opened.read_row_group(number, columns=[column]).column(column)
    bounds: Any = pc.min_max(values)
    return pa.array([bounds["min"].as_py(), bounds["max"].as_py()], data_type)


# Writing

_CHUNK = 8 << 20


@dataclass(frozen=True)
class WrittenPieceFile:
    """A stored file: its name relative to the dataset's folder, its bytes, and its row groups."""

    name: str
    size: int
    groups: tuple[RowGroup, ...]


def write_groups(objects: TimelineObjects, layout: Layout, groups: Iterator[pa.Table]) -> WrittenPieceFile:
    """Write a file with these row groups, and store it durably."""
    folder = objects.store.staging()
    path = folder / f"timeline-{uuid.uuid4().hex}"
    try:
        with explain_write_errors("a file of the timeline", folder):
            file = write_rows(path, groups, layout.slice_schema, layout.vocab)
            row_groups = row_groups_of(pq.read_metadata(path))
        own = make_own_file(file)
        key = objects.key(own.name)
        if objects.store.stat(key) is not None and not is_intact(objects, own):
            objects.store.delete(key)  # the same rows have the same name: a put would keep the damaged file
        objects.store.put_file(key, path)
    finally:
        path.unlink(missing_ok=True)
    return WrittenPieceFile(own.name, file.size, tuple(row_groups))


def is_intact(objects: TimelineObjects, own: OwnFile) -> bool:
    """Whether the bytes of a stored file match its hash. Reads the whole file."""
    hasher = hashlib.sha3_256()
    with objects.store.open(objects.key(own.name)) as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
    return hasher.digest() == own.physical_hash.digest


@dataclass(frozen=True)
class GroupRows:
    """Rows [lo, hi) of a sorted sequence that are in one row group, from its row `group_lo` on."""

    row_group: int
    lo: int
    hi: int
    group_lo: int = 0


def make_pieces(
    file: str,
    groups: Sequence[RowGroup],
    stretches: Sequence[GroupRows],
    times: I64,
    offsets: I64,
    how: PieceOrigin,
    since: int,
) -> tuple[Piece, ...]:
    """The pieces of a file for stretches of sorted rows with these event times and offsets."""
    return tuple(_piece(file, groups[s.row_group], s, times, offsets, how, since) for s in stretches)


def _piece(file: str, group: RowGroup, at: GroupRows, times: I64, offsets: I64, how: PieceOrigin, since: int) -> Piece:
    inside = offsets[at.lo : at.hi]
    rows = at.hi - at.lo
    return Piece(
        file=file,
        row_group=at.row_group,
        row_lo=at.group_lo,
        row_hi=at.group_lo + rows,
        group_rows=group.rows,
        first=TimePoint(int(times[at.lo]), int(inside[0])),
        last=TimePoint(int(times[at.hi - 1]), int(inside[-1])),
        offset_min=int(inside.min()),
        offset_max=int(inside.max()),
        size=group.size * rows // group.rows,
        how=how,
        since=since,
    )
