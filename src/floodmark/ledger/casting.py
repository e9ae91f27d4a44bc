"""Cast incoming columns to a dataset's layout, or refuse them with an error that names the column and the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.errors import (
    BadColumnName,
    BadEventTime,
    MissingColumns,
    TypeMismatch,
    UnknownColumns,
    close_matches,
)
from floodmark.ledger.schema import Layout, find_repeated
from floodmark.storage.parquet import event_time_bounds

EARLIEST, LATEST = -62_135_596_800 * 10**9, 253_402_300_800 * 10**9
"""The years 1 to 9999 in nanoseconds since the epoch, half open."""


def check_unique_names(schema: pa.Schema, where: str) -> None:
    """Refuse data with two columns of the same name."""
    if twice := sorted(set(find_repeated(schema.names))):
        raise BadColumnName(f"{where} has two columns named {twice[0]!r}", hint="rename one", columns=twice)


def check_columns(schema: pa.Schema, layout: Layout, where: str) -> None:
    """Refuse data whose columns are not exactly the dataset's, in any order."""
    names, expected = schema.names, layout.data.names
    given, declared = set(names), set(expected)
    check_unique_names(schema, where)
    reserved = [name.lower() for name in layout.vocab.reserved]
    for name in names:
        if name.lower() in reserved and name not in declared:
            only = "; only merge='changelog' reads it" if name.lower() == layout.vocab.op.lower() else ""
            raise BadColumnName(
                f"{where} has a column {name!r}, which is reserved for the system columns",
                hint=f"drop or rename it; the dataset fills this column itself{only}",
                column=name,
            )
    # A column without values has nothing to lose, so a dataset need not have it.
    unknown = [f.name for f in schema if f.name not in declared and not pa.types.is_null(f.type)]
    missing = [n for n in expected if n not in given]
    if unknown:
        near = close_matches(unknown[0], missing or expected)
        hint = (
            f"did you mean {near[0]!r}?"
            if near
            else f"drop it, or add it to the dataset first: .evolve({{{unknown[0]!r}: …}})"
        )
        raise UnknownColumns(f"{where} has columns the dataset lacks: {_listed(unknown)}", hint=hint, columns=unknown)
    if missing:
        raise MissingColumns(
            f"{where} lacks columns of the dataset: {_listed(missing)}",
            hint="add them, with nulls where there is no value",
            columns=missing,
        )
    for field in layout.data:
        _check_fits(schema.field(field.name).type, field, where)


def conform_columns(table: pa.Table, layout: Layout, where: str) -> pa.Table:
    """The data columns of a slice with the rows of `table`: cast, in the slice's order, sorted by event time.

    If the dataset has no event time column, none is added here: `with_event_time` does that later.
    """
    data = cast_columns(table, layout, where)
    if layout.event_time is None:
        return with_declared_fields(data, layout)
    times = data.column(layout.event_time)
    check_event_times(times, layout.event_time, where)
    return with_declared_fields(data if _is_sorted(times) else data.take(_stable_order(times)), layout)


def with_declared_fields(data: pa.Table, layout: Layout) -> pa.Table:
    """The same columns with the layout's own fields. Call it after nulls in required columns are ruled out."""
    fields = [layout.data.field(name) for name in data.column_names]
    return pa.Table.from_arrays(data.columns, schema=pa.schema(fields))


def cast_columns(table: pa.Table, layout: Layout, where: str) -> pa.Table:
    """The dataset's columns, cast, in the slice's order. Rows keep their order; nulls are not checked."""
    check_columns(table.schema, layout, where)
    columns = {f.name: _valid(_cast(table.column(f.name), f, where), f, where) for f in layout.data}
    fields = [f.with_nullable(True) for f in layout.data]
    data = pa.table(columns, schema=pa.schema(fields))
    return data if layout.event_time is None else data.select(layout.payload_schema.names)


