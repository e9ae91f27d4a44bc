"""Stored results that survive a killed process: record batches with facts, written atomically and checked when read.

The listing of the folder decides which results exist. Results are not synced to disk: a crash of the machine may damage
the last ones, and damaged results are deleted and computed again. A result may have files. They are written first, and
the result itself is written last with the size and checksum of each file.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from floodmark.storage import document
from floodmark.storage.facts import Natural, build, parse_json
from floodmark.storage.store import ObjectInfo, Store

_KIND = "result"
_SCHEMA, _STORED_COLUMNS = b"floodmark:schema", b"floodmark:columns"  # metadata of a batch without its null columns
_ALIGNMENT = 64  # a batch in a mapped file is used without a copy
_MAPPED_BYTES = 1 << 18  # above this size, mapping a local file is faster than reading it
_PIECE = 1 << 24


@dataclass(frozen=True)
class StoredResult:
    """A stored result: a batch, its facts, and its files by name."""

    batch: pa.RecordBatch
    facts: dict[str, Any]
    files: dict[str, tuple[int, int | None]]  # size and checksum


@dataclass(frozen=True)
class ResultCache:
    """Results in a folder of a store, by name. Threads and processes can share it, and tasks can pickle it."""

    store: Store
    folder: str
    files_folder: str = ""

    def put(
        self,
        name: str,
        key: str,
        batch: pa.RecordBatch,
        facts: Mapping[str, Any] | None = None,
        files: Mapping[str, int] | None = None,
    ) -> None:
        """Store a result, replacing any result of this name. Its files, given with their sizes, already exist.

        A reader also passes the key, so it never gets the result of another key.
        """
        known = {file: (size, self._sum(file)) for file, size in (files or {}).items()}
        self.store.put_derived(self.object_key(name), encode_result(key, batch, facts, known))

    def keep(self, name: str, key: str, batch: pa.RecordBatch, facts: Mapping[str, Any] | None = None) -> bool:
        """Store a result durably, unless the name already has one; returns whether it was stored."""
        return self.store.put_if_absent(self.object_key(name), encode_result(key, batch, facts))

    def get(self, name: str, key: str) -> StoredResult:
        """Read a result; `ObjectNotFound` if it does not exist, `DamagedDocument` if it is torn or of another key."""
        return decode_result(key, self._read(self.object_key(name)))

    def stat(self, name: str) -> ObjectInfo | None:
        """The size and age of a result, without a check of its content; None if it does not exist."""
        return self.store.stat(self.object_key(name))

    def list(self, within: str = "") -> Iterator[tuple[str, ObjectInfo]]:
        """The names of all results, or of the results in one folder of the cache."""
        for info in self.store.list(f"{self.folder}/{within}"):
            yield info.key.removeprefix(f"{self.folder}/"), info

    def delete(self, name: str) -> None:
        """Remove a result, but not its files. A missing result is not an error."""
        self.store.delete(self.object_key(name))

    def is_whole(self, result: StoredResult) -> bool:
        """Whether all files of a result are unchanged since they were stored."""
        for file, (size, checksum) in result.files.items():
            info = self.store.stat(self.file_key(file))
            if info is None or info.size != size or self._sum(file) != checksum:
                return False
        return True

    def file_key(self, name: str) -> str:
        """The store key of a file."""
        return f"{self.files_folder}/{name}"

    def object_key(self, name: str) -> str:
        """The store key of a result."""
        return f"{self.folder}/{name}"

    def _sum(self, file: str) -> int | None:
        """The checksum of a local file. None in a bucket, where an object is always complete."""
        key = self.file_key(file)
        if self.store.local_path(key) is None:
            return None
        total = 0
        with self.store.open(key) as opened:
            while piece := opened.read_buffer(_PIECE):
                total = zlib.crc32(piece, total)
        return total

    def _read(self, key: str) -> pa.Buffer:
        path = self.store.local_path(key)
        try:
            if path is not None and path.stat().st_size >= _MAPPED_BYTES:
                # The mapping stays valid if the file is replaced or deleted.
                with pa.memory_map(str(path)) as file:
                    return file.read_buffer()
        except FileNotFoundError:
            pass  # the read below raises the store's own error
        return pa.py_buffer(self.store.get(key))


def encode_result(
    key: str,
    batch: pa.RecordBatch,
    facts: Mapping[str, Any] | None = None,
    files: Mapping[str, tuple[int, int | None]] | None = None,
) -> bytes:
    """Encode the result of a key.

    Columns that contain only nulls are left out: few batches have errors, and their null columns would be most bytes.
    """
    stored = _without_nulls(batch)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, stored.schema) as writer:
        writer.write_batch(stored)
    known = {"key": key, "rows": batch.num_rows, "facts": facts or {}, "files": files or {}}
    return document.encode(_KIND, 1, known, {"batch": sink.getvalue()}, _ALIGNMENT)


def decode_result(key: str, data: pa.Buffer) -> StoredResult:
    """Decode the result of a key without a copy; `DamagedDocument` if the bytes are not a result of this key."""
    decoded = document.decode(memoryview(data), _KIND, key)
    body = decoded.section("batch")
    with document.parsing(key):
        stored = build(_StoredFacts, decoded.facts)
        if stored.key != key:
            raise ValueError(f"it is the result {stored.key!r}")
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            found = reader.read_next_batch() if body else None
        if found is None or found.num_rows != stored.rows:
            raise ValueError(f"it should have {stored.rows} rows")
        found.validate(full=True)
        return StoredResult(_with_nulls(found, stored.rows), dict(stored.facts), dict(stored.files))


@dataclass(frozen=True)
class _StoredFacts:
    key: str
    rows: Natural
    facts: Mapping[str, Any]
    files: Mapping[str, tuple[Natural, int | None]]


def _without_nulls(batch: pa.RecordBatch) -> pa.RecordBatch:
    stored = [i for i, column in enumerate(batch.columns) if column.null_count < len(column)]
    if len(stored) == batch.num_columns or not stored:
        return batch
    metadata = {_SCHEMA: batch.schema.serialize().to_pybytes(), _STORED_COLUMNS: json.dumps(stored).encode()}
    schema = pa.schema([batch.schema.field(i) for i in stored], metadata)
    return pa.RecordBatch.from_arrays([batch.column(i) for i in stored], schema=schema)


def _with_nulls(stored: pa.RecordBatch, rows: int) -> pa.RecordBatch:
    metadata = stored.schema.metadata or {}
    if _SCHEMA not in metadata:
        return stored
    schema = pa.ipc.read_schema(pa.py_buffer(metadata[_SCHEMA]))
    columns = dict(zip(parse_json(metadata[_STORED_COLUMNS]), stored.columns, strict=True))
    arrays = [columns[i] if i in columns else pa.nulls(rows, field.type) for i, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
