"""Checkpoints of a transform: results of some keys, stored while a run is under way and gone once they are committed.

    {dataset}/info/transform/chunks/{version}/done/{task}-{random}     what a checkpoint is; without it there is none
    {dataset}/info/transform/chunks/{version}/files/…                  its rows by output, its keys, its failures

The version is hashed: user text never becomes a path. A descriptor is written last and says of every file how large it
is and what it sums up to, since a crash of the machine may tear what was not synced. Whatever does not fit is deleted
and computed again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.compute.checkpoints.sealed import seal, unseal
from floodmark.compute.errors import BadCheckpoint
from floodmark.ledger.keys.records import Hashes
from floodmark.ledger.layout import Layout
from floodmark.ledger.merge.buckets import SortedFile, write_sorted
from floodmark.ledger.merge.results import SortedHashes, write_hashes
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.errors import ObjectNotFound
from floodmark.transform.functions.returned import OutputShape
from floodmark.transform.tasks.columns import may_become
from floodmark.transform.tasks.stored import Entries, File, Fresh, Stored, results

__all__ = ["ChunkStore", "Stored", "results"]

FORMAT = 1
_FACTS = b"floodmark:checkpoint"
_PIECE = 1 << 24


@dataclass(frozen=True)
class ChunkStore:
    """The checkpoints of one version of a transform, kept beside its primary output."""

    objects: DatasetObjects
    version: str

    @property
    def _root(self) -> str:
        return f"{self.objects.folder}/info/transform/chunks"

    @property
    def _name(self) -> str:
        return hashlib.sha256(self.version.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    @property
    def _files(self) -> str:
        return f"{self._root}/{self._name}/files"

    def _descriptor(self, name: str) -> str:
        return f"{self._root}/{self._name}/done/{name}"

    def index_key(self, name: str) -> str:
        """An index over found checkpoints, which lasts as long as the run that made it."""
        return f"{self._root}/{self._name}/found/{name}"

    # writing

    def put(self, task: str, outputs: Sequence[OutputShape], fresh: Fresh) -> Stored:
        """Store results under a name of their own that begins with the task's."""
        folder = self._folder()
        order = np.argsort((fresh.entries.hashes.high >> np.uint64(56)).astype(np.uint8), kind="stable")
        entries = fresh.entries.take(order)  # as the file of keys has them, so that signatures need no keys
        files: list[SortedFile | None] = []
        for shape, rows in zip(outputs, fresh.rows, strict=True):
            if rows is None or rows.table.num_rows == 0:
                files.append(None)
            else:
                files.append(write_sorted(rows.batch(shape), folder, self.objects, self._files))
        stored = Stored(
            id=f"{task}-{uuid.uuid4().hex[:12]}",
            outputs=tuple(files),
            layouts=tuple(shape.layout for shape in outputs),
            undecided=fresh.undecided or (None,) * len(files),
            called=self._put_hashes(entries.hashes, folder),
            gone=self._put_hashes(fresh.gone, folder),
            failures=self._put_failures(fresh.failed),
            failed=0 if fresh.failed is None else fresh.failed.num_rows,
            objects=self.objects,
        )
        facts = json.dumps(self._facts(stored, outputs)).encode()
        columns = [pa.array(entries.signature.high), pa.array(entries.signature.low), pa.array(entries.attempts)]
        schema = pa.schema([pa.field(n, c.type) for n, c in zip(_COLUMNS, columns, strict=True)], {_FACTS: facts})
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        self.objects.store.put_derived(self._descriptor(stored.id), seal(self._sealed_name(stored.id), batch))
        return stored

    def _folder(self) -> Path:
        """Where files are written; on a store without paths they only pass through."""
        path = self.objects.store.local_path(self._files)
        if path is None:
            return self.objects.store.staging()
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _put_hashes(self, hashes: Hashes, folder: Path) -> SortedHashes | None:
        return write_hashes(hashes, folder, self.objects, self._files) if len(hashes) else None

    def _put_failures(self, failed: pa.Table | None) -> File | None:
        if failed is None or failed.num_rows == 0:
            return None
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, failed.schema) as writer:
            writer.write_table(failed)
        data = sink.getvalue().to_pybytes()
        key = f"{self._files}/failed-{uuid.uuid4().hex}"
        self.objects.store.put_derived(key, data)
        return File(key, len(data), self._sum(key))

    def _sealed_name(self, name: str) -> str:
        return f"{self._name}/{name}"

    # what a descriptor says

    def _facts(self, stored: Stored, outputs: Sequence[OutputShape]) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "outputs": [
                {
                    **_identity(shape),
                    "layout": _layout_facts(shape.layout),
                    "undecided": None if columns is None else _schema_text(columns),
                    "file": self._file_facts(file),
                }
                for shape, file, columns in zip(outputs, stored.outputs, stored.undecided, strict=True)
            ],
            "called": self._file_facts(stored.called),
            "gone": self._file_facts(stored.gone),
            "failures": None if stored.failures is None else _plain_facts(stored.failures, stored.failed),
        }

    def _file_facts(self, file: SortedFile | SortedHashes | None) -> dict[str, Any] | None:
        if file is None:
            return None
        name = file.path.rpartition("/")[2]
        return {"name": name, "size": file.size, "rows": list(file.rows), "sum": self._sum(f"{self._files}/{name}")}

    def _sum(self, key: str) -> int | None:
        """What a file sums up to. A bucket has an object whole or not at all: only local files are torn."""
        if not self.objects.is_local:
            return None
        total = 0
        with self.objects.store.open(key) as file:
            while piece := file.read_buffer(_PIECE):
                total = zlib.crc32(piece, total)
        return total

    # finding

    def of_tasks(self, tasks: Iterable[str], outputs: Sequence[OutputShape]) -> list[Stored]:
        """What tasks of this run have stored, those that died on their way among them."""
        names = tuple(f"{task}-" for task in tasks)
        found = (self._read(name, outputs) for name in self._stored_names() if name.startswith(names))
        return [stored for stored, _ in filter(None, found)]

    def found(self, outputs: Sequence[OutputShape]) -> list[Stored]:
        """What earlier runs have left that is whole and was made for these outputs; everything else is deleted."""
        whole: list[Stored] = []
        for name in list(self._stored_names()):
            read = self._read(name, outputs)
            if read is not None and self._is_whole(read[1]):
                whole.append(read[0])
            else:
                self.objects.store.delete(self._descriptor(name))
        self._sweep(whole)
        return whole

    def entries(self, stored: Stored) -> Entries:
        """The keys that a checkpoint has results of."""
        batch = self._unsealed(stored.id)
        hashes = Hashes.joined([]) if stored.called is None else stored.called.read()
        high, low, attempts = (column.to_numpy() for column in batch.columns)
        return Entries(hashes, Hashes(high, low), attempts)

    def _stored_names(self) -> Iterator[str]:
        folder = self._descriptor("")
        for info in self.objects.store.list(folder):
            yield info.key.removeprefix(folder)

    def _unsealed(self, name: str) -> pa.RecordBatch:
        return unseal(self._sealed_name(name), pa.py_buffer(self.objects.store.get(self._descriptor(name))))

    def _read(self, name: str, outputs: Sequence[OutputShape]) -> tuple[Stored, dict[str, Any]] | None:
        """A checkpoint and the facts about its files; None when it is not one, or not one for these outputs."""
        try:
            batch = self._unsealed(name)
            facts = json.loads((batch.schema.metadata or {})[_FACTS])
            if facts["format"] != FORMAT or len(facts["outputs"]) != len(outputs):
                return None
            layouts, undecided = [], []
            for shape, fact in zip(outputs, facts["outputs"], strict=True):
                layout = None if fact["file"] is None else _layout_from(fact["layout"], shape)
                known = shape.layout
                if {part: fact[part] for part in _IDENTITY} != _identity(shape):
                    return None
                if known is not None and layout is not None and not _same(known, layout):
                    return None
                columns = None if fact["undecided"] is None else _schema_from(fact["undecided"])
                if known is not None and columns is not None and not may_become(columns, known.data):
                    return None
                layouts.append(layout if layout is not None else known if columns is None else None)
                undecided.append(columns)
            stored = self._stored(name, facts, tuple(layouts), tuple(undecided))
        except (BadCheckpoint, ObjectNotFound, KeyError, TypeError, ValueError, pa.ArrowException):
            return None
        if tuple(batch.schema.names) != _COLUMNS or batch.num_rows != stored.keys:
            return None
        return stored, facts

    def _stored(
        self,
        name: str,
        facts: dict[str, Any],
        layouts: tuple[Layout | None, ...],
        undecided: tuple[pa.Schema | None, ...],
    ) -> Stored:
        store = None if self.objects.is_local else self.objects.store

        def path(fact: dict[str, Any]) -> str:
            key = f"{self._files}/{fact['name']}"
            return key if store is not None else str(self.objects.store.local_path(key))

        def hashes(fact: dict[str, Any] | None) -> SortedHashes | None:
            return None if fact is None else SortedHashes(path(fact), store, tuple(fact["rows"]))

        def rows(fact: dict[str, Any] | None) -> SortedFile | None:
            return None if fact is None else SortedFile(path(fact), store, tuple(fact["rows"]), fact["size"])

        failures = facts["failures"]
        return Stored(
            id=name,
            outputs=tuple(rows(fact["file"]) for fact in facts["outputs"]),
            layouts=layouts,
            undecided=undecided,
            called=hashes(facts["called"]),
            gone=hashes(facts["gone"]),
            failures=failures and File(f"{self._files}/{failures['name']}", failures["size"], failures["sum"]),
            failed=failures["rows"] if failures else 0,
            objects=self.objects,
        )

    def _is_whole(self, facts: dict[str, Any]) -> bool:
        files = [facts["called"], facts["gone"], facts["failures"], *(fact["file"] for fact in facts["outputs"])]
        for fact in files:
            if fact is None:
                continue
            key = f"{self._files}/{fact['name']}"
            info = self.objects.store.stat(key)
            if info is None or info.size != fact["size"] or self._sum(key) != fact["sum"]:
                return False
        return True

    # removing

    def discard(self, stored: Iterable[Stored]) -> None:
        """Remove checkpoints: they are committed, or no use. The descriptors first, so that none is half there."""
        chosen = list(stored)
        store = self.objects.store
        for s in chosen:
            store.delete(self._descriptor(s.id))
        for s in chosen:
            for name in s.file_names:
                store.delete(f"{self._files}/{name}")

    def clear(self) -> None:
        """Remove every checkpoint of every version."""
        infos = list(self.objects.store.list(self._root))
        for info in sorted(infos, key=lambda info: "/done/" not in info.key):
            self.objects.store.delete(info.key)

    def _sweep(self, whole: Sequence[Stored]) -> None:
        """Remove files that no checkpoint names, which a crash has left.

        Only where runs take turns: in a bucket they may belong to a run that is under way.
        """
        if not self.objects.is_local:
            return
        named = {name for s in whole for name in s.file_names}
        for info in list(self.objects.store.list(f"{self._root}/{self._name}")):
            folder, _, name = info.key.rpartition("/")
            if not folder.endswith("/done") and name not in named:
                self.objects.store.delete(info.key)


_COLUMNS = ("signature_high", "signature_low", "attempts")
_IDENTITY = ("name", "key", "keys", "event_time")


def _identity(shape: OutputShape) -> dict[str, Any]:
    """What makes results another output's."""
    keys = _schema_text(shape.keys.remove_metadata())
    return {"name": shape.name, "key": list(shape.key), "keys": keys, "event_time": shape.event_time}


def _schema_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def _schema_from(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _layout_facts(layout: Layout | None) -> dict[str, Any] | None:
    if layout is None:
        return None
    return {"data": _schema_text(layout.data), "event_time": layout.event_time}


def _layout_from(fact: dict[str, Any] | None, shape: OutputShape) -> Layout | None:
    if fact is None:
        return None
    vocab = shape.vocab if shape.layout is None else shape.layout.vocab
    return Layout(vocab, fact["event_time"], _schema_from(fact["data"]))


def _same(one: Layout, other: Layout) -> bool:
    return one.event_time == other.event_time and bool(one.data.equals(other.data))


def _plain_facts(file: File, rows: int) -> dict[str, Any]:
    return {"name": file.key.rpartition("/")[2], "size": file.size, "sum": file.sum, "rows": rows}
