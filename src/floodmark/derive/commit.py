"""Commit the results of a step or a view: data, input positions and checkpoint in one transaction.

A commit never rebases, because the results belong to the positions that it moves. If the head has moved, it raises
`CommitConflict`, and the caller plans again.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.chain.events import (
    ROUTINE_EVENTS,
    AddData,
    Checkpoint,
    DatasetKind,
    MetadataEvent,
    Nanos,
    SetDataSchema,
)
from floodmark.chain.ids import DatasetId, Multihash
from floodmark.engine.progress import Progress
from floodmark.engine.run import run_on_spark
from floodmark.engine.session import Runtime
from floodmark.errors import CommitConflict, MissingColumns, NoSchema, ReadOnlyDataset, TypeMismatch
from floodmark.ledger.append import WriteResult
from floodmark.ledger.block_attributes import BatchTally
from floodmark.ledger.casting import can_cast, cast_columns, check_event_times
from floodmark.ledger.commit import (
    PlannedBlock,
    TransformMoves,
    data_events,
    empty_event,
    ends_transaction,
    plan_blocks,
    transform_events,
    unchanged_commit,
)
from floodmark.ledger.create import derived_layout
from floodmark.ledger.data_input import Incoming, SparkData, StreamData, TableData
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.parts import PART_BYTES
from floodmark.ledger.schema import Layout, layout_from_odf, quote_name, vocabulary
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.staging import FEW_CORES, incoming_schema, thread_runner
from floodmark.ledger.strategy import Strategy, strategy_of
from floodmark.ledger.types import canonical_type, spark_schema
from floodmark.rows.buckets import BUCKETS, FileBucket, ResultBucket, SortedHashes, bucket_of, write_sorted
from floodmark.rows.classify import Batch, check_key, hash_batch
from floodmark.rows.fold import fold_if_due
from floodmark.rows.key_index import KeyIndex
from floodmark.rows.merge import UNPACKED_RATIO, BatchBuckets, BatchIntake, KeyedWrite, PreparedMerge
from floodmark.storage.arrays import Hashes
from floodmark.storage.scratch import SortedFile, explain_write_errors

SLICE_BYTES = PART_BYTES
"""The approximate size of a slice of results, rows that the results repeat included."""

LOCAL_MERGE_ROWS = 1 << 20
"""Up to this many rows and processed keys, threads of this process merge; above it Spark does, if it has more cores."""


def _put_nothing() -> None:
    pass


@dataclass(frozen=True)
class CommitMoves:
    """The events of a commit besides its records: definitions, input positions, checkpoint, watermark."""

    inputs: Mapping[DatasetId, tuple[Multihash, int | None]] = field(default_factory=dict)
    """Per input that moved: the block, and the offset of the last record that was read (inclusive)."""
    definitions: tuple[MetadataEvent, ...] = ()
    checkpoint: Checkpoint | None = None
    put: Callable[[], None] = _put_nothing
    """Writes the files of the checkpoint durably; called before any block is written."""
    watermark: Nanos | None = None


def commit_results(
    name: str,
    runtime: Runtime,
    snapshot: Snapshot,
    results: KeyResults,
    moves: CommitMoves,
    progress: Progress,
    cache: dict[str, Any],
) -> WriteResult:
    """Commit the results of some keys on top of a snapshot, in one move of its head.

    Rows of the processed keys that are missing from the results are retracted; unchanged rows are not written. Raises
    `CommitConflict` if the head has moved. If no row and no position changed, no block is written and the head stays.
    """
    merge = _DeriveResults(name, runtime, TableData(pa.table({})), None, progress, cache, moves=moves, results=results)
    return _fold_after(name, runtime, cache, merge.run(snapshot))


def commit_whole_result(
    name: str,
    runtime: Runtime,
    snapshot: Snapshot,
    data: Incoming,
    moves: CommitMoves,
    progress: Progress,
    cache: dict[str, Any],
) -> WriteResult:
    """Commit a result that replaces the whole content of the output: rows missing from it are retracted."""
    merge = _Derive(name, runtime, data, None, progress, cache, kind="snapshot", moves=moves)
    return _fold_after(name, runtime, cache, merge.run(snapshot))


def evolve_layout(
    name: str, layout: Layout, schema: pa.Schema, key: Collection[str] = ()
) -> tuple[Layout, list[MetadataEvent]]:
    """The layout with the columns of `schema` added, and the event that adds them; no event if no column is new.

    A result may bring new columns. Columns that it omits stay, and are null in its rows; a column of the key or without
    nulls cannot be omitted. It cannot change the type of a column, because older records have it.
    """
    hint = "return it as before, or drop the output (lake.drop) so that the step creates it again, or name another one"
    for known in layout.data:
        at = schema.get_field_index(known.name)
        if at < 0 and known.nullable and known.name not in (*key, layout.event_time):
            continue
        if at < 0:
            message = f"the result for {name!r} has no column {known.name!r} any more, and it must have a value"
            raise MissingColumns(message, hint=hint, columns=[known.name])
        if not can_cast(schema.field(at).type, known.type):
            message = f"column {known.name!r} of {name!r} is {known.type}, the result has {schema.field(at).type}"
            raise TypeMismatch(message, hint=hint, column=known.name)
    added = [
        pa.field(f.name, canonical_type(f.type, f.name)) for f in schema if layout.data.get_field_index(f.name) < 0
    ]
    if not added:
        return layout, []
    new = layout.with_fields(added)
    return new, [SetDataSchema(schema=new.to_odf())]


QueryResult = TableData | StreamData | SparkData
"""The result rows of a query or step, by column name; missing columns are null."""


def describe_column_changes(name: str, before: Layout | None, columns: Collection[str]) -> list[str]:
    """Which columns a result adds to an output that had others, and which it lacks."""
    if before is None:
        return []
    known, now = dict.fromkeys(before.data.names), set(columns)
    return [
        *(f"{name} has the new column {added!r}, null in older rows" for added in columns if added not in known),
        *(f"{name} keeps the column {gone!r}, null in new rows" for gone in known if gone not in now),
    ]


def complete_columns(answer: QueryResult, layout: Layout) -> QueryResult:
    """The same rows with exactly the columns of the layout; columns that the result no longer has are null."""
    match answer:
        case TableData(table):
            return TableData(fill_columns(table, layout.data))
        case StreamData(reader):
            schema = pa.schema([_typed(f, reader.schema) for f in layout.data])
            tables = (fill_columns(pa.Table.from_batches([batch]), layout.data) for batch in reader)
            batches = (batch for table in tables for batch in table.to_batches())
            return StreamData(pa.RecordBatchReader.from_batches(schema, batches))
        case SparkData(frame):
            from pyspark.sql.functions import lit

            types = {field.name: field.dataType for field in spark_schema(layout.data).fields}
            present = set(frame.columns)
            columns = [
                frame[quote_name(f.name)] if f.name in present else lit(None).cast(types[f.name]).alias(f.name)
                for f in layout.data
            ]
            return SparkData(frame.select(*columns))


def fill_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with exactly the columns of a schema, those that it lacks as nulls."""
    present = set(table.column_names)
    columns = [table.column(f.name) if f.name in present else pa.nulls(table.num_rows, f.type) for f in schema]
    return pa.Table.from_arrays(columns, schema=pa.schema([_typed(f, table.schema) for f in schema]))


