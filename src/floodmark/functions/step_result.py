"""Convert a function's result for a chunk to rows of an output, and check columns, types and keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.errors import (
    BadColumnName,
    BadEventTime,
    BadResult,
    BadStep,
    MissingColumns,
    TypeMismatch,
    UnfitRows,
    UnknownColumns,
    UnsupportedType,
)
from floodmark.functions.frames import ReturnedFrame, restore_nan_keys
from floodmark.ledger.casting import cast_column, cast_columns, check_event_times
from floodmark.ledger.schema import Layout
from floodmark.ledger.types import canonical_type
from floodmark.rows.row_hash import hash_rows
from floodmark.storage.arrays import I64, Hashes
from floodmark.storage.parquet import Vocabulary

_SHOWN = 3  # keys that an error names


@dataclass(frozen=True)
class OutputShape:
    """The required form of an output's rows. `keys` are the transform keys, with which its key begins."""

    name: str
    key: tuple[str, ...]
    keys: pa.Schema
    layout: Layout | None
    """None before the first result, which defines the columns."""
    event_time: str | None = None
    vocab: Vocabulary = field(default_factory=Vocabulary)
    absent: frozenset[str] = frozenset()
    """Columns of the layout that this version of the step does not return. They are null in its rows."""
    adds_keys: bool = False
    """Whether its rows get the transform keys as columns: those of the only key of their call."""

    def __post_init__(self) -> None:
        for key in self.keys:
            # Rows are found by the hash of their transform keys, which depends on the types.
            at = -1 if self.layout is None else self.layout.data.get_field_index(key.name)
            if self.layout is not None and (at < 0 or not self.layout.data.field(at).type.equals(key.type)):
                had = "no such column" if at < 0 else str(self.layout.data.field(at).type)
                raise BadStep(
                    f"the transform key {key.name!r} is {key.type}, but the output {self.name!r} has {had}",
                    hint="Give the output that type: OutputSpec(…, schema=…).",
                    output=self.name,
                )

    @property
    def is_keyed_by_transform(self) -> bool:
        """Whether the output has at most one row for each transform key."""
        return set(self.key) == set(self.keys.names)


@dataclass(frozen=True)
class OutputRows:
    """Rows of one output with the hashes of their transform keys and of their own keys, which may be the same."""

    table: pa.Table
    transform: Hashes
    key: Hashes


