"""Parquet files: slices, files of selected rows or columns with checksums, and a store as an Arrow file system."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from floodmark.chain.ids import SHA3_256, Multihash
from floodmark.errors import ObjectNotFound, StorageError
from floodmark.storage.arrays import I64
from floodmark.storage.logical_hash import column_digests, compose_hash
from floodmark.storage.page_checksums import (
    HEADERS_KEY,
    SEAL_KEY,
    PagesFile,
    SealedPagesFile,
    blank_seal,
    check_open_slice,
    check_size,
    check_slice,
)
from floodmark.storage.store import Store

SYSTEM_TIME_TYPE = pa.timestamp("ms", tz="UTC")
ROW_GROUP_ROWS = 1 << 17
DIGESTS_KEY = b"floodmark.column-digests"
"""The key of the column digests in the footer of a slice."""

_SAMPLE_ROWS = 4096
_NANOS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DAY_NANOS = 86_400 * 10**9

Digests = Mapping[str, list[bytes]]


@dataclass(frozen=True)
class Vocabulary:
    """The names of the four system columns of a dataset."""

    offset: str = "offset"
    op: str = "op"
    system_time: str = "system_time"
    event_time: str = "event_time"

    @property
    def reserved(self) -> tuple[str, str, str]:
        """Names that user columns must not have."""
        return (self.offset, self.op, self.system_time)


@dataclass(frozen=True)
class SliceFile:
    """A finished slice that is not yet part of a dataset. `path` is None after the upload."""

    path: Path | None
    rows: int
    size: int
    physical_hash: Multihash
    logical_hash: Multihash
    event_time_min: int | None
    event_time_max: int | None
    digests: Digests = field(repr=False)


def system_fields(vocab: Vocabulary) -> list[pa.Field]:
    """The first columns of every slice, before the event time."""
    return [
        pa.field(vocab.offset, pa.int64(), nullable=False),
        pa.field(vocab.op, pa.int32(), nullable=False),
        pa.field(vocab.system_time, SYSTEM_TIME_TYPE, nullable=False),
    ]


def write_slice(
    path: Path,
    data: pa.Table,
    *,
    vocab: Vocabulary,
    start: int,
    system_time_ms: int,
    known_digests: Digests,
    ops: npt.NDArray[np.int32] | None = None,
    row_group_rows: int = ROW_GROUP_ROWS,
) -> SliceFile:
    """Write `data` (event time first) as a slice that starts at offset `start`.

    `ops` are the operations of the records; None means `+A` for all. `known_digests` are the digests of columns that an
    earlier attempt hashed. These columns are not hashed again.
    """
    rows = data.num_rows
    system = pa.table(
        [
            pa.array(np.arange(start, start + rows, dtype=np.int64)),
            pa.array(np.zeros(rows, dtype=np.int32) if ops is None else ops),
            pa.array(np.full(rows, system_time_ms, dtype=np.int64)).cast(SYSTEM_TIME_TYPE),
        ],
        schema=pa.schema(system_fields(vocab)),
    )
    return write_records(path, system, data, vocab, known_digests, row_group_rows)


def write_records(
    path: Path, system: pa.Table, data: pa.Table, vocab: Vocabulary, known_digests: Digests, row_group_rows: int
) -> SliceFile:
    """Write records, with their offsets, operations and system times, as a slice."""
    columns = [*system.columns, *data.columns]
    schema = pa.schema([*system.schema, *data.schema])
    table = pa.Table.from_arrays(columns, schema=schema)
    # Hashing and encoding release the GIL, so one extra thread runs them in parallel.
    with ThreadPoolExecutor(1) as hashing:
        to_hash = [name for name in table.column_names if name not in known_digests]
        pending = {name: hashing.submit(column_digests, table.column(name)) for name in to_hash}
        sink, options = SealedPagesFile(path), _parquet_options(data, vocab.reserved)
        with sink, pq.ParquetWriter(sink, schema, write_page_checksum=True, **options) as writer:
            writer.write_table(table, row_group_size=row_group_rows)
            new_digests = {name: future.result() for name, future in pending.items()}
            digests = {**known_digests, **new_digests}
            hex_digests = {name: [d.hex() for d in digests[name]] for name in table.column_names}
            seal = blank_seal(sink.end_of_pages())
            writer.add_key_value_metadata({DIGESTS_KEY: json.dumps(hex_digests).encode(), SEAL_KEY: seal})
    low, high = event_time_bounds(data.column(vocab.event_time))
    return SliceFile(
        path=path,
        rows=table.num_rows,
        size=sink.size,
        physical_hash=Multihash(SHA3_256, sink.digest()),
        logical_hash=compose_hash(schema, [d for name in table.column_names for d in digests[name]]),
        event_time_min=low,
        event_time_max=high,
        digests={name: digests[name] for name in data.column_names},
    )


def has_records(store: Store, key: str, offsets: I64) -> bool:
    """Whether a file, whose first column has offsets, has one of these records. An unreadable file counts as well."""
    try:
        with store.open(key) as source:
            file = pq.ParquetFile(source)
            found = file.read(columns=[file.schema_arrow.names[0]]).column(0).to_numpy()
    except ObjectNotFound:
        return False
    except (StorageError, OSError, pa.ArrowException):
        return True
    return bool(np.isin(offsets, found).any())


def open_slice(store: Store, key: str, size: int | None = None) -> pq.ParquetFile:
    """Open a slice, of which everything except its pages was checked. Pages are checked when they are read.

    Raises `OSError` if it is damaged, and what stores raise if it cannot be read.
    """
    path = store.local_path(key)
    if path is not None:
        check_slice(store, key, size)
        return pq.ParquetFile(path, page_checksum_verification=True)
    opened = store.open(key)
    check_open_slice(store, key, opened, size)
    return pq.ParquetFile(opened, page_checksum_verification=True)


def count_operations(store: Store, key: str, size: int) -> I64 | None:
    """How many records of a slice have each operation, 0 to 3; None if the file cannot be read."""
    try:
        with open_slice(store, key, size) as file:
            found = file.read(columns=[file.schema_arrow.names[1]]).column(0).to_numpy()
    except (StorageError, OSError, pa.ArrowException):
        return None
    return np.bincount(found, minlength=4)


# Files with page checksums


@dataclass(frozen=True)
class ChecksummedFile:
    """A finished file of rows or columns with page checksums."""

    rows: int
    size: int
    physical_hash: Multihash
    tail: int  # bytes after the last page: the indexes and the footer of Parquet
    tail_checksum: int  # CRC-32


def write_rows(path: Path, tables: Iterator[pa.Table], schema: pa.Schema, vocab: Vocabulary) -> ChecksummedFile:
    """Write records with their system columns, encoded like slices. Each table becomes one row group.

    Checksums cover every byte: each page has one, the footer has one of all page headers, and the result has one of
    the tail.
    """
    first = next(tables, schema.empty_table())
    return _write_pages(path, chain([first], tables), schema, _parquet_options(first, vocab.reserved))


def write_columns(path: Path, tables: Iterator[pa.Table], schema: pa.Schema) -> ChecksummedFile:
    """Like `write_rows`, for columns stored beside the records: without system columns."""
    first = next(tables, schema.empty_table())
    return _write_pages(path, chain([first], tables), schema, _parquet_options(first, ()))


def _write_pages(
    path: Path, tables: Iterable[pa.Table], schema: pa.Schema, options: Mapping[str, Any]
) -> ChecksummedFile:
    rows = 0
    sink = PagesFile(path)
    with sink, pq.ParquetWriter(sink, schema, write_page_checksum=True, **options) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=max(1, table.num_rows))
            rows += table.num_rows
        writer.add_key_value_metadata({HEADERS_KEY: sink.end_of_pages().encode()})
    tail = sink.size - sink.pages_end
    return ChecksummedFile(rows, sink.size, Multihash(SHA3_256, sink.digest()), tail, sink.tail_checksum)


def event_time_bounds(column: pa.ChunkedArray) -> tuple[int | None, int | None]:
    """The smallest and largest event time in nanoseconds since the epoch; (None, None) if there are no rows."""
    if len(column) == 0:
        return None, None
    bounds: Any = pc.min_max(column)
    return to_nanos(bounds["min"]), to_nanos(bounds["max"])


def to_nanos(scalar: Any) -> int | None:
    """A timestamp or date scalar as nanoseconds since the epoch, UTC; None for null."""
    if not scalar.is_valid:
        return None
    if pa.types.is_date32(scalar.type):
        return int(scalar.value) * _DAY_NANOS
    if pa.types.is_date64(scalar.type):
        return int(scalar.value) * _NANOS["ms"]
    return int(scalar.value) * _NANOS[scalar.type.unit]


def recorded_digests(metadata: pq.FileMetaData) -> dict[str, list[str]] | None:
    """The column digests in the footer of a slice, as hex; None if another program wrote the slice."""
    raw = (metadata.metadata or {}).get(DIGESTS_KEY)
    return None if raw is None else json.loads(raw)


def _parquet_options(data: pa.Table, delta_columns: Sequence[str]) -> dict[str, Any]:
    """Encodings per column, chosen from a sample: dictionaries for repeated values, deltas for rising integers."""
    dictionary: list[str] = []
    delta = dict.fromkeys(delta_columns, "DELTA_BINARY_PACKED")
    for name in data.column_names:
        sample = data.column(name).slice(0, _SAMPLE_ROWS)
        if _repeats(sample):
            dictionary.append(name)
        elif _steps_are_small(sample):
            delta[name] = "DELTA_BINARY_PACKED"
    return {
        "compression": "snappy",
        "use_dictionary": dictionary,
        "column_encoding": delta,
        "write_page_index": True,
        "version": "2.6",
    }


def _repeats(sample: pa.ChunkedArray) -> bool:
    t = sample.type
    if len(sample) == 0 or not (pa.types.is_string(t) or pa.types.is_binary(t)):
        return False
    distinct: Any = pc.count_distinct(sample)
    return bool(distinct.as_py() <= len(sample) // 4)


def _steps_are_small(sample: pa.ChunkedArray) -> bool:
    t = sample.type
    if len(sample) < 2 or sample.null_count or not (pa.types.is_int64(t) or pa.types.is_timestamp(t)):
        return False
    values: Any = sample.cast(pa.int64()).to_numpy()
    steps = np.abs(np.diff(values))
    return bool(steps.min() >= 0 and steps.max() < 1 << 20)


# A store as an Arrow file system


def arrow_filesystem(store: Store, sizes: Mapping[str, int], slices: Container[str]) -> pa_fs.FileSystem:
    """A read-only Arrow file system in which objects are files at their keys. They must have these sizes.

    Slices are checked when they are opened.
    """
    return pa_fs.PyFileSystem(_StoreFiles(store, sizes, slices))


class _StoreFiles(pa_fs.FileSystemHandler):  # type: ignore[misc]
    """The reading methods of an Arrow file system. The writing methods raise `OSError`."""

    def __init__(self, store: Store, sizes: Mapping[str, int], slices: Container[str]) -> None:
        self._store = store
        self._sizes = sizes
        self._slices = slices

    def get_type_name(self) -> str:
        return "floodmark"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[Any]:
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> Any:
        info = self._store.stat(path)
        if info is None:
            return pa_fs.FileInfo(path, pa_fs.FileType.NotFound)
        return pa_fs.FileInfo(path, pa_fs.FileType.File, size=info.size)

    def get_file_info_selector(self, selector: Any) -> list[Any]:
        listed = self._store.list(selector.base_dir)
        return [pa_fs.FileInfo(info.key, pa_fs.FileType.File, size=info.size) for info in listed]

    def open_input_file(self, path: str) -> pa.NativeFile:
        try:
            opened = self._store.open(path)
        except ObjectNotFound as error:
            raise FileNotFoundError(path) from error
        if path in self._slices:
            check_open_slice(self._store, path, opened, self._sizes[path])
        elif path in self._sizes:
            check_size(path, opened.size(), self._sizes[path])
        return opened

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def _refuse(self, *_: Any) -> Any:
        raise OSError("the file system of a lake is read-only")

    create_dir = delete_dir = delete_dir_contents = delete_file = move = copy_file = _refuse
    delete_root_dir_contents = open_output_stream = open_append_stream = _refuse

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _StoreFiles) and other._store is self._store

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return id(self._store)