def _typed(field: pa.Field, schema: pa.Schema) -> pa.Field:
    """A column with the type that the rows have; a later cast raises the right error."""
    at = schema.get_field_index(field.name)
    return (field if at < 0 else schema.field(at)).with_nullable(True)


def _fold_after(name: str, runtime: Runtime, cache: dict[str, Any], written: WriteResult) -> WriteResult:
    if written.commit.rows:
        fold_if_due(name, written.snapshot, cache, runtime)
    return written


@dataclass
class _Derive(KeyedWrite):
    """A transaction of a step or view. It is not repeated on a new head: the caller plans again.

    It is a `KeyedWrite` (rows/merge.py) with its own check of the dataset, run, layout, events and description of the
    commit. How rows become slices (`_prepare`, `_commit`) is the same.
    """

    moves: CommitMoves = field(default_factory=CommitMoves)

    def _check_takes_data(self, snapshot: Snapshot) -> None:
        if snapshot.state.dataset_kind is not DatasetKind.DERIVATIVE:
            raise ReadOnlyDataset(
                f"dataset {self.name!r} is written by users or sources and cannot be the output of a transform",
                hint="declare an output with another name",
            )

    def _run(self, snapshot: Snapshot, folder: Path) -> WriteResult:
        objects = snapshot.objects
        intake = BatchIntake(self.data, objects, self.runtime, folder)
        prepared = self._prepare(snapshot, intake, None)
        with objects.turn():
            if prepared is not None and objects.read_head() == snapshot.head:
                done = self._commit(snapshot, prepared)
                if done is not None:
                    return done
        raise CommitConflict(
            f"another commit moved the head of {self.name!r} after its step planned this run; nothing was committed",
            hint="run the step again: it plans from the new head",
        )

    def _layout(self, snapshot: Snapshot) -> tuple[Layout, list[MetadataEvent]]:
        """The layout after the definitions; if nothing has defined the columns, the layout of the first result."""
        definitions = list(self.moves.definitions)
        _, state = plan_blocks(snapshot.state, definitions, self._system_time(snapshot))
        if state.schema is not None:
            return layout_from_odf(state.schema, vocabulary(state.vocab)), definitions
        layout, first = self._first_layout(snapshot)
        return layout, [*definitions, *first]

    def _first_layout(self, snapshot: Snapshot) -> tuple[Layout, list[MetadataEvent]]:
        if isinstance(self.data, TableData) and not self.data.table.num_columns:
            raise self._nothing()
        return derived_layout(incoming_schema(self.data), strategy_of(snapshot.state), snapshot.state.vocab)

    def _events(self, snapshot: Snapshot, prepared: PreparedMerge) -> list[MetadataEvent]:
        files = [m.file for m in prepared.merged_slices]
        _, state = plan_blocks(snapshot.state, prepared.definitions, prepared.system_time)
        moves = self.moves
        if state.dataset_kind is DatasetKind.ROOT:  # users write to it, too: their blocks name no new checkpoint
            written: list[AddData] = data_events(state, files, None, prepared.tally)
            if not written and (moves.checkpoint is None or moves.checkpoint.physical_hash == state.checkpoint):
                return []
            moves.put()
            *others, last = written or [empty_event(state)]
            return [*prepared.definitions, *others, replace(last, new_checkpoint=moves.checkpoint)]
        moved = TransformMoves(moves.inputs, moves.checkpoint, moves.watermark)
        events = transform_events(state, files, moved)
        if files and not ends_transaction(events[-1]):
            # Readers of the past must see where a transaction ends, and no other event of this one marks its end.
            note = _note(state.next_offset, prepared.tally)
            moved = replace(moved, checkpoint=Checkpoint(Multihash.sha3_256(note), len(note)))
            events = transform_events(state, files, moved)
            snapshot.objects.store.put_if_absent(snapshot.objects.checkpoint_key(Multihash.sha3_256(note)), note)
        if events:
            moves.put()
        return [*prepared.definitions, *events]

    def _committed(self, planned: list[PlannedBlock], prepared: PreparedMerge, after: Snapshot) -> WriteResult:
        if not any(isinstance(block.event, ROUTINE_EVENTS) for _, _, block in planned):
            return WriteResult(unchanged_commit(after.head, after.head_block, after.state, prepared.tally), after)
        return super()._committed(planned, prepared, after)


