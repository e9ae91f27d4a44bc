"""Stored results that survive a kill: record batches with facts, each put whole or not at all and checked when read.

The listing is the truth about what is there. Nothing is synced: a crash of the machine may tear the last results, and
what is torn is deleted and computed again. A result may have files; they are put first and the result itself last, with
the size and checksum of each.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from floodmark.storage import document
from floodmark.storage.document import Damaged
from floodmark.storage.store import ObjectInfo, Store

_KIND = "result"
_SCHEMA, _KEPT = b"floodmark:schema", b"floodmark:columns"  # of a batch without its columns of nulls
_ALIGNMENT = 64  # a batch in a mapped file is used where it lies
_MAPPED_BYTES = 1 << 18  # from here on mapping a local file is quicker than reading it
_PIECE = 1 << 24


@dataclass(frozen=True)
class Result:
    """A stored result: a batch, what is known of it, and its files by their names."""

    batch: pa.RecordBatch
    facts: dict[str, Any]
    files: dict[str, tuple[int, int | None]]  # size and checksum


@dataclass(frozen=True)
class ResultCache:
    """Results in a folder of a store, by name. Threads and processes may share it, and it can be pickled into tasks."""

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
        """Store a result in place of what the name had; its files, of these sizes, are there already.

        A reader names the key, too, and so never takes one result for another.
        """
        known = {file: (size, self._sum(file)) for file, size in (files or {}).items()}
        self.store.put_derived(self.object_key(name), seal(key, batch, facts, known))

    def keep(self, name: str, key: str, batch: pa.RecordBatch) -> bool:
        """Store a result that takes the place of others, durably; False when the name has one already."""
        return self.store.put_if_absent(self.object_key(name), seal(key, batch))

    def get(self, name: str, key: str) -> Result:
        """The result of a name; `ObjectNotFound` when there is none, `Damaged` when it is torn or another key's."""
        return unseal(key, self._read(self.object_key(name)))

    def stat(self, name: str) -> ObjectInfo | None:
        """The size and age of a result, which may still prove damaged; None when it is not there."""
        return self.store.stat(self.object_key(name))

    def list(self, within: str = "") -> Iterator[tuple[str, ObjectInfo]]:
        """The names of all results, or of those in one folder of the cache."""
        for info in self.store.list(f"{self.folder}/{within}"):
            yield info.key.removeprefix(f"{self.folder}/"), info

    def delete(self, name: str) -> None:
        """Remove a result, but not its files; one that is not there is fine."""
        self.store.delete(self.object_key(name))

    def is_whole(self, result: Result) -> bool:
        """Whether all files of a result are as they were put."""
        for file, (size, checksum) in result.files.items():
            info = self.store.stat(self.file_key(file))
            if info is None or info.size != size or self._sum(file) != checksum:
                return False
        return True

    def file_key(self, name: str) -> str:
        """Where a file is in the store."""
        return f"{self.files_folder}/{name}"

    def object_key(self, name: str) -> str:
        """Under which key the store has a result."""
        return f"{self.folder}/{name}"

    def _sum(self, file: str) -> int | None:
        """The checksum of a file. A bucket has an object whole or not at all: only local files are torn."""
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
                # Replacing or deleting it takes its name away, not what is mapped.
                with pa.memory_map(str(path)) as file:
                    return file.read_buffer()
        except FileNotFoundError:
            pass  # the store says so in its own words
        return pa.py_buffer(self.store.get(key))


def seal(
    key: str,
    batch: pa.RecordBatch,
    facts: Mapping[str, Any] | None = None,
    files: Mapping[str, tuple[int, int | None]] | None = None,
) -> bytes:
    """The bytes of a key's result.

    Columns with nothing but nulls are left out: hardly any batch has errors, and a column of none would be most of it.
    """
    stored = _without_nulls(batch)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, stored.schema) as writer:
        writer.write_batch(stored)
    known = {"key": key, "rows": batch.num_rows, "facts": facts or {}, "files": files or {}}
    return document.encode(_KIND, 1, known, {"batch": sink.getvalue()}, _ALIGNMENT)


def unseal(key: str, data: pa.Buffer) -> Result:
    """The result of a key, not copied; `Damaged` when these are not that result's bytes."""
    found = document.decode(memoryview(data), _KIND, key)
    body = found.section("batch")
    name, rows = found.facts["key"], found.facts["rows"]
    if name != key:
        raise Damaged(key, f"it is the result {name!r}")
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            batch = _with_nulls(reader.read_next_batch(), rows)
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise Damaged(key, f"its batch cannot be read: {error}") from error
    if batch.num_rows != rows:
        raise Damaged(key, f"it has {batch.num_rows} rows and should have {rows}")
    files = {file: (size, checksum) for file, (size, checksum) in found.facts["files"].items()}
    return Result(batch, found.facts["facts"], files)


def _without_nulls(batch: pa.RecordBatch) -> pa.RecordBatch:
    kept = [i for i, column in enumerate(batch.columns) if column.null_count < len(column)]
    if len(kept) == batch.num_columns or not kept:
        return batch
    notes = {_SCHEMA: batch.schema.serialize().to_pybytes(), _KEPT: json.dumps(kept).encode()}
    schema = pa.schema([batch.schema.field(i) for i in kept], notes)
    return pa.RecordBatch.from_arrays([batch.column(i) for i in kept], schema=schema)


def _with_nulls(stored: pa.RecordBatch, rows: int) -> pa.RecordBatch:
    notes = stored.schema.metadata or {}
    if _SCHEMA not in notes:
        return stored
    schema = pa.ipc.read_schema(pa.py_buffer(notes[_SCHEMA]))
    columns = dict(zip(json.loads(notes[_KEPT]), stored.columns, strict=True))
    arrays = [columns[i] if i in columns else pa.nulls(rows, field.type) for i, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
