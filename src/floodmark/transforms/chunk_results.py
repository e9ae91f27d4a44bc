"""The content of a stored chunk result: its rows by output, their keys, and the signature of each key's inputs.

Also the columns of outputs that tasks learn from the first results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from floodmark.derive.commit import KeyResults
from floodmark.errors import BadResult, UndecidedColumn, UnfitRows
from floodmark.functions.step_result import OutputShape
from floodmark.ledger.casting import can_cast, cast_columns
from floodmark.ledger.create import derived_layout
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.schema import Layout
from floodmark.ledger.strategy import Strategy
from floodmark.rows.buckets import SortedHashes
from floodmark.rows.classify import Batch
from floodmark.rows.row_hash import hash_rows
from floodmark.storage.arrays import Hashes
from floodmark.storage.scratch import SortedFile
from floodmark.transforms.outputs import explain_row_errors

Attempts = npt.NDArray[np.int32]


@dataclass(frozen=True)
class ChunkEntries:
    """The keys of a chunk result."""

    hashes: Hashes
    signature: Hashes  # of the input rows that the key's result depends on
    attempts: Attempts  # the number of the failed attempt; 0 if the key did not fail

    def __len__(self) -> int:
        return len(self.hashes)

    def take(self, at: Any) -> ChunkEntries:
        return ChunkEntries(self.hashes.take(at), self.signature.take(at), self.attempts[at])

    @staticmethod
    def joined(parts: Sequence[ChunkEntries]) -> ChunkEntries:
        attempts = np.concatenate([p.attempts for p in parts]) if parts else np.empty(0, np.int32)
        return ChunkEntries(
            Hashes.joined([p.hashes for p in parts]), Hashes.joined([p.signature for p in parts]), attempts
        )


@dataclass(frozen=True)
class ResultRows:
    """Rows of an output in its column types, with the hashes of their keys and of their transform keys."""

    table: pa.Table
    key: Hashes
    transform: Hashes

    @staticmethod
    def joined(parts: Sequence[ResultRows]) -> ResultRows:
        """All rows in this order; `parts` must not be empty."""
        key, transform = Hashes.joined([p.key for p in parts]), Hashes.joined([p.transform for p in parts])
        return ResultRows(pa.concat_tables([p.table for p in parts]), key, transform)

    def batch(self, shape: OutputShape) -> Batch:
        """The rows as a batch for files, with the hashes of whole rows."""
        row = hash_rows(self.table, self.table.column_names)
        return Batch(self.table, self.key, row, None if shape.is_keyed_by_transform else self.transform, None)


@dataclass(frozen=True)
class NewResults:
    """Results that are not stored yet."""

    rows: tuple[ResultRows | None, ...]  # by output
    entries: ChunkEntries
    gone: Hashes  # keys that were processed without a call
    failed: pa.Table | None
    undecided: tuple[pa.Schema | None, ...] = ()  # by output the columns of its rows, if some have no type yet


@dataclass(frozen=True)
class FailuresFile:
    """A stored file that has neither rows nor key hashes."""

    path: str
    size: int


@dataclass(frozen=True)
class StoredChunk:
    """One stored chunk result. It is sent between processes; its content stays in files."""

    id: str
    outputs: tuple[SortedFile | None, ...]  # None: no rows
    layouts: tuple[Layout | None, ...]  # of the rows of each output
    undecided: tuple[pa.Schema | None, ...]  # by output the columns of its rows, if some had no type yet
    called: SortedHashes | None
    gone: SortedHashes | None
    failures: FailuresFile | None
    failed: int
    objects: DatasetObjects = field(repr=False, compare=False)

    @property
    def task(self) -> str:
        """The id of the task that stored it."""
        return self.id.rpartition("-")[0]

    def without_gone(self) -> StoredChunk:
        """A copy without the gone keys."""
        return replace(self, gone=None)

    @property
    def processed(self) -> tuple[SortedHashes, ...]:
        """The hashes of all its keys: with results, failed or gone."""
        return tuple(hashes for hashes in (self.called, self.gone) if hashes is not None)

    @property
    def keys(self) -> int:
        """The number of keys with results, failed ones included."""
        return 0 if self.called is None else sum(self.called.rows)

    @property
    def gone_keys(self) -> int:
        return 0 if self.gone is None else sum(self.gone.rows)

    @property
    def size(self) -> int:
        """The bytes of its row files."""
        return sum(file.size for file in self.outputs if file is not None)

    @property
    def file_sizes(self) -> dict[str, int]:
        """The sizes of its files, by file name without the folder."""
        files = [file for file in (*self.outputs, *self.processed, self.failures) if file is not None]
        return {file.path.rpartition("/")[2]: file.size for file in files}

    def failed_table(self) -> pa.Table | None:
        """The failed keys with their errors; None if no key failed."""
        if self.failures is None:
            return None
        with pa.ipc.open_stream(self.objects.store.get(self.failures.path)) as reader:
            return reader.read_all()


def results(stored: Iterable[StoredChunk], output: int, replaced: Sequence[SortedHashes]) -> KeyResults:
    """The rows that these stored results have for one output, in the place of all rows of the replaced keys."""
    return KeyResults([file for s in stored if (file := s.outputs[output]) is not None], replaced)


def output_strategy(output: OutputShape) -> Strategy:
    """The merge strategy of an output: upsert, with rows found by their transform keys."""
    return Strategy("upsert", output.key, None, tuple(output.keys.names))


# Columns of outputs

SeenColumns = tuple[pa.Schema | None, ...]
"""By output the columns of its rows so far, while some have no type; None if there were no rows, or all are known."""


def undecided_columns(schema: pa.Schema) -> list[str]:
    """The names of the columns whose type is not known."""
    return [field.name for field in schema if _is_undecided(field.type)]


def _is_undecided(kind: Any) -> bool:
    if pa.types.is_null(kind):
        return True
    return any(_is_undecided(kind.field(n).type) for n in range(kind.num_fields)) if pa.types.is_nested(kind) else False


def join_columns(schemas: Sequence[pa.Schema | None], shape: OutputShape, function: str) -> pa.Schema | None:
    """The common columns of rows with these schemas; `BadResult` if the schemas do not fit together."""
    first, *others = [schema for schema in schemas if schema is not None] or [None]
    if first is None or all(schema.equals(first) for schema in others):
        return first
    for schema in others:
        if differing := set(schema.names) ^ set(first.names):
            name = min(differing)
            raise BadResult(
                f"{function!r} returns a column {name!r} for {shape.name!r} in some calls but not in others",
                hint="Return the same columns in every call, with nulls for missing values.",
                function=function,
                output=shape.name,
            )
    try:
        return pa.unify_schemas([first, *others], promote_options="permissive")
    except pa.ArrowException as error:
        raise BadResult(
            f"{function!r} returns columns of different types for {shape.name!r} in different calls: {error}",
            hint=f"Declare the types: OutputSpec({shape.name!r}, schema=…).",
            function=function,
            output=shape.name,
        ) from error


def with_learnt_columns(shape: OutputShape, columns: pa.Schema) -> OutputShape:
    """The output with these columns, which all have a type."""
    vocab = shape.vocab if shape.event_time is None else replace(shape.vocab, event_time=shape.event_time)
    with explain_row_errors(shape.name):
        layout, _ = derived_layout(columns, output_strategy(shape), vocab)
    return replace(shape, layout=layout)


def cast_to_layout(table: pa.Table, layout: Layout, output: str) -> pa.Table:
    """Cast rows to the types of the output. They were stored before all types were known, or with other types."""
    known = set(layout.data.names)
    fields = [layout.data.field(f.name) if pa.types.is_nested(f.type) and f.name in known else f for f in table.schema]
    return cast_columns(_cast(table, pa.schema(fields), output), layout, f"the first result for {output!r}")


def cast_rows(rows: ResultRows, shape: OutputShape, columns: pa.Schema | None) -> ResultRows:
    """Cast rows to the types of the output; if these are not known, to `columns`."""
    if shape.layout is not None:
        table = cast_to_layout(rows.table, shape.layout, shape.name)
    else:
        assert columns is not None  # rows have been seen
        table = _cast(rows.table.select(columns.names), columns, shape.name)
    if shape.is_keyed_by_transform or _types(table, shape.key) == _types(rows.table, shape.key):
        return ResultRows(table, rows.key, rows.transform)
    return ResultRows(table, hash_rows(table, shape.key), rows.transform)  # a hash depends on the type


def _cast(table: pa.Table, columns: pa.Schema, output: str) -> pa.Table:
    for at, target in enumerate(columns):
        column = table.column(at)
        if column.type.equals(target.type):
            continue
        try:
            table = table.set_column(at, target.name, column.cast(target.type))
        except pa.ArrowException as error:
            raise UnfitRows(
                f"the first results for {output!r} have {column.type} and {target.type} in {target.name!r}: {error}",
                hint=f"Declare the type: OutputSpec({output!r}, schema=…).",
                output=output,
                column=target.name,
            ) from error
    return table


def _types(table: pa.Table, names: Sequence[str]) -> list[Any]:
    return [table.schema.field(name).type for name in names]


def with_known_columns(outputs: tuple[OutputShape, ...], stored: Sequence[StoredChunk]) -> tuple[OutputShape, ...]:
    """The outputs; those without known columns get the columns of stored rows."""
    agreed = list(outputs)
    for s in stored:
        for n, layout in enumerate(s.layouts):
            if agreed[n].layout is None and layout is not None and s.outputs[n] is not None:
                agreed[n] = replace(agreed[n], layout=layout)
    return tuple(agreed)


def join_seen_columns(outputs: Sequence[OutputShape], seen: Sequence[SeenColumns], function: str) -> SeenColumns:
    """The common columns that several tasks or stored results have seen, for outputs without known columns."""
    return tuple(
        join_columns([each[n] for each in seen if each], shape, function) if shape.layout is None else None
        for n, shape in enumerate(outputs)
    )


def may_become(seen: pa.Schema, known: pa.Schema) -> bool:
    """Whether rows with these undecided columns can be cast to the known columns."""
    if set(seen.names) != set(known.names):
        return False
    return all(_is_undecided(field.type) or can_cast(field.type, known.field(field.name).type) for field in seen)


def undecided_column_error(shape: OutputShape, columns: pa.Schema, function: str) -> UndecidedColumn:
    """The error after all rows, if a column has no value and so no type."""
    name = undecided_columns(columns)[0]
    return UndecidedColumn(
        f"{function!r} returned no value in the column {name!r} of {shape.name!r} for any key: its type is not known",
        hint=f"Declare the type: OutputSpec({shape.name!r}, schema=…). The results are kept for the next run.",
        function=function,
        output=shape.name,
        column=name,
    )
