"""What a function returned for a chunk as rows of an output: the right columns and types, its own keys, each once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.ledger.conform import cast_column, cast_columns, check_event_times
from floodmark.ledger.errors import (
    BadEventTime,
    DuplicateColumns,
    MissingColumns,
    ReservedColumn,
    TypeMismatch,
    UnknownColumns,
    UnsupportedType,
)
from floodmark.ledger.keys.hashing import hash_rows
from floodmark.ledger.layout import Layout
from floodmark.ledger.types import canonical
from floodmark.storage.arrays import I64, Hashes
from floodmark.storage.slices import Vocabulary
from floodmark.transform.errors import (
    BadResult,
    BadStep,
    DuplicateOutputKeys,
    KeysOutsideChunk,
    NullOutputKey,
    UnfitValues,
)
from floodmark.transform.functions.frames import Returned
from floodmark.transform.functions.nan_keys import with_nans

_SHOWN = 3  # keys that an error names


@dataclass(frozen=True)
class OutputShape:
    """What the rows of an output must look like. `keys` are the transform keys, with which its key begins."""

    name: str
    key: tuple[str, ...]
    keys: pa.Schema
    layout: Layout | None
    """None before the first result, which decides the columns."""
    event_time: str | None = None
    vocab: Vocabulary = field(default_factory=Vocabulary)

    def __post_init__(self) -> None:
        for wanted in self.keys:
            # Rows are found by the hash of their transform keys, which depends on the types.
            at = -1 if self.layout is None else self.layout.data.get_field_index(wanted.name)
            if self.layout is not None and (at < 0 or not self.layout.data.field(at).type.equals(wanted.type)):
                had = "no such column" if at < 0 else str(self.layout.data.field(at).type)
                raise BadStep(
                    f"the transform key {wanted.name!r} is {wanted.type}, but the output {self.name!r} has {had}",
                    hint="Give the output that type: OutputSpec(…, schema=…).",
                    output=self.name,
                )

    @property
    def is_keyed_by_transform(self) -> bool:
        """Whether the output has one row for each transform key at most."""
        return set(self.key) == set(self.keys.names)


@dataclass(frozen=True)
class OutputRows:
    """Rows of one output with the hashes of their transform keys and of their own keys (the same if that is all)."""

    table: pa.Table
    transform: Hashes
    key: Hashes


@dataclass(frozen=True)
class Fitting:
    """Makes rows of an output of what a function returned.

    `BadResult` if no call of the function can be right; `UnfitRows` if it is these rows that cannot be.
    """

    function: str
    output: OutputShape

    @property
    def where(self) -> str:
        return f"the result of {self.function!r} for {self.output.name!r}"

    def rows(self, returned: Returned, keys: pa.Table, hashes: Hashes) -> OutputRows:
        """The rows in the output's types; `keys` are those the function was given, each once, with their hashes."""
        if not returned.table.num_columns:
            return self.no_rows()
        self._check_keys_there(returned)
        table = self._in_layout(returned.table)
        for name in self.output.key:
            if name not in self.output.keys.names:
                self._check_no_nulls(table, name)
        own = with_nans(self._transform_keys(table), keys)
        table = _replaced(table, own)
        by_transform = self.output.is_keyed_by_transform
        if _equal(own, keys):  # one row for each key, as they came: nothing to look for
            return OutputRows(table, hashes, hashes if by_transform else hash_rows(table, self.output.key))
        transform = hash_rows(own, own.column_names)
        outside = np.flatnonzero(~transform.among(hashes))
        if len(outside):
            shown = _rows(own, outside)
            raise KeysOutsideChunk(
                f"{self.where} has {_count(len(outside), 'row')} of keys that it was not given: {_shown(shown)}",
                hint="A function returns rows of the keys it is called with; change no transform key.",
                output=self.output.name,
                keys=shown,
            )
        key = transform if by_transform else hash_rows(table, self.output.key)
        again = key.repeated()
        if len(again):
            shown = _rows(table.select(list(self.output.key)), again)
            raise DuplicateOutputKeys(
                f"{self.where} has {_count(len(again), 'row')} too many of keys that it has already: {_shown(shown)}",
                hint=f"One row for each {', '.join(self.output.key)}; for more, OutputSpec(…, key=[…]).",
                output=self.output.name,
                keys=shown,
            )
        return OutputRows(table, transform, key)

    def no_rows(self) -> OutputRows:
        """An output without rows; before the first result it has only the transform keys for columns."""
        layout = self.output.layout
        empty = self.output.keys.empty_table()
        if layout is not None:
            empty = cast_columns(layout.data.empty_table(), layout, self.where)
        nothing = Hashes.joined([])
        return OutputRows(empty, nothing, nothing)

    def joined(self, parts: Sequence[OutputRows]) -> OutputRows:
        """The rows of all parts, one after the other."""
        some = [part for part in parts if len(part.transform)]
        if len(some) < 2:
            return some[0] if some else next(iter(parts), self.no_rows())
        tables = [part.table for part in some]
        try:
            # Parts of a first result may have found different types for a column, such as none where all is null.
            table = pa.concat_tables(tables, promote_options="none" if self.output.layout else "permissive")
        except pa.ArrowException as error:
            raise self._bad(
                f"{self.where} has columns of different types from call to call: {error}",
                "Say what they are: OutputSpec(…, schema=…).",
            ) from error
        transform, key = Hashes.joined([p.transform for p in some]), Hashes.joined([p.key for p in some])
        wanted = table.schema
        if any(part.field(name).type != wanted.field(name).type for part in _schemas(some) for name in self.output.key):
            key = hash_rows(table, self.output.key)  # a hash depends on the type
        return OutputRows(table, transform, key)

    def _check_keys_there(self, returned: Returned) -> None:
        layout = self.output.layout
        event_time = self.output.event_time if layout is None else layout.event_time
        needed = [*self.output.key, *([] if event_time is None else [event_time])]
        missing = [name for name in needed if name not in returned.table.column_names]
        if not missing:
            return
        indexed = [name for name in missing if name in returned.index]
        raise self._bad(
            f"{self.where} lacks {'columns' if len(missing) > 1 else 'the column'} {', '.join(map(repr, missing))}",
            f"{indexed[0]!r} is its index, and an index is no data: .reset_index() makes columns of it."
            if indexed
            else f"It has {', '.join(returned.table.column_names)}. Every row needs the output's key.",
        )

    def _in_layout(self, table: pa.Table) -> pa.Table:
        layout = self.output.layout
        if layout is None:
            return self._canonical(table)
        try:
            rows = cast_columns(_completed(table, layout), layout, self.where)
            if layout.event_time is not None:
                check_event_times(rows.column(layout.event_time), layout.event_time, self.where)
        except UnknownColumns as error:
            hint = error.hint if "?" in error.hint else "Drop them in the function, or reset the step's output."
            raise self._bad(error.message, hint) from error
        except (DuplicateColumns, MissingColumns, ReservedColumn) as error:
            raise self._bad(error.message, error.hint) from error
        except (TypeMismatch, BadEventTime) as error:
            raise self._unfit(error, error.column) from error
        return rows

    def _canonical(self, table: pa.Table) -> pa.Table:
        """Columns in the types under which a dataset would keep them; what has none yet stays as it is."""
        for at, column_field in enumerate(table.schema):
            try:
                kept = canonical(column_field.type, column_field.name)
            except UnsupportedType:
                continue  # refused when the columns are decided: another result may know better
            if not kept.equals(column_field.type):
                wanted = pa.field(column_field.name, kept)
                table = table.set_column(at, wanted, self._cast(table.column(at), wanted))
        return table.replace_schema_metadata(None)

    def _transform_keys(self, table: pa.Table) -> pa.Table:
        """The transform keys of the rows, by the names and types that their hashes depend on."""
        keys = self.output.keys
        columns = [self._cast(table.column(wanted.name), wanted) for wanted in keys]
        return pa.Table.from_arrays(columns, schema=_optional(keys))

    def _cast(self, column: Any, wanted: pa.Field) -> Any:
        if column.type.equals(wanted.type):
            return column
        try:
            return cast_column(column, wanted, self.where)
        except TypeMismatch as error:
            raise self._unfit(error, wanted.name) from error

    def _check_no_nulls(self, table: pa.Table, name: str) -> None:
        nulls = table.column(name).null_count
        if nulls:
            raise NullOutputKey(
                f"{self.where} has {_count(nulls, 'row')} without a value in the key column {name!r}",
                hint="Fill or drop them: every part of a key needs a value.",
                output=self.output.name,
                column=name,
            )

    def _unfit(self, error: TypeMismatch | BadEventTime, column: str | None) -> UnfitValues:
        hint = error.hint.removesuffix(".")
        if isinstance(error, TypeMismatch) and column not in self.output.keys.names:
            # The types are those of the first rows that came, which may have been of a narrower kind.
            hint += (
                f"; or say what it is to hold: OutputSpec({self.output.name!r}, schema=…), after dropping the output"
            )
        return UnfitValues(error.message, hint=hint, output=self.output.name, column=column)

    def _bad(self, message: str, hint: str) -> BadResult:
        return BadResult(message, hint=hint, function=self.function, output=self.output.name)


