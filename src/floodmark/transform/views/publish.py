"""Committing a refresh: rows, positions and what the view notes of them become visible in one move of its head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from floodmark.chain.events import SetDataSchema
from floodmark.derive.positions import chain_moves
from floodmark.engine import Progress
from floodmark.ledger.commit import Commit
from floodmark.ledger.errors import CommitConflict
from floodmark.ledger.incoming import Batches, Frame, SparkFrame
from floodmark.ledger.keys.hashing import hash_rows
from floodmark.ledger.layout import Layout
from floodmark.ledger.merge.buckets import SortedFile, SortTask, sort_part
from floodmark.ledger.merge.derive import Moves, Results, derive, derive_snapshot, write_hashes, write_results
from floodmark.ledger.parts import PART_BYTES
from floodmark.ledger.runtime import Runtime
from floodmark.ledger.spark_types import spark_schema
from floodmark.ledger.stage import discard_remote, stage
from floodmark.ledger.strategy import Strategy
from floodmark.ledger.write import Written
from floodmark.transform.views.defined.definition import quoted
from floodmark.transform.views.failures import Failures
from floodmark.transform.views.note import Note
from floodmark.transform.views.pinned import PinnedView, is_in_place

Answer = Frame | Batches | SparkFrame
"""Rows that a query came to, with the view's columns by name; those that it lacks are null."""


@dataclass(frozen=True)
class Publisher:
    """Commits the refresh of a view on top of what was pinned; `CommitConflict` when somebody else was quicker."""

    pinned: PinnedView
    runtime: Runtime
    folder: Path  # for unfinished files
    progress: Progress
    cache: dict[str, Any] = field(repr=False)  # what is open of the view's key index

    def publish_some(self, answer: Answer, keys: pa.Table, note: Note, failures: Failures) -> Commit:
        """The rows of these keys (values of T) are those of the answer from now on; all others stay."""
        layout, objects = self.pinned.layout, self.pinned.snapshot.objects
        strategy = self.pinned.stored.strategy
        names = list(strategy.lookup)
        typed = keys.select(names).cast(pa.schema([layout.data.field(name) for name in names]))
        processed = write_hashes(hash_rows(typed, names), self.folder, objects, self._prefix)
        try:
            rows = self._sorted(completed(answer, layout), layout, strategy)
            return self._written(derive, Results(rows, [processed]), note, failures)
        finally:
            discard_remote(objects, self.folder)

    def publish_all(self, answer: Answer, note: Note, failures: Failures) -> Commit:
        """The answer is all that the view holds from now on; only what differs is written."""
        whole = completed(answer, self.pinned.layout)
        return self._written(derive_snapshot, whole, note, failures)

    def publish_nothing(self, note: Note, failures: Failures) -> Commit:
        """No row changes; positions and watermark do."""
        return self._written(derive, Results((), ()), note, failures)

    def _written(self, way: Callable[..., Written], what: Answer | Results, note: Note, failures: Failures) -> Commit:
        pinned, moved = self.pinned, self._moves(note, failures)
        written = way(pinned.name, self.runtime, pinned.snapshot, what, moved, self.progress, self.cache)
        failures.discard(None if pinned.note is None else pinned.note.errors, pinned.snapshot.objects)
        return written.commit

    @property
    def _prefix(self) -> str:
        return f"{self.pinned.snapshot.objects.folder}/staging/{self.folder.name}"

    def _sorted(self, answer: Answer, layout: Layout, strategy: Strategy) -> list[SortedFile]:
        """The rows in files by ranges of the hashes of T; a little of it in memory at a time."""
        objects = self.pinned.snapshot.objects
        match answer:
            case Frame(table):
                tables = iter([table] if table.num_rows else [])
            case Batches(reader):
                tables = gathered(reader)
            case SparkFrame():
                staged = stage(answer, layout, self.folder, objects, self.runtime)
                tasks = [SortTask(part, layout, strategy, self.folder, objects) for part in staged.parts]
                return list(staged.run(tasks, sort_part))
        return [write_results(table, layout, strategy, self.folder, objects, self._prefix) for table in tables]

    def _moves(self, note: Note, failures: Failures) -> Moves:
        snapshot, objects = self.pinned.snapshot, self.pinned.snapshot.objects

        def put() -> None:
            if not is_in_place(self.pinned):
                raise CommitConflict(f"view {self.pinned.name!r} was replaced meanwhile", hint="refresh it again")
            failures.put(objects)
            note.put(objects)

        columns = [] if self.pinned.layout == snapshot.layout else [SetDataSchema(schema=self.pinned.layout.to_odf())]
        return Moves(
            inputs=chain_moves(snapshot.state.inputs, note.positions, [source.given for source in self.pinned.sources]),
            definitions=tuple(columns),
            checkpoint=note.checkpoint,
            put=put,
            watermark=self.pinned.watermark,
        )


def completed(answer: Answer, layout: Layout) -> Answer:
    """The same rows with exactly the columns of the view: without a value in those that the query has no more."""
    match answer:
        case Frame(table):
            return Frame(_filled(table, layout.data))
        case Batches(reader):
            schema = pa.schema([_typed(f, reader.schema) for f in layout.data])
            batches = (batch for some in reader for batch in _filled(_table(some), layout.data).to_batches())
            return Batches(pa.RecordBatchReader.from_batches(schema, batches))
        case SparkFrame(frame):
            from pyspark.sql.functions import lit

            types = spark_schema(layout.data)
            there = set(frame.columns)
            columns = [
                frame[quoted(f.name)] if f.name in there else lit(None).cast(types[f.name].dataType).alias(f.name)
                for f in layout.data
            ]
            return SparkFrame(frame.select(*columns))


def _filled(table: pa.Table, wanted: pa.Schema) -> pa.Table:
    there = set(table.column_names)
    columns = [table.column(f.name) if f.name in there else pa.nulls(table.num_rows, f.type) for f in wanted]
    return pa.Table.from_arrays(columns, schema=pa.schema([_typed(f, table.schema) for f in wanted]))


def _typed(field: pa.Field, there: pa.Schema) -> pa.Field:
    """A column with the type that the rows have; casting them comes later, with the error that belongs to it."""
    return there.field(field.name).with_nullable(True) if field.name in there.names else field.with_nullable(True)


def _table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


def gathered(reader: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """The rows of a stream in tables of bounded size."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in reader:
        held.append(batch)
        size += batch.nbytes
        if size >= PART_BYTES:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if sum(batch.num_rows for batch in held):
        yield pa.Table.from_batches(held)
