"""The commit of a refresh: rows, positions and the view's note become visible in one move of the head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from floodmark.chain.events import SetDataSchema
from floodmark.chain.ids import Multihash
from floodmark.derive.commit import (
    CommitMoves,
    KeyResults,
    QueryResult,
    commit_results,
    commit_whole_result,
    complete_columns,
    write_hashes,
    write_results,
)
from floodmark.derive.positions import find_chain_moves
from floodmark.engine.progress import Progress
from floodmark.engine.session import Runtime
from floodmark.errors import CommitConflict
from floodmark.ledger.append import WriteResult
from floodmark.ledger.commit import Commit
from floodmark.ledger.data_input import SparkData, StreamData, TableData
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.parts import PART_BYTES
from floodmark.ledger.schema import Layout
from floodmark.ledger.staging import discard_remote, stage
from floodmark.ledger.strategy import Strategy
from floodmark.rows.buckets import SortTask, sort_part
from floodmark.rows.row_hash import hash_rows
from floodmark.storage.scratch import SortedFile
from floodmark.views.functions import Failures
from floodmark.views.operator_state import StateFiles
from floodmark.views.snapshot import ViewNote, ViewSnapshot, has_name


@dataclass(frozen=True)
class NoteFiles:
    """The files that the note of a refresh names."""

    failures: Failures = field(default_factory=Failures)
    states: StateFiles = field(default_factory=StateFiles)

    def put(self, objects: DatasetObjects) -> None:
        """Store them durably."""
        self.failures.put(objects)
        self.states.put(objects)


def discard_files(names: Iterable[str], objects: DatasetObjects) -> None:
    """Delete files that the newest note no longer names; call it after the commit."""
    for name in names:
        objects.store.delete(objects.checkpoint_key(Multihash.parse(name)))


@dataclass(frozen=True)
class ViewPublisher:
    """Commits a refresh on top of the snapshot it was computed from; `CommitConflict` if another writer was first."""

    view_snapshot: ViewSnapshot
    runtime: Runtime
    folder: Path  # for unfinished files
    progress: Progress
    cache: dict[str, Any] = field(repr=False)  # the open parts of the view's key index

    def publish_some(self, answer: QueryResult, keys: pa.Table, note: ViewNote, files: NoteFiles) -> Commit:
        """Replace the rows of these keys (values of T) with the result; all other rows stay."""
        layout, objects = self.view_snapshot.layout, self.view_snapshot.snapshot.objects
        strategy = self.view_snapshot.stored.strategy
        names = list(strategy.lookup)
        typed = keys.select(names).cast(pa.schema([layout.data.field(name) for name in names]))
        processed = write_hashes(hash_rows(typed, names), self.folder, objects, self._prefix)
        try:
            rows = self._sorted(complete_columns(answer, layout), layout, strategy)
            return self._written(commit_results, KeyResults(rows, [processed]), note, files)
        finally:
            discard_remote(objects, self.folder)

    def publish_all(self, answer: QueryResult, note: ViewNote, files: NoteFiles) -> Commit:
        """Make the result the whole content of the view; only the differences are written."""
        whole = complete_columns(answer, self.view_snapshot.layout)
        return self._written(commit_whole_result, whole, note, files)

    def publish_nothing(self, note: ViewNote, files: NoteFiles) -> Commit:
        """Commit new positions and a new watermark without changing rows."""
        return self._written(commit_results, KeyResults((), ()), note, files)

    def _written(
        self, way: Callable[..., WriteResult], what: QueryResult | KeyResults, note: ViewNote, files: NoteFiles
    ) -> Commit:
        view_snapshot, moved = self.view_snapshot, self._moves(note, files)
        written = way(view_snapshot.name, self.runtime, view_snapshot.snapshot, what, moved, self.progress, self.cache)
        if view_snapshot.note is not None:
            discard_files(view_snapshot.note.files - note.files, view_snapshot.snapshot.objects)
        return written.commit

    @property
    def _prefix(self) -> str:
        return f"{self.view_snapshot.snapshot.objects.folder}/staging/{self.folder.name}"

    def _sorted(self, answer: QueryResult, layout: Layout, strategy: Strategy) -> list[SortedFile]:
        """The rows, written to files by ranges of the hashes of T, with little of them in memory at a time."""
        objects = self.view_snapshot.snapshot.objects
        match answer:
            case TableData(table):
                tables = iter([table] if table.num_rows else [])
            case StreamData(reader):
                tables = batch_tables(reader)
            case SparkData():
                staged = stage(answer, layout, self.folder, objects, self.runtime)
                tasks = [SortTask(part, layout, strategy, self.folder, objects) for part in staged.parts]
                return list(staged.run(tasks, sort_part))
        return [write_results(table, layout, strategy, self.folder, objects, self._prefix) for table in tables]

    def _moves(self, note: ViewNote, files: NoteFiles) -> CommitMoves:
        snapshot, objects = self.view_snapshot.snapshot, self.view_snapshot.snapshot.objects

        def put() -> None:
            if not has_name(self.view_snapshot):
                raise CommitConflict(
                    f"view {self.view_snapshot.name!r} was replaced meanwhile", hint="refresh it again"
                )
            files.put(objects)
            note.put(objects)

        columns = (
            []
            if self.view_snapshot.layout == snapshot.layout
            else [SetDataSchema(schema=self.view_snapshot.layout.to_odf())]
        )
        return CommitMoves(
            inputs=find_chain_moves(
                snapshot.state.inputs, note.positions, [source.given for source in self.view_snapshot.sources]
            ),
            definitions=tuple(columns),
            checkpoint=note.checkpoint,
            put=put,
            watermark=self.view_snapshot.watermark,
        )


def _table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


def batch_tables(reader: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """The rows of a stream in tables of bounded size."""
    batches: list[pa.RecordBatch] = []
    size = 0
    for batch in reader:
        batches.append(batch)
        size += batch.nbytes
        if size >= PART_BYTES:
            yield pa.Table.from_batches(batches)
            batches, size = [], 0
    if sum(batch.num_rows for batch in batches):
        yield pa.Table.from_batches(batches)