def _schemas(parts: Sequence[OutputRows]) -> list[pa.Schema]:
    return [part.table.schema for part in parts]


def _completed(table: pa.Table, layout: Layout) -> pa.Table:
    """Columns whose type says less than it seems to, because it was told from the values that happened to be there.

    A column of nulls may be of any type (pandas makes floats of it), and dicts may lack a member that none of them has.
    """
    for at, given in enumerate(table.schema):
        wanted_at = layout.data.get_field_index(given.name)
        if wanted_at < 0:
            continue
        column, wanted = table.column(at), layout.data.field(wanted_at).type
        if column.null_count == len(column) and not given.type.equals(wanted):
            table = table.set_column(at, given.name, pa.nulls(len(column), wanted))
        elif _lacks_members(given.type, wanted):
            table = table.set_column(at, given.name, _widened(column, wanted))
    return table


def _lacks_members(given: Any, wanted: Any) -> bool:
    if not (pa.types.is_struct(given) and pa.types.is_struct(wanted)):
        return False
    return {f.name for f in given} < {f.name for f in wanted}


def _widened(column: Any, wanted: Any) -> Any:
    chunks = []
    for chunk in column.chunks:
        there = [f.name for f in chunk.type]
        members = [chunk.field(f.name) if f.name in there else pa.nulls(len(chunk), f.type) for f in wanted]
        chunks.append(pa.StructArray.from_arrays(members, names=[f.name for f in wanted], mask=chunk.is_null()))
    return pa.chunked_array(chunks) if chunks else pa.chunked_array([], wanted)


def _replaced(table: pa.Table, keys: pa.Table) -> pa.Table:
    for name in keys.column_names:
        at = table.schema.get_field_index(name)
        column, own = table.column(at), keys.column(name)
        if not column.type.equals(own.type) or column.null_count != own.null_count:
            table = table.set_column(at, keys.schema.field(name), keys.column(name))
    return table


def _equal(one: pa.Table, other: pa.Table) -> bool:
    """Whether the values are the same; whether a field may be null does not matter."""
    return one.num_rows == other.num_rows and all(one.column(n).equals(other.column(n)) for n in one.column_names)


def _optional(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(f.name, f.type) for f in schema])


def _rows(table: pa.Table, at: I64) -> list[dict[str, object]]:
    shown: list[dict[str, object]] = table.take(pa.array(at[:_SHOWN])).to_pylist()
    return shown


def _shown(keys: list[dict[str, object]]) -> str:
    return "; ".join(", ".join(f"{name}={value!r}" for name, value in key.items()) for key in keys)


def _count(number: int, noun: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"
