"""The columns of a view that functions compute: their values, and the rows whose function failed.

Values are stored in checkpoints by the offsets of the input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.chain.ids import DatasetId, Multihash
from floodmark.columns import catalog as catalogs
from floodmark.columns import row_errors
from floodmark.columns.catalog import FRAGMENT_ROWS, ColumnObjects
from floodmark.columns.checkpoint_values import FunctionValues
from floodmark.columns.function_values import compute_function_values, function_prefix
from floodmark.columns.garbage import UsedCheckpoints
from floodmark.columns.plan import BackfillOptions
from floodmark.derive.inputs import InputSnapshot
from floodmark.engine.progress import Progress
from floodmark.engine.rounds import TaskRunner
from floodmark.engine.session import Runtime
from floodmark.errors import BadMeta, ObjectNotFound
from floodmark.functions.udf import Udf
from floodmark.ledger import names
from floodmark.ledger.create import dataset_objects
from floodmark.ledger.data_input import SparkData, StreamData, TableData
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.parts import Part
from floodmark.ledger.schema import Layout
from floodmark.ledger.snapshot import Snapshot, load_snapshot
from floodmark.ledger.staging import incoming_schema, stage
from floodmark.storage.arrays import I64
from floodmark.storage.parquet import Vocabulary
from floodmark.storage.pointer import read_consistently
from floodmark.views.analysis import OFFSET_COLUMN, InputUse
from floodmark.views.definition import UdfColumn
from floodmark.views.snapshot import read_note
from floodmark.views.sources import ViewInputSnapshot
from floodmark.views.stored_definition import read_stored_view


@dataclass(frozen=True)
class ComputedResult:
    """A query result with the columns of functions, and the counts of calls and errors."""

    answer: TableData | StreamData
    offsets: I64  # of the input's rows, sorted, distinct
    values: Mapping[str, FunctionValues]

    @property
    def called(self) -> int:
        return sum(v.called for v in self.values.values())

    @property
    def reused(self) -> int:
        return sum(v.reused for v in self.values.values())

    @property
    def carried(self) -> int:
        return sum(v.carried for v in self.values.values())

    @property
    def failed(self) -> int:
        """The number of values that are missing because of an error, in this run or before."""
        return sum(errors.num_rows for errors in self.errors.values())

    @property
    def errors(self) -> dict[str, pa.Table]:
        """The errors of the rows, by column."""
        return {column: v.errors for column, v in self.values.items()}


@dataclass(frozen=True)
class FunctionColumns:
    """Computes the columns of functions for rows of one input."""

    source: ViewInputSnapshot
    functions: Sequence[tuple[UdfColumn, Udf]]
    kept_in: DatasetObjects  # of the view
    options: BackfillOptions
    runner: TaskRunner
    runtime: Runtime
    folder: Path  # for unfinished files
    progress: Progress

    def complete(self, answer: TableData | SparkData) -> ComputedResult:
        """Add the function values to a result. A large result is staged in files and becomes a stream."""
        if isinstance(answer, TableData):
            offsets = np.unique(answer.table.column(OFFSET_COLUMN).to_numpy())
            computed = self._values(offsets)
            return ComputedResult(TableData(_with_values(answer.table, computed)), offsets, computed)
        parts = self._staged(answer)
        nothing = np.empty(0, np.int64)
        offsets = np.unique(
            np.concatenate([nothing, *[part.load().column(OFFSET_COLUMN).to_numpy() for part in parts]])
        )
        computed = self._values(offsets)
        schema = _with_values(incoming_schema(answer).empty_table(), computed).schema
        batches = pa.RecordBatchReader.from_batches(schema, _completed(parts, computed, schema))
        return ComputedResult(StreamData(batches), offsets, computed)

    def _staged(self, answer: SparkData) -> Sequence[Part]:
        """Write Spark's result to files once, so that functions are called only for the offsets in it."""
        layout = Layout(Vocabulary(), None, incoming_schema(answer))
        return stage(answer, layout, self.folder, self.kept_in, self.runtime).parts

    def _values(self, offsets: I64) -> dict[str, FunctionValues]:
        if not len(offsets):
            return {}
        column_snapshot = self.source.for_columns
        kept_in = ColumnObjects(self.kept_in)
        with self.source.given.raise_if_input_moved():
            return {
                column.name: compute_function_values(
                    column_snapshot,
                    column.field,
                    udf,
                    column.inputs,
                    offsets,
                    kept_in,
                    self.options,
                    self.runner,
                    self.progress,
                )
                for column, udf in self.functions
            }