@dataclass
class _DeriveResults(_Derive):
    """A transaction whose rows and processed keys are in files."""

    results: KeyResults = field(default_factory=lambda: KeyResults((), ()))
    kind: Any = "snapshot"  # the results are complete for the processed keys: their other rows are retracted

    def _check_takes_data(self, snapshot: Snapshot) -> None:
        """Any output of a step takes its results: rows of other keys stay."""

    def _first_layout(self, snapshot: Snapshot) -> tuple[Layout, list[MetadataEvent]]:
        if self.results.rows:
            raise NoSchema(
                f"the output {self.name!r} has no columns yet", hint="add a SetDataSchema to results that have rows"
            )
        # Keys without a single row: nothing is looked up, so no columns are needed.
        key = pa.schema([pa.field(column, pa.string()) for column in strategy_of(snapshot.state).key])
        return Layout(vocabulary(snapshot.state.vocab), None, key), []

    def _taken(
        self,
        snapshot: Snapshot,
        index: KeyIndex,
        intake: BatchIntake,  # noqa: ARG002  the rows are already in files
        layout: Layout,
        before: PreparedMerge | None,  # noqa: ARG002  a derived commit never rebases
    ) -> BatchBuckets:
        strategy = self._strategy(snapshot)
        results = self.results
        nothing = result_batch(pa.schema([f.with_nullable(True) for f in layout.data]).empty_table(), layout, strategy)
        rows = sum(sum(f.rows) for f in results.rows)
        keys = sum(sum(p.rows) for p in results.processed)
        # Estimate: one old row per key, or as many as its new result has. It only affects the size of slices.
        repeated = min(index.live_count, max(keys, rows))
        width = UNPACKED_RATIO * snapshot.size / max(snapshot.records, 1)
        buckets = result_buckets(results, nothing, repeated, width, SLICE_BYTES)
        if rows + keys <= LOCAL_MERGE_ROWS or (self.runtime.session.is_local and (os.cpu_count() or 1) <= FEW_CORES):
            return BatchBuckets(buckets, thread_runner())
        return BatchBuckets(buckets, partial(run_on_spark, session=self.runtime.session))


