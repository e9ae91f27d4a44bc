"""Slices: Parquet files of consecutive records, with the system columns first and both of their hashes."""

from __future__ import annotations

import hashlib
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from floodmark.chain.hashes import SHA3_256, Multihash
from floodmark.storage.logical_hash import column_digests, compose
from floodmark.storage.page_headers import HEADERS_KEY, PageHeaders

SYSTEM_TIME_TYPE = pa.timestamp("ms", tz="UTC")
ROW_GROUP_ROWS = 1 << 17
DIGESTS_KEY = b"floodmark.column-digests"

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
        """The columns that no user data may bring along."""
        return (self.offset, self.op, self.system_time)


@dataclass(frozen=True)
class SliceFile:
    """A finished slice that is not yet part of any dataset; without a path once it was uploaded."""

    path: Path | None
    rows: int
    size: int
    physical_hash: Multihash
    logical_hash: Multihash
    event_time_min: int | None
    event_time_max: int | None
    digests: Digests = field(repr=False)


def system_fields(vocab: Vocabulary) -> list[pa.Field]:
    """The columns every slice starts with, before the event time."""
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
    """Write `data` (its event time first) as the slice that begins at offset `start`.

    `ops` are the records' operations, all `+A` when None. `known_digests` are those of columns that an earlier try has
    hashed already; they are not hashed again.
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
    columns = [*system.columns, *data.columns]
    schema = pa.schema([*system.schema, *data.schema])
    table = pa.Table.from_arrays(columns, schema=schema)
    # Hashing and encoding both release the GIL: one extra thread overlaps them.
    with ThreadPoolExecutor(1) as hashing:
        to_hash = [name for name in table.column_names if name not in known_digests]
        pending = {name: hashing.submit(column_digests, table.column(name)) for name in to_hash}
        sink = _HashingFile(path)
        with sink, pq.ParquetWriter(sink, schema, **_parquet_options(data, vocab.reserved)) as writer:
            writer.write_table(table, row_group_size=row_group_rows)
            fresh = {name: future.result() for name, future in pending.items()}
            digests = {**known_digests, **fresh}
            hexed = {name: [d.hex() for d in digests[name]] for name in table.column_names}
            writer.add_key_value_metadata({DIGESTS_KEY: json.dumps(hexed).encode()})
    low, high = event_time_bounds(data.column(vocab.event_time))
    return SliceFile(
        path=path,
        rows=rows,
        size=sink.size,
        physical_hash=Multihash(SHA3_256, sink.digest()),
        logical_hash=compose(schema, [d for name in table.column_names for d in digests[name]]),
        event_time_min=low,
        event_time_max=high,
        digests={name: digests[name] for name in data.column_names},
    )


@dataclass(frozen=True)
class RowsFile:
    """A finished file of records that have their offsets already."""

    rows: int
    size: int
    physical_hash: Multihash
    tail: int  # how many bytes follow the last page: Parquet's indexes and its footer
    tail_checksum: int  # CRC-32


def write_rows(path: Path, tables: Iterator[pa.Table], schema: pa.Schema, vocab: Vocabulary) -> RowsFile:
    """Write records with their system columns, encoded as slices are; each table becomes a row group of its own.

    No byte of it is without a checksum: pages have theirs, the footer has one of the pages' headers, and the tail's is
    returned.
    """
    first = next(tables, schema.empty_table())
    return _write_pages(path, chain([first], tables), schema, _parquet_options(first, vocab.reserved))


def write_columns(path: Path, tables: Iterator[pa.Table], schema: pa.Schema) -> RowsFile:
    """The same for columns that stand beside the records: there are no system columns among them."""
    first = next(tables, schema.empty_table())
    return _write_pages(path, chain([first], tables), schema, _parquet_options(first, ()))


def _write_pages(path: Path, tables: Iterable[pa.Table], schema: pa.Schema, options: Mapping[str, Any]) -> RowsFile:
    rows = 0
    sink = _PagesFile(path)
    with sink, pq.ParquetWriter(sink, schema, write_page_checksum=True, **options) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=max(1, table.num_rows))
            rows += table.num_rows
        writer.add_key_value_metadata({HEADERS_KEY: sink.end_of_pages().encode()})
    tail = sink.size - sink.pages_end
    return RowsFile(rows, sink.size, Multihash(SHA3_256, sink.digest()), tail, sink.tail_checksum)


def event_time_bounds(column: pa.ChunkedArray) -> tuple[int | None, int | None]:
    """The smallest and largest event time in nanoseconds since the epoch, (None, None) for no rows."""
    if len(column) == 0:
        return None, None
    bounds: Any = pc.min_max(column)
    return nanos_of(bounds["min"]), nanos_of(bounds["max"])


def nanos_of(scalar: Any) -> int | None:
    """A timestamp or date scalar as nanoseconds since the epoch, UTC."""
    if not scalar.is_valid:
        return None
    if pa.types.is_date32(scalar.type):
        return int(scalar.value) * _DAY_NANOS
    if pa.types.is_date64(scalar.type):
        return int(scalar.value) * _NANOS["ms"]
    return int(scalar.value) * _NANOS[scalar.type.unit]


def recorded_digests(metadata: pq.FileMetaData) -> dict[str, list[str]] | None:
    """The column digests that the writer left in a slice's footer, as hex, if it was ours."""
    raw = (metadata.metadata or {}).get(DIGESTS_KEY)
    return None if raw is None else json.loads(raw)


def _parquet_options(data: pa.Table, steady: Sequence[str]) -> dict[str, Any]:
    """Encodings chosen per column from a sample: dictionaries only where they pay, deltas for steady integers."""
    dictionary: list[str] = []
    delta = dict.fromkeys(steady, "DELTA_BINARY_PACKED")
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


class _HashingFile(io.RawIOBase):
    """A new file that hashes what is written to it, so that no slice is read back to name it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self._hasher = hashlib.sha3_256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._hasher.update(view)
        self._file.write(view)
        self.size += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()

    def close(self) -> None:
        self._file.close()
        super().close()

    def digest(self) -> bytes:
        return self._hasher.digest()


_LARGEST_HEADER = 256
"""Bytes; headers without statistics, which the page index holds instead, take about thirty."""


class _PagesFile(_HashingFile):
    """The same for a file whose pages have checksums: it notes what lies between the pages."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._bounds: list[int] = []
        self._headers_checksum = 0
        self.pages_end = 0
        self.tail_checksum = 0

    def write(self, data: Any) -> int:
        start = self.size
        written = super().write(data)
        if self.pages_end:
            self.tail_checksum = zlib.crc32(data, self.tail_checksum)
        elif written <= _LARGEST_HEADER:  # a header is a write of its own; small pages may come along
            self._headers_checksum = zlib.crc32(data, self._headers_checksum)
            if self._bounds and self._bounds[-1] == start:
                self._bounds[-1] = self.size
            else:
                self._bounds += [start, self.size]
        return written

    def end_of_pages(self) -> PageHeaders:
        """The headers of all pages; what is written from now on is the file's tail."""
        self.pages_end = self.size
        return PageHeaders(np.array(self._bounds, np.int64), self._headers_checksum)
