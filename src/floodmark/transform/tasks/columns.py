"""Which columns an output gets: those of its first rows, as soon as a value has told the type of each.

A column of nulls (or of empty lists) has no type yet. Rows with such columns are kept as they are; further rows tell
more, and in the end all are brought to the same types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from floodmark.ledger.conform import cast_columns, fits
from floodmark.ledger.keys.hashing import hash_rows
from floodmark.ledger.layout import Layout
from floodmark.ledger.merge.derive import derived_layout
from floodmark.transform.errors import BadResult, UndecidedColumn, UnfitValues
from floodmark.transform.functions.returned import OutputShape
from floodmark.transform.tasks.stored import Rows, Stored, strategy_of

Seen = tuple[pa.Schema | None, ...]
"""By output what its rows had for columns so far, where that does not tell all types; None: nothing, or known."""


def undecided(schema: pa.Schema) -> list[str]:
    """The columns whose type is not known."""
    return [field.name for field in schema if _is_undecided(field.type)]


def _is_undecided(kind: Any) -> bool:
    if pa.types.is_null(kind):
        return True
    return any(_is_undecided(kind.field(n).type) for n in range(kind.num_fields)) if pa.types.is_nested(kind) else False


def joined_columns(schemas: Sequence[pa.Schema | None], shape: OutputShape, function: str) -> pa.Schema | None:
    """What rows with these columns have together; `BadResult` when they do not go together."""
    first, *others = [schema for schema in schemas if schema is not None] or [None]
    if first is None or all(schema.equals(first) for schema in others):
        return first
    for schema in others:
        if differing := set(schema.names) ^ set(first.names):
            name = min(differing)
            raise BadResult(
                f"{function!r} returns a column {name!r} for {shape.name!r} in some calls and not in others",
                hint="Return the same columns every time, with nulls where there is no value.",
                function=function,
                output=shape.name,
            )
    try:
        return pa.unify_schemas([first, *others], promote_options="permissive")
    except pa.ArrowException as error:
        raise BadResult(
            f"{function!r} returns columns of different types for {shape.name!r} from call to call: {error}",
            hint=f"Say what they are: OutputSpec({shape.name!r}, schema=…).",
            function=function,
            output=shape.name,
        ) from error


def learnt(shape: OutputShape, columns: pa.Schema) -> OutputShape:
    """An output with these columns, which all have a type."""
    vocab = shape.vocab if shape.event_time is None else replace(shape.vocab, event_time=shape.event_time)
    layout, _ = derived_layout(columns, strategy_of(shape), vocab)
    return replace(shape, layout=layout)


def in_layout(table: pa.Table, layout: Layout, output: str) -> pa.Table:
    """Rows from before all types were known, or from a task that took others for them, in the types of the output."""
    wanted = [
        layout.data.field(f.name) if pa.types.is_nested(f.type) and f.name in layout.data.names else f
        for f in table.schema
    ]
    return cast_columns(_cast(table, pa.schema(wanted), output), layout, f"the first result for {output!r}")


def brought(rows: Rows, shape: OutputShape, columns: pa.Schema | None) -> Rows:
    """Rows in the types of the output, else in those that are known so far."""
    if shape.layout is not None:
        table = in_layout(rows.table, shape.layout, shape.name)
    else:
        assert columns is not None  # rows have been seen
        table = _cast(rows.table.select(columns.names), columns, shape.name)
    if shape.is_keyed_by_transform or _types(table, shape.key) == _types(rows.table, shape.key):
        return Rows(table, rows.key, rows.transform)
    return Rows(table, hash_rows(table, shape.key), rows.transform)  # a hash depends on the type


def _cast(table: pa.Table, columns: pa.Schema, output: str) -> pa.Table:
    for at, wanted in enumerate(columns):
        column = table.column(at)
        if column.type.equals(wanted.type):
            continue
        try:
            table = table.set_column(at, wanted.name, column.cast(wanted.type))
        except pa.ArrowException as error:
            raise UnfitValues(
                f"the first results for {output!r} have {column.type} and {wanted.type} in {wanted.name!r}: {error}",
                hint=f"Say what it is: OutputSpec({output!r}, schema=…).",
                output=output,
                column=wanted.name,
            ) from error
    return table


def _types(table: pa.Table, names: Sequence[str]) -> list[Any]:
    return [table.schema.field(name).type for name in names]


def known_columns(outputs: tuple[OutputShape, ...], stored: Sequence[Stored]) -> tuple[OutputShape, ...]:
    """The outputs with the columns that stored rows have, where nothing else says which."""
    agreed = list(outputs)
    for s in stored:
        for n, layout in enumerate(s.layouts):
            if agreed[n].layout is None and layout is not None and s.outputs[n] is not None:
                agreed[n] = replace(agreed[n], layout=layout)
    return tuple(agreed)


def seen_columns(outputs: Sequence[OutputShape], seen: Sequence[Seen], function: str) -> Seen:
    """What several tasks or checkpoints have seen, where the columns of an output are not known."""
    return tuple(
        joined_columns([each[n] for each in seen if each], shape, function) if shape.layout is None else None
        for n, shape in enumerate(outputs)
    )


def may_become(seen: pa.Schema, known: pa.Schema) -> bool:
    """Whether rows with columns of which not all were known may be rows with these."""
    if set(seen.names) != set(known.names):
        return False
    return all(_is_undecided(field.type) or fits(field.type, known.field(field.name).type) for field in seen)


def no_value(shape: OutputShape, columns: pa.Schema, function: str) -> UndecidedColumn:
    """The error at the end of all rows, when no value has told a column's type."""
    name = undecided(columns)[0]
    return UndecidedColumn(
        f"{function!r} returned no value in the column {name!r} of {shape.name!r} for any key: its type is not known",
        hint=f"Say what it is: OutputSpec({shape.name!r}, schema=…). What was computed is kept for the next run.",
        function=function,
        output=shape.name,
        column=name,
    )