def _completed(
    parts: Sequence[Part], computed: Mapping[str, FunctionValues], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for part in parts:
        yield from _with_values(part.load(), computed).select(schema.names).cast(schema).to_batches()


def _with_values(table: pa.Table, computed: Mapping[str, FunctionValues]) -> pa.Table:
    offsets = table.column(OFFSET_COLUMN).to_numpy()
    for name, column in computed.items():
        table = table.append_column(pa.field(name, column.column.type), column.take(offsets))
    return table


# Errors of failed rows

FAILURE_SCHEMA = pa.schema([pa.field("column", pa.string(), nullable=False), *row_errors.SCHEMA])
NO_FAILURES = pa.Table.from_batches([], FAILURE_SCHEMA)


@dataclass(frozen=True)
class Failures:
    """The errors of all failed rows: the view's column, the offset in its input, and the error."""

    table: pa.Table = field(default_factory=lambda: NO_FAILURES)

    @property
    def name(self) -> str | None:
        """The name of its file; None if there are no errors."""
        return Multihash.sha3_256(self._bytes).text if self.table.num_rows else None

    @property
    def _bytes(self) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, FAILURE_SCHEMA) as writer:
            writer.write_table(self.table.combine_chunks())
        return bytes(sink.getvalue().to_pybytes())

    @property
    def offsets(self) -> I64:
        """The offsets of the rows with an error, sorted, distinct."""
        return np.unique(self.table.column("offset").to_numpy())

    def offsets_of(self, column: str) -> I64:
        """The offsets of the rows with an error in one column."""
        mine = self.table.filter(pc.equal(self.table.column("column"), column))
        offsets: I64 = mine.column("offset").to_numpy()
        return offsets

    def put(self, objects: DatasetObjects) -> None:
        """Store the errors durably, if there are any."""
        if self.name is not None:
            objects.store.put_if_absent(objects.checkpoint_key(Multihash.parse(self.name)), self._bytes)

    def carried_to(self, moved: Callable[[I64], I64]) -> Failures:
        """The same errors at the offsets to which purges carried their rows."""
        place = self.table.schema.get_field_index("offset")
        offsets = pa.array(moved(self.table.column("offset").to_numpy()))
        return Failures(self.table.set_column(place, self.table.schema.field(place), offsets))

    def without(self, offsets: I64) -> Failures:
        """The errors of all other rows."""
        return Failures(self.table.filter(pa.array(~np.isin(self.table.column("offset").to_numpy(), offsets))))

    def joined(self, others: Mapping[str, pa.Table]) -> Failures:
        """Add the errors of more rows, by the view's column; sorted by offset."""
        together = pa.concat_tables([self.table, *[_of_column(column, table) for column, table in others.items()]])
        return Failures(together.sort_by([("offset", "ascending"), ("column", "ascending")]))


def _of_column(column: str, errors: pa.Table) -> pa.Table:
    names = pa.repeat(pa.scalar(column), errors.num_rows)
    return pa.Table.from_arrays([names, *errors.cast(row_errors.SCHEMA).columns], schema=FAILURE_SCHEMA)


def load_failures(view: str, name: str | None, objects: DatasetObjects) -> Failures:
    """Read the errors from the file with this name; `BadMeta` if it is missing or damaged."""
    if name is None:
        return Failures()
    digest = Multihash.parse(name)
    try:
        data = objects.store.get(objects.checkpoint_key(digest))
    except ObjectNotFound as error:
        raise _bad_failures(view, name, "is missing") from error
    if Multihash.sha3_256(data) != digest:
        raise _bad_failures(view, name, "was changed or damaged")
    return Failures(pa.ipc.open_stream(data).read_all())


def read_errors(view: str, snapshot: Snapshot) -> pa.Table:
    """The errors of the rows of a view that have no value."""
    objects = snapshot.objects

    def errors(now: Snapshot) -> pa.Table:
        note = read_note(view, now)
        return NO_FAILURES if note is None else load_failures(view, note.errors, objects).table

    return read_consistently(  # a refresh may replace the file during the read
        lambda: load_snapshot(objects, objects.read_head() or snapshot.head, {}),
        errors,
        lambda now: objects.read_head() not in (None, now.head),
        replaced=(BadMeta,),
    )


def _bad_failures(view: str, name: str, problem: str) -> BadMeta:
    return BadMeta(
        f"the list of errors of view {view!r} {problem}",
        hint=f"restore the file from a backup of the dataset, or drop {view!r} and declare it again",
        file=name,
        dataset=view,
    )


def used_checkpoints(snapshot: Snapshot, name: str) -> tuple[UsedCheckpoints, ...]:
    """The stored function values that a view uses; empty if it is not a view, was replaced, or lost its input.

    `name` is where its own entry is looked for first.
    """
    view = read_stored_view(snapshot.state)
    if view is None or not view.definition.udfs or _was_replaced(snapshot, name):
        return ()
    [use] = view.analysis.sources  # a view with functions has one input
    objects = dataset_objects(snapshot.objects.store, DatasetId.parse(use.dataset_id))
    head = objects.read_head()
    if head is None:
        return ()
    read_before = _read_before(snapshot, use)  # the next refresh may carry over values of records current until then
    source = InputSnapshot(use.alias, use.dataset_id, load_snapshot(objects, head, {}), stop=read_before)
    catalog = catalogs.load(ColumnObjects(objects))
    return tuple(
        UsedCheckpoints(
            function_prefix(catalog, use.dataset_id, udf.field, udf.function.name, udf.function.version, udf.inputs),
            FRAGMENT_ROWS,
            source.dead,
            source.purged_before,
        )
        for udf in view.definition.udfs
    )


def _read_before(snapshot: Snapshot, use: InputUse) -> int | None:
    """The end of what the last refresh of a view read; None if that is not known."""
    try:
        note = read_note(use.alias, snapshot)
    except BadMeta:
        return None
    return 0 if note is None else note.positions.get(use.dataset_id, -1) + 1


def _was_replaced(snapshot: Snapshot, name: str) -> bool:
    """Whether this is the replaced dataset of a view, which is not refreshed any more."""
    store, dataset_id = snapshot.objects.store, snapshot.state.dataset_id
    likely = names.read_entry(store, name)
    if likely is not None and likely.rows_of is None and dataset_id in (likely.id, likely.pending):
        return False  # all other names are read only for a dataset that was renamed or replaced
    named = [entry for entry in names.all_entries(store) if dataset_id in (entry.id, entry.pending)]
    return bool(named) and all(entry.rows_of is not None for entry in named)