def _note(offset: int, tally: BatchTally) -> bytes:
    """The checkpoint of a transaction without its own: its first offset and its tally."""
    counts = {name: value for name, value in asdict(tally).items() if value}
    return json.dumps({"floodmark.dev/transaction": {"offset": offset, "tally": counts}}).encode()


@dataclass(frozen=True)
class KeyResults:
    """The results of a transform for some keys: its rows, and the hashes of all processed keys."""

    rows: Sequence[SortedFile]
    processed: Sequence[SortedHashes]


def write_results(
    table: pa.Table, layout: Layout, strategy: Strategy, folder: Path, objects: DatasetObjects, prefix: str
) -> SortedFile:
    """Cast, check and hash rows that a function returned, and write them by bucket.

    For a local dataset the file is in `folder`, otherwise it is an object under `prefix`.
    """
    return write_sorted(result_batch(table, layout, strategy), folder, objects, prefix)


def result_batch(table: pa.Table, layout: Layout, strategy: Strategy) -> Batch:
    """Cast, check and hash rows that a function returned."""
    where = "the result"
    data = cast_columns(table, layout, where)
    check_key(data, layout, strategy, where)
    if layout.event_time is not None:
        check_event_times(data.column(layout.event_time), layout.event_time, where)
    return hash_batch(data, layout, strategy, None)


def write_hashes(hashes: Hashes, folder: Path, objects: DatasetObjects, prefix: str) -> SortedHashes:
    """Write the hashes of processed keys by bucket, to the same location as `write_results`."""
    bucket = bucket_of(hashes)
    order = np.argsort(bucket, kind="stable")  # on bytes this is a counting sort
    pairs = np.empty((len(hashes), 2), "<u8")
    pairs[:, 0], pairs[:, 1] = hashes.high[order], hashes.low[order]
    counts = tuple(int(n) for n in np.bincount(bucket, minlength=BUCKETS))
    target = folder if objects.is_local else objects.store.staging()
    path = target / f"hashes-{uuid.uuid4().hex}"
    with explain_write_errors(f"{len(hashes):,} processed keys", target):
        pairs.tofile(path)
    if objects.is_local:
        return SortedHashes(str(path), None, counts)
    key = f"{prefix}/{path.name}"
    objects.store.put_file(key, path)
    return SortedHashes(key, objects.store, counts)


def result_buckets(
    results: KeyResults, nothing: Batch, repeated: int, old_width: float, largest: int
) -> list[ResultBucket]:
    """Combine neighbouring buckets until their new and repeated rows fill a slice of `largest` bytes.

    `repeated` is how many rows of the output all processed keys may have, and `old_width` the bytes of one such row.
    """
    files, processed = tuple(results.rows), tuple(results.processed)
    rows = np.sum([f.rows for f in files], axis=0) if files else np.zeros(BUCKETS, np.int64)
    keys = np.sum([p.rows for p in processed], axis=0) if processed else np.zeros(BUCKETS, np.int64)
    width = sum(f.size for f in files) / max(int(rows.sum()), 1)
    weights = rows * width + keys * (repeated / max(int(keys.sum()), 1) * old_width)
    buckets: list[ResultBucket] = []
    first, total = 0, 0.0

    def close(end: int) -> None:
        part = FileBucket(files, first, end) if files else None
        buckets.append(ResultBucket(part, nothing, processed, first, end))

    for bucket, weight in enumerate(weights.tolist()):
        if total and total + weight > largest:
            close(bucket)
            first, total = bucket, 0.0
        total += weight
    close(BUCKETS)
    return buckets