def check_event_times(times: Any, column: str, where: str) -> None:
    """Refuse rows without an event time, or with one that a block cannot store."""
    if times.null_count:
        rows: Any = pc.index(times.is_null(), True)
        raise BadEventTime(
            f"{times.null_count} rows of {where} have no event time (column {column!r}, first at row {rows.as_py()})",
            hint="fill or drop them: a dataset with an event time needs one in every record",
            column=column,
        )
    _check_range(times, column, where)


def _valid(column: Any, field: pa.Field, where: str) -> Any:
    """The column, after a check that its values match its type: text from other tools may not be UTF-8."""
    if pa.types.is_string(field.type) or pa.types.is_nested(field.type):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise TypeMismatch(
                f"column {field.name!r} of {where} is damaged or not UTF-8 text: {error}",
                hint="convert the text to UTF-8 before writing, or write the column as binary",
                column=field.name,
            ) from error
    return column


def _check_fits(source: pa.DataType, field: pa.Field, where: str) -> None:
    if not can_cast(source, field.type):
        raise TypeMismatch(
            f"column {field.name!r} of {where} has type {source}, the dataset has {field.type}",
            hint=_cast_hint(source, field.type),
            column=field.name,
        )


def can_cast(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a type can be cast to another without a change of meaning. Single values may still not fit."""
    s: Any = source
    t: Any = target
    types = pa.types
    if types.is_dictionary(s) or types.is_run_end_encoded(s):
        s = s.value_type
    if types.is_null(s):
        return True
    if _is_text(s) or _is_text(t):
        return _is_text(s) and _is_text(t)
    if _is_bytes(s) or _is_bytes(t):
        return _is_bytes(s) and _is_bytes(t)
    if types.is_boolean(s) or types.is_boolean(t):
        return bool(types.is_boolean(s) and types.is_boolean(t))
    if types.is_timestamp(s) and types.is_timestamp(t):
        return (s.tz is None) == (t.tz is None)
    for family in (types.is_date, types.is_time):
        if family(s) or family(t):
            return bool(family(s) and family(t))
    if types.is_decimal(t):
        return bool(types.is_decimal(s) or types.is_integer(s))
    if types.is_integer(t) or types.is_floating(t):
        return bool(types.is_integer(s) or types.is_floating(s))
    if _is_list(t):
        return _is_list(s) and can_cast(s.value_type, t.value_type)
    if types.is_struct(t):
        if not types.is_struct(s) or {f.name for f in s} != {f.name for f in t}:
            return False
        return all(can_cast(s.field(f.name).type, f.type) for f in t)
    return bool(s.equals(t))


def cast_column(column: Any, field: pa.Field, where: str) -> Any:
    """One column cast to a field of the dataset, with the same checks as the columns of a batch."""
    _check_fits(column.type, field, where)
    return _valid(_cast(column, field, where), field, where)


def _cast(column: Any, field: pa.Field, where: str) -> Any:
    if column.type.equals(field.type):
        return column
    try:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if pa.types.is_run_end_encoded(column.type):
            column = pa.chunked_array([pc.run_end_decode(c) for c in column.chunks], column.type.value_type)
        if pa.types.is_struct(field.type) and not pa.types.is_null(column.type):
            return _cast_struct(column, field, where)
        if (wide := _wide_decimals(column.type, field.type)) is not None:
            column = column.cast(wide)
        cast = column.cast(field.type, safe=True)
        _check_same_floats(column, cast)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise TypeMismatch(
            f"column {field.name!r} of {where} does not fit {field.type}: {error}",
            hint=_value_hint(column.type, field.type),
            column=field.name,
        ) from error
    return cast


def _wide_decimals(source: Any, target: Any) -> pa.DataType | None:
    """A type to cast through, whose decimals hold every value; None without decimals.

    Arrow checks the values of a cast to fewer digits. It wants a precision for every possible integer, and does not
    notice that a decimal with 128 bits overflows when it gets more digits after the point.
    """
    if _is_list(source) and _is_list(target):
        inner = _wide_decimals(source.value_type, target.value_type)
        return None if inner is None else pa.list_(inner)
    if not pa.types.is_decimal(target):
        return None
    if pa.types.is_decimal(source):
        return pa.decimal256(76, max(source.scale, target.scale))
    return pa.decimal256(76, target.scale) if pa.types.is_integer(source) else None


def _cast_struct(column: Any, field: pa.Field, where: str) -> Any:
    """Cast a struct by the names of its members, which may be in any order."""
    chunks = []
    struct_type: Any = field.type
    for chunk in column.chunks:
        members = [_cast(pa.chunked_array([chunk.field(f.name)]), f, where).combine_chunks() for f in struct_type]
        plain = [m.chunk(0) if isinstance(m, pa.ChunkedArray) else m for m in members]
        chunks.append(pa.StructArray.from_arrays(plain, fields=list(struct_type), mask=chunk.is_null()))
    return pa.chunked_array(chunks, type=struct_type)


def _check_same_floats(before: Any, after: Any) -> None:
    """Refuse a cast between floats that loses digits, also inside lists: Arrow calls all of them safe."""
    while _is_list(before.type) and _is_list(after.type):
        before, after = pc.list_flatten(before), pc.list_flatten(after)
    if before.type == after.type or not (pa.types.is_floating(before.type) and pa.types.is_floating(after.type)):
        return
    back: Any = after.cast(before.type)
    same = pc.or_(pc.equal(back, before), pc.is_nan(before))
    if not pc.all(pc.fill_null(same, True)).as_py():
        raise ValueError(f"some {before.type} values have more digits than {after.type} holds")


def _check_range(times: Any, column: str, where: str) -> None:
    """Refuse event times outside the years 1 to 9999: blocks and Python cannot store them."""
    low, high = event_time_bounds(times)
    if low is not None and high is not None and not EARLIEST <= low <= high < LATEST:
        raise BadEventTime(
            f"event times of {where} (column {column!r}) are outside the years 1 to 9999",
            hint="check the unit of the column: milliseconds may have been read as seconds, for example",
            column=column,
        )


def _is_sorted(times: Any) -> bool:
    values = times.cast(pa.int64()) if pa.types.is_timestamp(times.type) else times.cast(pa.int32()).cast(pa.int64())
    array = values.to_numpy()
    return bool((array[1:] >= array[:-1]).all())


def _stable_order(times: Any) -> Any:
    # Arrow's sort is not stable, so arrival order is the second key.
    arrival = pa.array(np.arange(len(times), dtype=np.int64))
    return pc.sort_indices(
        pa.table({"time": times, "arrival": arrival}), sort_keys=[("time", "ascending"), ("arrival", "ascending")]
    )


def _is_text(t: Any) -> bool:
    return bool(pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t))


def _is_bytes(t: Any) -> bool:
    types = pa.types
    return bool(
        types.is_binary(t) or types.is_large_binary(t) or types.is_binary_view(t) or types.is_fixed_size_binary(t)
    )


def _is_list(t: Any) -> bool:
    return bool(pa.types.is_list(t) or pa.types.is_large_list(t) or pa.types.is_fixed_size_list(t))


def _listed(names: list[str]) -> str:
    return ", ".join(repr(n) for n in names)


def _cast_hint(source: Any, target: Any) -> str:
    if pa.types.is_timestamp(source) and pa.types.is_timestamp(target):
        return (
            "the data's times have no time zone: add one (pandas: .dt.tz_localize('UTC'))"
            if source.tz is None
            else "the dataset's times have no time zone: remove it from the data (pandas: .dt.tz_localize(None))"
        )
    return f"cast the column to {target} first"


def _value_hint(source: Any, target: Any) -> str:
    if pa.types.is_timestamp(source) and source.unit == "ns":
        return "a dataset keeps microseconds: round the column first (pandas: .dt.floor('us'))"
    return f"change the values, or cast the column to {target} before you write it"