@dataclass(frozen=True)
class ResultConverter:
    """Converts a function's results to rows of an output.

    Raises `BadResult` if the function is wrong for every key, and `UnfitRows` if only these rows are wrong.
    """

    function: str
    output: OutputShape

    @property
    def where(self) -> str:
        return f"the result of {self.function!r} for {self.output.name!r}"

    def rows(self, returned: ReturnedFrame, keys: pa.Table, hashes: Hashes) -> OutputRows:
        """The rows in the output's types. `keys` are the distinct keys that the function got, with their hashes."""
        if not returned.table.num_columns:
            return self.no_rows()
        if self.output.adds_keys:
            returned = replace(returned, table=_add_keys(returned.table, keys))
        self._check_key_columns(returned)
        table = self._in_layout(returned.table)
        for name in self.output.key:
            if name not in self.output.keys.names:
                self._check_no_nulls(table, name)
        own = restore_nan_keys(self._transform_keys(table), keys)
        table = _replace_keys(table, own)
        by_transform = self.output.is_keyed_by_transform
        if _equal(own, keys):  # one row for each key in the same order: the hashes are known
            return OutputRows(table, hashes, hashes if by_transform else hash_rows(table, self.output.key))
        transform = hash_rows(own, own.column_names)
        outside = np.flatnonzero(~transform.among(hashes))
        if len(outside):
            shown = _rows(own, outside)
            raise UnfitRows(
                f"{self.where} has {_count(len(outside), 'row')} of keys that it was not given: {_format_keys(shown)}",
                hint="Return only rows of the keys that the function gets, and do not change transform keys.",
                output=self.output.name,
                keys=shown,
            )
        key = transform if by_transform else hash_rows(table, self.output.key)
        repeated = key.repeated()
        if len(repeated):
            shown = _rows(table.select(list(self.output.key)), repeated)
            raise UnfitRows(
                f"{self.where} has {_count(len(repeated), 'row')} with a repeated key: {_format_keys(shown)}",
                hint=f"Return one row for each {', '.join(self.output.key)}, or extend OutputSpec(…, key=[…]).",
                output=self.output.name,
                keys=shown,
            )
        return OutputRows(table, transform, key)

    def no_rows(self) -> OutputRows:
        """An output without rows. Before the first result its only columns are the transform keys."""
        layout = self.output.layout
        empty = self.output.keys.empty_table()
        if layout is not None:
            empty = cast_columns(layout.data.empty_table(), layout, self.where)
        nothing = Hashes.joined([])
        return OutputRows(empty, nothing, nothing)

    def joined(self, parts: Sequence[OutputRows]) -> OutputRows:
        """Concatenate the rows of all parts."""
        some = [part for part in parts if len(part.transform)]
        if len(some) < 2:
            return some[0] if some else next(iter(parts), self.no_rows())
        tables = [part.table for part in some]
        try:
            # Parts of a first result may have different types for a column, such as null where all values are null.
            table = pa.concat_tables(tables, promote_options="none" if self.output.layout else "permissive")
        except pa.ArrowException as error:
            raise self._bad(
                f"{self.where} has columns of different types from call to call: {error}",
                "Set the types: OutputSpec(…, schema=…).",
            ) from error
        transform, key = Hashes.joined([p.transform for p in some]), Hashes.joined([p.key for p in some])
        joined = table.schema
        if any(part.field(name).type != joined.field(name).type for part in _schemas(some) for name in self.output.key):
            key = hash_rows(table, self.output.key)  # a hash depends on the type
        return OutputRows(table, transform, key)

    def _check_key_columns(self, returned: ReturnedFrame) -> None:
        layout = self.output.layout
        event_time = self.output.event_time if layout is None else layout.event_time
        needed = [*self.output.key, *([] if event_time is None else [event_time])]
        missing = [name for name in needed if name not in returned.table.column_names]
        if not missing:
            return
        indexed = [name for name in missing if name in returned.index]
        raise self._bad(
            f"{self.where} lacks {'columns' if len(missing) > 1 else 'the column'} {', '.join(map(repr, missing))}",
            f"Call .reset_index(): {indexed[0]!r} is the index of the frame, not a column."
            if indexed
            else f"Add every column of the output's key. The frame has {', '.join(returned.table.column_names)}.",
        )

    def _in_layout(self, table: pa.Table) -> pa.Table:
        layout = self.output.layout
        if layout is None:
            return self._canonical(table)
        for name in sorted(self.output.absent - set(table.column_names)):
            table = table.append_column(layout.data.field(name), pa.nulls(table.num_rows, layout.data.field(name).type))
        try:
            rows = cast_columns(_widen_columns(table, layout), layout, self.where)
            if layout.event_time is not None:
                check_event_times(rows.column(layout.event_time), layout.event_time, self.where)
        except UnknownColumns as error:
            hint = error.hint if "?" in error.hint else "Drop them in the function, or reset the step's output."
            raise self._bad(error.message, hint) from error
        except (BadColumnName, MissingColumns) as error:
            raise self._bad(error.message, error.hint) from error
        except (TypeMismatch, BadEventTime) as error:
            raise self._unfit(error, error.column) from error
        return rows

    def _canonical(self, table: pa.Table) -> pa.Table:
        """Cast columns to the types in which a dataset stores them. Columns of unsupported types stay unchanged."""
        for at, column_field in enumerate(table.schema):
            try:
                stored = canonical_type(column_field.type, column_field.name)
            except UnsupportedType:
                continue  # refused when the columns are defined; another result may have a supported type
            if not stored.equals(column_field.type):
                target = pa.field(column_field.name, stored)
                table = table.set_column(at, target, self._cast(table.column(at), target))
        return table.replace_schema_metadata(None)

    def _transform_keys(self, table: pa.Table) -> pa.Table:
        """The transform keys of the rows, with the names and types that their hashes depend on."""
        keys = self.output.keys
        columns = [self._cast(table.column(key.name), key) for key in keys]
        return pa.Table.from_arrays(columns, schema=_without_nullability(keys))

    def _cast(self, column: Any, target: pa.Field) -> Any:
        if column.type.equals(target.type):
            return column
        try:
            return cast_column(column, target, self.where)
        except TypeMismatch as error:
            raise self._unfit(error, target.name) from error

    def _check_no_nulls(self, table: pa.Table, name: str) -> None:
        nulls = table.column(name).null_count
        if nulls:
            raise UnfitRows(
                f"{self.where} has {_count(nulls, 'row')} without a value in the key column {name!r}",
                hint="Fill or drop them: every part of a key needs a value.",
                output=self.output.name,
                column=name,
            )

    def _unfit(self, error: TypeMismatch | BadEventTime, column: str | None) -> UnfitRows:
        hint = error.hint.removesuffix(".")
        if isinstance(error, TypeMismatch) and column not in self.output.keys.names:
            # The first rows defined the types, and they may have needed a narrower type.
            hint += f"; or drop the output and set its types: OutputSpec({self.output.name!r}, schema=…)"
        return UnfitRows(error.message, hint=hint, output=self.output.name, column=column)

    def _bad(self, message: str, hint: str) -> BadResult:
        return BadResult(message, hint=hint, function=self.function, output=self.output.name)


