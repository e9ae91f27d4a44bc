"""Reading the rows of pieces, from slices of the ledger and from the timeline's own files alike."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.ledger.layout import Layout
from floodmark.storage.errors import StorageError
from floodmark.storage.page_headers import HEADERS_KEY, PageHeaders
from floodmark.timeline.errors import UnreadablePiece
from floodmark.timeline.order.pieces import Piece
from floodmark.timeline.order.places import Places, places_of, time_column
from floodmark.timeline.stored.footers import RowGroup, row_groups_of
from floodmark.timeline.stored.objects import TimelineObjects
from floodmark.timeline.stored.own_files import own_file, remedy
from floodmark.timeline.stored.recent import Recent

OPEN_FILES = 128
"""How many files stay open at most."""

KEPT_BYTES = 64 << 20
"""How much decoded data is kept at most: the pieces that a row group was cut into decode it once."""

_ALONE = 16_384
"""Row groups up to so many rows are decoded by one thread: telling others costs more."""

_FEW_TEXTS = 4096
"""So many different texts are few for any row group."""

_UNREADABLE = (StorageError, OSError, pa.ArrowException, KeyError, ValueError)
"""What stores and pyarrow raise on missing and damaged files."""


@dataclass
class PieceFiles:
    """The files of a dataset's pieces. Threads may share it; what it keeps does not travel to tasks."""

    objects: TimelineObjects
    layout: Layout
    _fields: dict[str, pa.Field] = field(init=False, repr=False, compare=False)
    _opened: Recent[str, _OpenFile] = field(init=False, repr=False, compare=False)
    _decoded: Recent[tuple[str, int, str, bool], pa.ChunkedArray] = field(init=False, repr=False, compare=False)
    _texts: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._fields = {f.name: f for f in self.layout.slice_schema}
        self._texts = frozenset(name for name, f in self._fields.items() if f.type in (pa.string(), pa.binary()))
        self._opened = Recent(OPEN_FILES)
        self._decoded = Recent(KEPT_BYTES)

    def __reduce__(self) -> tuple[Any, ...]:
        return PieceFiles, (self.objects, self.layout)

    def read(self, piece: Piece, columns: Sequence[str]) -> pa.Table:
        """Some columns (of the layout's, by name) of a piece's rows; those that came after its file are null."""
        return self._readable(piece, columns, frozenset())

    def read_encoded(self, piece: Piece, columns: Sequence[str]) -> pa.Table:
        """The same, but a column of texts may be a dictionary: they are numbers then, which are quick to merge."""
        return self._readable(piece, columns, self._texts)

    def _readable(self, piece: Piece, columns: Sequence[str], texts: frozenset[str]) -> pa.Table:
        try:
            return self._read(piece, columns, texts)
        except _UNREADABLE as error:
            raise UnreadablePiece(
                f"rows {piece.row_lo} to {piece.row_hi - 1} of row group {piece.row_group} of {piece.file!r} in "
                f"{self.objects.dataset.folder!r} cannot be read: {error}",
                hint=remedy(piece.file),
                file=piece.file,
                row_group=piece.row_group,
            ) from error

    def places(self, piece: Piece) -> Places:
        """The event times and offsets of a piece's rows."""
        return places_of(self.read(piece, (time_column(self.layout), self.layout.vocab.offset)), self.layout)

    def row_groups(self, file: str) -> list[RowGroup]:
        """How many rows and bytes the row groups of a file have."""
        try:
            return self._file(file, frozenset()).row_groups()
        except _UNREADABLE as error:
            raise UnreadablePiece(
                f"{file!r} in {self.objects.dataset.folder!r} cannot be read: {error}", hint=remedy(file), file=file
            ) from error

    def _read(self, piece: Piece, columns: Sequence[str], texts: frozenset[str]) -> pa.Table:
        file = self._file(piece.file, texts)
        if file.group_rows(piece.row_group) != piece.group_rows:
            raise ValueError(f"it should have a row group {piece.row_group} of {piece.group_rows} rows")
        fields = [self._fields[name] for name in columns]
        known = self._columns(piece, file, [name for name in columns if name in file.names], texts)
        arrays = [
            _as(known[f.name].slice(piece.row_lo, piece.rows), f.type)
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
        """Whole columns of a piece's row group; those that were decoded lately are not decoded again."""
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
                if name in texts and not _repeats(column):
                    self._texts -= {name}
        return found

    def _file(self, name: str, texts: frozenset[str]) -> _OpenFile:
        file = self._opened.get(name)
        if file is None:
            file = _opened(self.objects, name, texts)
            self._opened.put(name, file, 1)
        return file


def _as(column: pa.ChunkedArray, data_type: pa.DataType) -> pa.ChunkedArray:
    """A column with a type, or with a dictionary of values of that type."""
    found: Any = column.type
    if found == data_type or (pa.types.is_dictionary(found) and found.value_type == data_type):
        return column
    return column.cast(data_type)


def _repeats(column: pa.ChunkedArray) -> bool:
    """Whether a column that was read as a dictionary has few different values: with many, that costs more."""
    chunks = (chunk for chunk in column.chunks if pa.types.is_dictionary(chunk.type))
    return all(len(chunk.dictionary) <= max(_FEW_TEXTS, len(chunk) // 4) for chunk in chunks)


class _OpenFile:
    """A Parquet file; one thread decodes at a time, others may look at what is in it."""

    def __init__(self, open_: Callable[[list[str]], pq.ParquetFile], texts: frozenset[str]) -> None:
        self._open = open_
        try:
            file = open_(sorted(texts))
        except KeyError:  # it is older than one of these columns
            texts, file = frozenset(), open_([])
        self._files = {texts: file}  # the same file, by the texts that are dictionaries in it
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

    def decode(self, number: int, names: list[str], texts: frozenset[str]) -> pa.Table:
        """Some columns of a row group, those of texts as dictionaries."""
        with self._turn:
            if (file := self._files.get(texts)) is None:
                file = self._files[texts] = self._open(sorted(texts & self.names))
            return file.read_row_group(number, columns=names, use_threads=self.group_rows(number) > _ALONE)


def _opened(objects: TimelineObjects, name: str, texts: frozenset[str]) -> _OpenFile:
    store, key = objects.store, objects.key(name)
    path = store.local_path(key)
    source = store.open(key) if path is None else pa.memory_map(str(path))
    metadata = _checked_metadata(source, name, path)
    checked = metadata is not None  # slices of the ledger have no checksums of pages

    def open_(dictionaries: list[str]) -> pq.ParquetFile:
        return pq.ParquetFile(
            source,
            metadata=metadata,
            pre_buffer=path is None,
            page_checksum_verification=checked,
            read_dictionary=dictionaries,
        )

    return _OpenFile(open_, texts)


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
