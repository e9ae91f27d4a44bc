"""Reading the rows of pieces, from slices of the ledger and from the timeline's own files alike."""

from __future__ import annotations

import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.ledger.layout import Layout
from floodmark.storage.errors import StorageError
from floodmark.storage.page_headers import HEADERS_KEY, PageHeaders
from floodmark.timeline.errors import UnreadablePiece
from floodmark.timeline.objects import TimelineObjects
from floodmark.timeline.own_files import own_file
from floodmark.timeline.pieces import Piece
from floodmark.timeline.places import Places, places_of, time_column

OPEN_FILES = 128
"""How many files stay open at most."""

KEPT_BYTES = 64 << 20
"""How much decoded data is kept at most: the pieces that a row group was cut into decode it once."""

_ALONE = 16_384
"""Row groups up to so many rows are decoded by one thread: telling others costs more."""

_UNREADABLE = (StorageError, OSError, pa.ArrowException, KeyError, ValueError)
"""What stores and pyarrow raise on missing and damaged files."""

_HINT = "the ledger has its rows: update_timeline() and fold() make it anew; if it is a slice, verify() says more"

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class RowGroup:
    """What a file says of one of its row groups."""

    rows: int
    size: int  # bytes in the file


@dataclass
class PieceFiles:
    """The files of a dataset's pieces. Threads may share it; what it keeps does not travel to tasks."""

    objects: TimelineObjects
    layout: Layout
    _opened: _Recent[str, _OpenFile] = field(init=False, repr=False, compare=False)
    _decoded: _Recent[tuple[str, int, str], pa.ChunkedArray] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._opened = _Recent(OPEN_FILES, lambda _: 1)
        self._decoded = _Recent(KEPT_BYTES, lambda column: int(column.nbytes))

    def __reduce__(self) -> tuple[Any, ...]:
        return PieceFiles, (self.objects, self.layout)

    def read(self, piece: Piece, columns: Sequence[str]) -> pa.Table:
        """Some columns (of the layout's, by name) of a piece's rows; those that came after its file are null."""
        try:
            return self._read(piece, columns)
        except _UNREADABLE as error:
            raise UnreadablePiece(
                f"rows {piece.row_lo} to {piece.row_hi - 1} of row group {piece.row_group} of {piece.file!r} in "
                f"{self.objects.dataset.folder!r} cannot be read: {error}",
                hint=_HINT,
                file=piece.file,
                row_group=piece.row_group,
            ) from error

    def places(self, piece: Piece) -> Places:
        """The event times and offsets of a piece's rows."""
        return places_of(self.read(piece, (time_column(self.layout), self.layout.vocab.offset)), self.layout)

    def row_groups(self, file: str) -> list[RowGroup]:
        """How many rows and bytes the row groups of a file have."""
        try:
            return self._file(file).row_groups()
        except _UNREADABLE as error:
            raise UnreadablePiece(
                f"{file!r} in {self.objects.dataset.folder!r} cannot be read: {error}", hint=_HINT, file=file
            ) from error

    def _read(self, piece: Piece, columns: Sequence[str]) -> pa.Table:
        file = self._file(piece.file)
        if file.group_rows(piece.row_group) != piece.group_rows:
            raise ValueError(f"it should have a row group {piece.row_group} of {piece.group_rows} rows")
        schema = self.layout.slice_schema
        fields = [schema.field(name) for name in columns]
        known = self._columns(piece, file, [name for name in columns if name in file.names])
        arrays = [
            _as(known[f.name].slice(piece.row_lo, piece.rows), f.type)
            if f.name in known
            else pa.chunked_array([pa.nulls(piece.rows, f.type)])
            for f in fields
        ]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))

    def _columns(self, piece: Piece, file: _OpenFile, names: Iterable[str]) -> dict[str, pa.ChunkedArray]:
        """Whole columns of a piece's row group; those that were decoded lately are not decoded again."""
        found: dict[str, pa.ChunkedArray] = {}
        missing: list[str] = []
        for name in names:
            kept = self._decoded.get((piece.file, piece.row_group, name))
            if kept is None:
                missing.append(name)
            else:
                found[name] = kept
        if missing:
            table = file.decode(piece.row_group, missing)
            for name in missing:
                found[name] = table.column(name)
                self._decoded.put((piece.file, piece.row_group, name), found[name])
        return found

    def _file(self, name: str) -> _OpenFile:
        file = self._opened.get(name)
        if file is None:
            file = _opened(self.objects, name)
            self._opened.put(name, file)
        return file


def _as(column: pa.ChunkedArray, data_type: pa.DataType) -> pa.ChunkedArray:
    return column if column.type == data_type else column.cast(data_type)


class _OpenFile:
    """A Parquet file; one thread decodes at a time, others may look at what is in it."""

    def __init__(self, file: pq.ParquetFile) -> None:
        self._file = file
        self._metadata = file.metadata
        self._turn = threading.Lock()
        self.names = frozenset(file.schema_arrow.names)

    def group_rows(self, number: int) -> int:
        """How many rows a row group has, -1 when there is no such row group."""
        if number >= self._metadata.num_row_groups:
            return -1
        return int(self._metadata.row_group(number).num_rows)

    def row_groups(self) -> list[RowGroup]:
        return row_groups_of(self._metadata)

    def decode(self, number: int, names: list[str]) -> pa.Table:
        with self._turn:
            return self._file.read_row_group(number, columns=names, use_threads=self.group_rows(number) > _ALONE)


def row_groups_of(metadata: pq.FileMetaData) -> list[RowGroup]:
    """The row groups that a footer tells of."""
    groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
    return [RowGroup(g.num_rows, sum(g.column(i).total_compressed_size for i in range(g.num_columns))) for g in groups]


def _opened(objects: TimelineObjects, name: str) -> _OpenFile:
    store, key = objects.store, objects.key(name)
    path = store.local_path(key)
    source = store.open(key) if path is None else pa.memory_map(str(path))
    metadata = _checked_metadata(source, name, path)
    checked = metadata is not None  # slices of the ledger have no checksums of pages
    return _OpenFile(
        pq.ParquetFile(source, metadata=metadata, pre_buffer=path is None, page_checksum_verification=checked)
    )


def _checked_metadata(source: pa.NativeFile, name: str, path: Path | None) -> pq.FileMetaData | None:
    """The footer of an own file, when it and, in a local file, the pages' headers are as they were written.

    In a bucket each header would be a request.
    """
    own = own_file(name)
    if own is None:
        return None
    if source.size() < own.tail:
        raise ValueError("it was cut short")
    source.seek(source.size() - own.tail)
    tail = source.read_buffer(own.tail)
    if zlib.crc32(tail) != own.tail_checksum:
        raise ValueError("its footer was changed or damaged")
    metadata = pq.read_metadata(pa.BufferReader(tail))
    if path is not None and not PageHeaders.decode(metadata.metadata[HEADERS_KEY]).are_in(path):
        raise ValueError("its pages were changed or damaged")
    return metadata


class _Recent(Generic[K, V]):
    """What was used last, up to a total weight."""

    def __init__(self, most: int, weigh: Callable[[V], int]) -> None:
        self._most = most
        self._weigh = weigh
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._weight = 0
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def put(self, key: K, value: V) -> None:
        weight = self._weigh(value)
        with self._lock:
            if weight > self._most or key in self._kept:
                return
            self._kept[key] = (value, weight)
            self._weight += weight
            while self._weight > self._most:
                _, (_, dropped) = self._kept.popitem(last=False)
                self._weight -= dropped