def _schemas(parts: Sequence[OutputRows]) -> list[pa.Schema]:
    return [part.table.schema for part in parts]


def _widen_columns(table: pa.Table, layout: Layout) -> pa.Table:
    """Widen columns whose type was inferred from incomplete values.

    A column of nulls may have any type (pandas uses float), and a struct lacks a member that no value has.
    """
    for at, given in enumerate(table.schema):
        layout_at = layout.data.get_field_index(given.name)
        if layout_at < 0:
            continue
        column, target = table.column(at), layout.data.field(layout_at).type
        if column.null_count == len(column) and not given.type.equals(target):
            table = table.set_column(at, given.name, pa.nulls(len(column), target))
        elif _lacks_members(given.type, target):
            table = table.set_column(at, given.name, _widen_struct(column, target))
    return table


def _lacks_members(given: Any, target: Any) -> bool:
    if not (pa.types.is_struct(given) and pa.types.is_struct(target)):
        return False
    return {f.name for f in given} < {f.name for f in target}


def _widen_struct(column: Any, target: Any) -> Any:
    chunks = []
    for chunk in column.chunks:
        present = [f.name for f in chunk.type]
        members = [chunk.field(f.name) if f.name in present else pa.nulls(len(chunk), f.type) for f in target]
        chunks.append(pa.StructArray.from_arrays(members, names=[f.name for f in target], mask=chunk.is_null()))
    return pa.chunked_array(chunks) if chunks else pa.chunked_array([], target)


def _add_keys(table: pa.Table, keys: pa.Table) -> pa.Table:
    """The rows that a call with one key returned, with this key before their own columns."""
    missing = [name for name in keys.column_names if name not in table.column_names]
    if not missing or keys.num_rows != 1:
        return table
    added = keys.select(missing).take(pa.array(np.zeros(table.num_rows, np.int64)))
    return pa.Table.from_arrays([*added.columns, *table.columns], schema=pa.schema([*added.schema, *table.schema]))


def _replace_keys(table: pa.Table, keys: pa.Table) -> pa.Table:
    for name in keys.column_names:
        at = table.schema.get_field_index(name)
        column, own = table.column(at), keys.column(name)
        if not column.type.equals(own.type) or column.null_count != own.null_count:
            table = table.set_column(at, keys.schema.field(name), keys.column(name))
    return table


def _equal(one: pa.Table, other: pa.Table) -> bool:
    """Whether the values are the same, whatever the nullability of the fields."""
    return one.num_rows == other.num_rows and all(one.column(n).equals(other.column(n)) for n in one.column_names)


def _without_nullability(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(f.name, f.type) for f in schema])


def _rows(table: pa.Table, at: I64) -> list[dict[str, object]]:
    shown: list[dict[str, object]] = table.take(pa.array(at[:_SHOWN])).to_pylist()
    return shown


def _format_keys(keys: list[dict[str, object]]) -> str:
    return "; ".join(", ".join(f"{name}={value!r}" for name, value in key.items()) for key in keys)


def _count(number: int, noun: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"
