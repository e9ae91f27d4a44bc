"""Checkpoints of a transform: results of some keys, stored while a run is under way and gone once they are committed.

    {dataset}/info/transform/chunks/{version}/done/{task}-{random}     what a checkpoint is; without it there is none
    {dataset}/info/transform/chunks/{version}/files/…                  its rows by output, its keys, its failures

The version is hashed: user text never becomes a path.
"""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from floodmark.derive.result_cache import Result, ResultCache
from floodmark.ledger.layout import Layout
from floodmark.ledger.merge.buckets import SortedFile, write_sorted
from floodmark.ledger.merge.results import SortedHashes, write_hashes
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.arrays import Hashes
from floodmark.storage.document import Damaged
from floodmark.storage.errors import ObjectNotFound, StorageError
from floodmark.transform.functions.returned import OutputShape
from floodmark.transform.tasks.columns import may_become
from floodmark.transform.tasks.stored import Entries, File, Fresh, Stored, results

__all__ = ["ChunkStore", "Stored", "results"]

_AGAIN = "nothing was committed; run the step again"


@dataclass(frozen=True)
class ChunkStore:
    """The checkpoints of one version of a transform, kept beside its primary output."""

    objects: DatasetObjects
    version: str

    @property
    def _root(self) -> str:
        return f"{self.objects.folder}/info/transform/chunks"

    @cached_property
    def _name(self) -> str:
        return hashlib.sha256(self.version.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    @property
    def _results(self) -> ResultCache:
        folder = f"{self._root}/{self._name}"
        return ResultCache(self.objects.store, f"{folder}/done", f"{folder}/files")

    @property
    def _files(self) -> str:
        return self._results.files_folder

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
        columns = [entries.signature.high, entries.signature.low, entries.attempts]
        batch = pa.RecordBatch.from_arrays([pa.array(column) for column in columns], _COLUMNS)
        self._results.put(stored.id, self._key(stored.id), batch, _facts(stored, outputs), stored.file_sizes)
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
        return File(key, len(data))

    def _key(self, name: str) -> str:
        return f"{self._name}/{name}"

    # finding

    def of_tasks(self, tasks: Iterable[str], outputs: Sequence[OutputShape]) -> list[Stored]:
        """What tasks of this run have stored, those that died on their way among them."""
        begin = tuple(f"{task}-" for task in tasks)
        found = (self._read(name, outputs) for name, _ in self._results.list() if name.startswith(begin))
        return [stored for stored, _ in filter(None, found)]

    def found(self, outputs: Sequence[OutputShape]) -> list[Stored]:
        """What earlier runs have left that is whole and was made for these outputs; everything else is deleted."""
        whole: list[Stored] = []
        for name, _ in list(self._results.list()):
            read = self._read(name, outputs)
            if read is not None and self._results.is_whole(read[1]):
                whole.append(read[0])
            else:
                self._results.delete(name)
        self._sweep(whole)
        return whole

    def entries(self, stored: Stored) -> Entries:
        """The keys that a checkpoint has results of."""
        try:
            batch = self._results.get(stored.id, self._key(stored.id)).batch
        except Damaged as error:
            raise StorageError(f"a stored result cannot be used: {error}", hint=_AGAIN) from error
        hashes = Hashes.joined([]) if stored.called is None else stored.called.read()
        high, low, attempts = (column.to_numpy() for column in batch.columns)
        return Entries(hashes, Hashes(high, low), attempts)

    def _read(self, name: str, outputs: Sequence[OutputShape]) -> tuple[Stored, Result] | None:
        """A checkpoint as it is stored; None when it is not one, or not one for these outputs."""
        try:
            result = self._results.get(name, self._key(name))
        except (Damaged, ObjectNotFound):
            return None
        if len(result.facts["outputs"]) != len(outputs):
            return None
        layouts, undecided = [], []
        for shape, fact in zip(outputs, result.facts["outputs"], strict=True):
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
        return self._stored(name, result, tuple(layouts), tuple(undecided)), result

    def _stored(
        self,
        name: str,
        result: Result,
        layouts: tuple[Layout | None, ...],
        undecided: tuple[pa.Schema | None, ...],
    ) -> Stored:
        store = None if self.objects.is_local else self.objects.store
        facts = result.facts

        def path(file: str) -> str:
            key = self._results.file_key(file)
            return key if store is not None else str(self.objects.store.local_path(key))

        def hashes(fact: _FileFacts | None) -> SortedHashes | None:
            return None if fact is None else SortedHashes(path(fact[0]), store, tuple(fact[1]))

        def rows(fact: _FileFacts | None) -> SortedFile | None:
            return fact and SortedFile(path(fact[0]), store, tuple(fact[1]), result.files[fact[0]][0])

        failures = facts["failures"]
        return Stored(
            id=name,
            outputs=tuple(rows(fact["file"]) for fact in facts["outputs"]),
            layouts=layouts,
            undecided=undecided,
            called=hashes(facts["called"]),
            gone=hashes(facts["gone"]),
            failures=failures and File(self._results.file_key(failures), result.files[failures][0]),
            failed=facts["failed"],
            objects=self.objects,
        )

    # removing

    def discard(self, stored: Iterable[Stored]) -> None:
        """Remove checkpoints: they are committed, or no use. The descriptors first, so that none is half there."""
        chosen = list(stored)
        for s in chosen:
            self._results.delete(s.id)
        for s in chosen:
            for name in s.file_sizes:
                self.objects.store.delete(self._results.file_key(name))

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
        named = {name for s in whole for name in s.file_sizes}
        for info in list(self.objects.store.list(f"{self._root}/{self._name}")):
            folder, _, name = info.key.rpartition("/")
            if not folder.endswith("/done") and name not in named:
                self.objects.store.delete(info.key)


_COLUMNS = ["signature_high", "signature_low", "attempts"]
_IDENTITY = ("name", "key", "keys", "event_time")
_FileFacts: TypeAlias = tuple[str, list[int]]  # the name of a sorted file, and its rows by bucket


def _facts(stored: Stored, outputs: Sequence[OutputShape]) -> dict[str, Any]:
    """What is known of a checkpoint, for whoever finds it."""
    return {
        "outputs": [
            {
                **_identity(shape),
                "layout": _layout_facts(shape.layout),
                "undecided": None if columns is None else _schema_text(columns),
                "file": _file_facts(file),
            }
            for shape, file, columns in zip(outputs, stored.outputs, stored.undecided, strict=True)
        ],
        "called": _file_facts(stored.called),
        "gone": _file_facts(stored.gone),
        "failures": stored.failures and stored.failures.path.rpartition("/")[2],
        "failed": stored.failed,
    }


def _file_facts(file: SortedFile | SortedHashes | None) -> _FileFacts | None:
    return None if file is None else (file.path.rpartition("/")[2], list(file.rows))


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
