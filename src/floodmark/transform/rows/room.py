"""A room for tables that tasks of one run share: files in a folder, or objects when the store is remote."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.arrays import I64
from floodmark.storage.scratch import explained
from floodmark.storage.store import Store


@dataclass(frozen=True)
class FiledTable:
    """A table in a file, in consecutive parts, some of which can be read alone."""

    path: str  # a key when there is a store
    store: Store | None
    rows: tuple[int, ...]  # by part
    size: int

    def read(self, low: int, high: int) -> pa.Table:
        """The parts [low, high)."""
        source = pa.memory_map(self.path) if self.store is None else self.store.open(self.path)
        reader = pa.ipc.open_file(source)
        first = sum(1 for n in self.rows[:low] if n)
        count = sum(1 for n in self.rows[low:high] if n)
        return pa.Table.from_batches([reader.get_batch(i) for i in range(first, first + count)], reader.schema)

    def read_all(self) -> pa.Table:
        return self.read(0, len(self.rows))


@dataclass(frozen=True)
class Room:
    """Where such files go. `folder` is a staging area of whoever runs; `clear` removes what a remote store holds."""

    folder: Path
    objects: DatasetObjects

    @property
    def _prefix(self) -> str:
        return f"{self.objects.folder}/staging/{self.folder.name}"

    def put(self, table: pa.Table, rows: Sequence[int]) -> FiledTable:
        """Write a table whose rows are sorted by part; `rows` says how many each part has."""
        target = self.folder if self.objects.is_local else self.objects.store.staging()
        path = target / f"table-{uuid.uuid4().hex}"
        whole = table.combine_chunks()
        with (
            explained(f"{table.num_rows:,} rows", target),
            pa.OSFile(str(path), "wb") as sink,
            pa.ipc.new_file(sink, table.schema) as writer,
        ):
            at = 0
            for count in rows:
                if count:
                    [batch] = whole.slice(at, count).combine_chunks().to_batches()
                    writer.write_batch(batch)
                    at += count
        size = path.stat().st_size
        if self.objects.is_local:
            return FiledTable(str(path), None, tuple(rows), size)
        key = f"{self._prefix}/{path.name}"
        try:
            self.objects.store.put_file(key, path)
        finally:
            path.unlink(missing_ok=True)
        return FiledTable(key, self.objects.store, tuple(rows), size)

    def put_parts(self, table: pa.Table, part: I64, parts: int) -> FiledTable:
        """Write a table by the given part of each row."""
        order = np.argsort(part.astype(np.uint16), kind="stable")  # of two bytes: a counting sort
        return self.put(table.take(pa.array(order)), np.bincount(part, minlength=parts).tolist())

    def clear(self) -> None:
        """Remove what lies in the store; the folder goes with its staging area."""
        if not self.objects.is_local:
            for info in list(self.objects.store.list(self._prefix)):
                self.objects.store.delete(info.key)
