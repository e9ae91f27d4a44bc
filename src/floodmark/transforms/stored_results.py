"""Store the results of tasks while a run is active; they are removed when they are committed.

    {dataset}/info/transform/chunks/{version}/done/{task}-{random}     the descriptor of a stored chunk, written last
    {dataset}/info/transform/chunks/{version}/files/…                  its rows by output, its keys, its failures

The version in a path is hashed, because users choose it.
"""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from floodmark.derive.commit import write_hashes
from floodmark.derive.result_cache import ResultCache, StoredResult
from floodmark.errors import ObjectNotFound, StorageError
from floodmark.functions.step_result import OutputShape
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.position import Position
from floodmark.ledger.schema import Layout
from floodmark.rows.buckets import SortedHashes, write_sorted
from floodmark.storage.arrays import Hashes
from floodmark.storage.document import DamagedDocument
from floodmark.storage.scratch import SortedFile
from floodmark.transforms.chunk_results import ChunkEntries, FailuresFile, NewResults, StoredChunk, may_become

_AGAIN = "nothing was committed; run the step again"


@dataclass(frozen=True)
class ChunkStore:
    """The stored chunks of one version of a transform, in the folder of its primary output."""

    objects: DatasetObjects
    version: str
    read: tuple[Position, ...] = ()  # the newest record of each input that results are computed from

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
        """The object key of an index over stored chunks; the run that writes it also removes it."""
        return f"{self._root}/{self._name}/found/{name}"

    # Writing

    def put(self, task: str, outputs: Sequence[OutputShape], fresh: NewResults) -> StoredChunk:
        """Store results under a new name that begins with the task's id."""
        folder = self._folder()
        order = np.argsort((fresh.entries.hashes.high >> np.uint64(56)).astype(np.uint8), kind="stable")
        entries = fresh.entries.take(order)  # in the order of the file of keys, which is read together with them
        files: list[SortedFile | None] = []
        for shape, rows in zip(outputs, fresh.rows, strict=True):
            if rows is None or rows.table.num_rows == 0:
                files.append(None)
            else:
                files.append(write_sorted(rows.batch(shape), folder, self.objects, self._files))
        stored = StoredChunk(
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
        facts = {**_facts(stored, outputs), "read": list(map(str, self.read))}
        self._results.put(stored.id, self._key(stored.id), batch, facts, stored.file_sizes)
        return stored

    def _folder(self) -> Path:
        """The folder for new files: the final one on a disk, a staging folder for a bucket."""
        path = self.objects.store.local_path(self._files)
        if path is None:
            return self.objects.store.staging()
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _put_hashes(self, hashes: Hashes, folder: Path) -> SortedHashes | None:
        return write_hashes(hashes, folder, self.objects, self._files) if len(hashes) else None

    def _put_failures(self, failed: pa.Table | None) -> FailuresFile | None:
        if failed is None or failed.num_rows == 0:
            return None
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, failed.schema) as writer:
            writer.write_table(failed)
        data = sink.getvalue().to_pybytes()
        key = f"{self._files}/failed-{uuid.uuid4().hex}"
        self.objects.store.put_derived(key, data)
        return FailuresFile(key, len(data))

    def _key(self, name: str) -> str:
        return f"{self._name}/{name}"

    # Reading

    def of_tasks(self, tasks: Iterable[str], outputs: Sequence[OutputShape]) -> list[StoredChunk]:
        """The chunks that these tasks have stored, including tasks that died."""
        begin = tuple(f"{task}-" for task in tasks)
        found = (self._read(name, outputs) for name, _ in self._results.list() if name.startswith(begin))
        return [stored for stored, _ in filter(None, found)]

    def found(
        self, outputs: Sequence[OutputShape], has_records: Callable[[Position], bool] = lambda _: True
    ) -> list[StoredChunk]:
        """The complete chunks of earlier runs that fit these outputs; all others are deleted.

        `has_records` says whether an input still has the records up to a position. If not, a chunk may be the result of
        other records at the same offsets.
        """
        whole: list[StoredChunk] = []
        for name, _ in list(self._results.list()):
            found = self._read(name, outputs)
            if found is not None and self._results.is_whole(found[1]) and _is_current(found[1], has_records):
                whole.append(found[0])
            else:
                self._results.delete(name)
        self._sweep(whole)
        return whole

    def entries(self, stored: StoredChunk) -> ChunkEntries:
        """The keys of a stored chunk, with signatures and attempts."""
        try:
            batch = self._results.get(stored.id, self._key(stored.id)).batch
        except DamagedDocument as error:
            raise StorageError(f"a stored result cannot be used: {error}", hint=_AGAIN) from error
        hashes = Hashes.joined([]) if stored.called is None else stored.called.read()
        high, low, attempts = (column.to_numpy() for column in batch.columns)
        return ChunkEntries(hashes, Hashes(high, low), attempts)

    def _read(self, name: str, outputs: Sequence[OutputShape]) -> tuple[StoredChunk, StoredResult] | None:
        """A stored chunk; None if it is damaged, was removed, or does not fit these outputs."""
        try:
            result = self._results.get(name, self._key(name))
        except (DamagedDocument, ObjectNotFound):
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
        result: StoredResult,
        layouts: tuple[Layout | None, ...],
        undecided: tuple[pa.Schema | None, ...],
    ) -> StoredChunk:
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
        return StoredChunk(
            id=name,
            outputs=tuple(rows(fact["file"]) for fact in facts["outputs"]),
            layouts=layouts,
            undecided=undecided,
            called=hashes(facts["called"]),
            gone=hashes(facts["gone"]),
            failures=failures and FailuresFile(self._results.file_key(failures), result.files[failures][0]),
            failed=facts["failed"],
            objects=self.objects,
        )

    # Removing

    def discard(self, stored: Iterable[StoredChunk]) -> None:
        """Remove these chunks. The descriptors go first, so that no incomplete chunk can be read."""
        chunks = list(stored)
        for s in chunks:
            self._results.delete(s.id)
        for s in chunks:
            for name in s.file_sizes:
                self.objects.store.delete(self._results.file_key(name))

    def clear(self) -> None:
        """Remove all stored chunks of all versions."""
        infos = list(self.objects.store.list(self._root))
        for info in sorted(infos, key=lambda info: "/done/" not in info.key):
            self.objects.store.delete(info.key)

    def _sweep(self, whole: Sequence[StoredChunk]) -> None:
        """Remove files that no chunk names; a crash left them.

        Only on a disk, where a lock excludes other runs: in a bucket the files may belong to an active run.
        """
        if not self.objects.is_local:
            return
        named = {name for s in whole for name in s.file_sizes}
        for info in list(self.objects.store.list(f"{self._root}/{self._name}")):
            folder, _, name = info.key.rpartition("/")
            if not folder.endswith("/done") and name not in named:
                self.objects.store.delete(info.key)


def _is_current(result: StoredResult, has_records: Callable[[Position], bool]) -> bool:
    return all(has_records(Position.parse(text)) for text in result.facts["read"])


_COLUMNS = ["signature_high", "signature_low", "attempts"]
_IDENTITY = ("name", "key", "keys", "event_time")
_FileFacts: TypeAlias = tuple[str, list[int]]  # the name of a sorted file, and its rows by bucket


def _facts(stored: StoredChunk, outputs: Sequence[OutputShape]) -> dict[str, Any]:
    """The descriptor of a stored chunk."""
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
    """The properties of an output that stored results must agree with."""
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
