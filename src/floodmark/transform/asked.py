"""Keys that a user asks for: rows of an input as a frame, dicts or plain values, and what transform keys they have."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.ledger.merge.lookup import NO_SUCH_VALUE, frame_table
from floodmark.transform.changed.casting import cast_exactly
from floodmark.transform.changed.shape import InputShape, Shape
from floodmark.transform.errors import BadKeys


def asked_parts(shape: Shape, keys: Mapping[str, Any], step: str) -> dict[int, pa.Table]:
    """What is asked for, by the number of the input: its part of the transform keys, each once."""
    if not isinstance(keys, Mapping) or not keys:
        raise BadKeys(
            f"the keys to process with step {step!r} are not given by the name of an input",
            hint=f'give them as {{"{shape.inputs[0].name}": keys}}',
        )
    numbers = {given.name.lower(): number for number, given in enumerate(shape.inputs)}
    parts = {}
    for name, wanted in keys.items():
        number = numbers.get(str(name).lower())
        if number is None:
            known = [given.name for given in shape.inputs]
            near = difflib.get_close_matches(str(name), known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"its inputs are {', '.join(known)}"
            raise BadKeys(f"step {step!r} has no input {name!r}", hint=hint)
        parts[number] = asked_part(shape, number, wanted)
    return parts


def asked_part(shape: Shape, number: int, keys: Any) -> pa.Table:
    """The part of the transform keys that an input has, from what a user names of it, each once."""
    given = shape.inputs[number]
    schema = shape.part_schema(number)
    table = _table(keys, given, schema)
    columns = []
    for name, own in given.keys.items():
        # Rows may come as the input has them, or as transform keys are called.
        found = own if own in table.column_names else name
        if found not in table.column_names:
            raise BadKeys(
                f"the keys given for input {given.name!r} have no column {own!r}",
                hint=f"give {', '.join(given.own)}",
            )
        columns.append(cast_exactly(_chunked(table.column(found)), schema.field(name), given.name))
    part = pa.table(columns, schema=schema)
    return part.take(pa.array(shape.hash_part(number, part).first_of_each()))


def _table(keys: Any, given: InputShape, schema: pa.Schema) -> pa.Table:
    if isinstance(keys, pa.Table | pa.RecordBatch | pa.RecordBatchReader) or hasattr(keys, "columns"):
        return frame_table(keys)
    rows = _rows(keys)
    if rows and all(isinstance(row, Mapping) for row in rows):
        names = dict.fromkeys(name for row in rows for name in row)
        types = {own: schema.field(name).type for name, own in given.keys.items()}
        return pa.table({n: _array([row.get(n) for row in rows], types.get(n), n) for n in names})
    if any(isinstance(row, Mapping) for row in rows) or (rows and len(given.keys) != 1):
        raise BadKeys(
            f"the keys given for input {given.name!r} are not a frame, dicts or (for one transform key) plain values",
            hint=f"give dicts or a frame with {', '.join(given.own)}",
        )
    return pa.table({own: _array(rows, schema.field(name).type, own) for name, own in given.keys.items()})


def _rows(keys: Any) -> Sequence[Any]:
    if isinstance(keys, pa.Array | pa.ChunkedArray):
        return keys.to_pylist()  # type: ignore[no-any-return]
    if isinstance(keys, np.ndarray):
        return keys.tolist()  # type: ignore[no-any-return]
    if isinstance(keys, list | tuple | set | frozenset | range) or hasattr(keys, "to_list"):
        return list(keys)
    return [keys]


def _array(values: Sequence[Any], wanted: pa.DataType | None, column: str) -> pa.Array:
    try:
        return pa.array(values, wanted)
    except NO_SUCH_VALUE as error:
        raise BadKeys(
            f"the keys given for {column!r} do not fit {wanted}: {error}", hint="give values of the column's type"
        ) from error


def _chunked(column: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
