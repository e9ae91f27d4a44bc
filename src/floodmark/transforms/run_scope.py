"""The scope of a run: changed keys, keys that a user names, or failed keys; and filters and orders of keys."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.derive.key_shape import InputShape, KeyShape, cast_exactly
from floodmark.errors import BadStep, close_matches
from floodmark.ledger.moments import typed_array
from floodmark.ledger.scan import check_filter
from floodmark.rows.lookup import CAST_ERRORS, frame_table

if TYPE_CHECKING:
    from floodmark.transforms.snapshot import StepSnapshot


@dataclass(frozen=True)
class ChangedScope:
    """Scope: the keys that changed and failed keys that are due, all or limited by filters and a count."""

    filters: Any = None
    max_records: int | None = None
    commit_every: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_records", "commit_every"):
            given = getattr(self, name)
            if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 1):
                raise BadStep(f"{name}={given!r} is not a positive integer", hint="give a whole number from 1 on")

    @property
    def is_whole(self) -> bool:
        """Whether the scope has all pending keys."""
        return self.filters is None and self.max_records is None


@dataclass(frozen=True)
class RequestedScope:
    """Scope: the keys of these rows, by the name of an input, whether they changed or not."""

    keys: Mapping[str, Any]

    @property
    def is_whole(self) -> bool:
        return False


@dataclass(frozen=True)
class FailedScope:
    """Scope: all keys whose last call failed."""

    @property
    def is_whole(self) -> bool:
        return False


RunScope = ChangedScope | RequestedScope | FailedScope


def check_scope(scope: RunScope, step_snapshot: StepSnapshot) -> None:
    """Refuse to process only some keys while all are stale: readers must not see results of two functions together."""
    if not scope.is_whole and step_snapshot.stale is not None:
        raise BadStep(
            f"step {step_snapshot.step.name!r} has to process everything once, because {step_snapshot.stale}",
            hint="run it without filters or limits first; until that run commits, readers see the old results",
            step=step_snapshot.step.name,
        )


# Requested keys


def parse_requested_parts(shape: KeyShape, keys: Mapping[str, Any], step: str) -> dict[int, pa.Table]:
    """The requested parts of keys, each once, by the number of the input that they are named for."""
    if not isinstance(keys, Mapping) or not keys:
        raise BadStep(
            f"the keys for step {step!r} are not a mapping by the name of an input",
            hint=f'give {{"{shape.inputs[0].name}": keys}}',
        )
    parts = {}
    for name, rows in keys.items():
        numbers = [number for number, given in enumerate(shape.inputs) if given.name.lower() == str(name).lower()]
        if not numbers:
            known = [given.name for given in shape.inputs]
            near = close_matches(str(name), known)
            hint = f"did you mean {near[0]!r}?" if near else f"its inputs are {', '.join(known)}"
            raise BadStep(f"step {step!r} has no input {name!r}", hint=hint)
        for number in numbers:
            parts[number] = parse_requested_part(shape, number, rows)
    return parts


def parse_requested_part(shape: KeyShape, number: int, keys: Any) -> pa.Table:
    """The parts of keys in rows that a user gave for an input, each once."""
    given = shape.inputs[number]
    schema = shape.part_schema(number)
    table = _table(keys, given, schema)
    columns = []
    for name, own in given.keys.items():
        # Rows may have the column names of the input, or the names of the transform keys.
        column = own if own in table.column_names else name
        if column not in table.column_names:
            raise BadStep(
                f"the keys given for input {given.name!r} have no column {own!r}",
                hint=f"give {', '.join(given.own)}",
            )
        columns.append(cast_exactly(_chunked(table.column(column)), schema.field(name), given.name))
    part = pa.table(columns, schema=schema) if columns else shape.part_of(number, table)
    return part.take(pa.array(shape.hash_part(number, part).first_positions()))


def _table(keys: Any, given: InputShape, schema: pa.Schema) -> pa.Table:
    if isinstance(keys, pa.Table | pa.RecordBatch | pa.RecordBatchReader) or hasattr(keys, "columns"):
        return frame_table(keys)
    rows = _rows(keys)
    if rows and all(isinstance(row, Mapping) for row in rows):
        names = dict.fromkeys(name for row in rows for name in row)
        types = {own: schema.field(name).type for name, own in given.keys.items()}
        return pa.table({n: _array([row.get(n) for row in rows], types.get(n), n) for n in names})
    if any(isinstance(row, Mapping) for row in rows) or (rows and len(given.keys) != 1):
        raise BadStep(
            f"the keys given for input {given.name!r} are not a frame, dicts or (for one transform key) plain values",
            hint=f"give a frame or dicts with {', '.join(given.own)}",
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


def _array(values: Sequence[Any], data_type: pa.DataType | None, column: str) -> pa.Array:
    try:
        return typed_array(values, data_type)
    except CAST_ERRORS as error:
        raise BadStep(
            f"the keys given for {column!r} do not fit {data_type}: {error}", hint="give values of the column's type"
        ) from error


def _chunked(column: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])


# Filters and orders

Filters = Any
"""An Arrow expression, {"key": value or values}, a list of such mappings (joined with or), or None."""

FEW_VALUES = 1 << 16
"""Up to this many values of a column, the Parquet reader filters rows by them."""

_MANY_ROWS = 8 * FEW_VALUES


def parse_filters(given: Filters, keys: pa.Schema) -> pc.Expression | None:
    """The filter as an Arrow expression over the transform keys; None if there is no filter."""
    if given is None:
        return None
    if isinstance(given, pc.Expression):
        condition = given
    elif isinstance(given, Mapping):
        condition = _all_of(given, keys)
    elif isinstance(given, Sequence) and not isinstance(given, str) and all(isinstance(g, Mapping) for g in given):
        condition = reduce(lambda a, b: a | b, [_all_of(g, keys) for g in given], pc.scalar(False))
    else:
        raise BadStep(
            f"filters={given!r} is not a filter",
            hint='give {"key": value or list of values}, a list of such dicts, or a pyarrow.compute expression',
        )
    try:
        check_filter(condition, keys)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as error:
        raise BadStep(
            f"the filter {given!r} does not fit the transform keys: {error}",
            hint=f"the transform keys are {', '.join(keys.names)}",
        ) from error
    return condition


def canonical_filters(given: Filters) -> Any:
    """The filter as a JSON value; filters that differ only in the order or form of values have the same one."""
    if isinstance(given, pc.Expression):
        text = str(given)  # it shortens long lists of values with "..."
        return text if "..." not in text else hashlib.sha3_256(pickle.dumps(given)).hexdigest()
    if isinstance(given, Mapping):
        return [sorted([str(name), sorted({_text(v) for v in _values(value)})] for name, value in given.items())]
    if isinstance(given, Sequence) and all(isinstance(one, Mapping) for one in given):
        return sorted(part for one in given for part in canonical_filters(one))
    return repr(given)  # `parse_filters` refuses it


def _values(given: Any) -> list[Any]:
    """The values that a filter allows for one key."""
    is_many = isinstance(given, Sequence | set | frozenset | pa.Array) and not isinstance(given, str | bytes)
    return given.to_pylist() if isinstance(given, pa.Array) else list(given) if is_many else [given]


def _text(value: Any) -> str:
    return repr(value.item()) if isinstance(value, np.number | np.bool_ | np.str_) else repr(value)


def _all_of(given: Mapping[str, Any], keys: pa.Schema) -> pc.Expression:
    parts = [has_value(name, value, keys) for name, value in given.items()]
    return reduce(lambda a, b: a & b, parts, pc.scalar(True))


def has_value(name: str, value: Any, keys: pa.Schema) -> pc.Expression:
    """Whether a column has the value, or one of the values, that a filter gives for it."""
    if name not in keys.names:
        raise BadStep(
            f"the filter names {name!r}, which is not a transform key",
            hint=f"the transform keys are {', '.join(keys.names)}",
        )
    try:
        allowed = typed_array(_values(value), keys.field(name).type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        raise BadStep(
            f"the filter of {name!r} has values that do not fit {keys.field(name).type}: {error}",
            hint="give values of the column's type",
        ) from error
    field = pc.field(name)
    among = field.isin(allowed.drop_null())
    return among | field.is_null() if allowed.null_count else among


def parse_order(given: Sequence[str] | str | None, keys: pa.Schema) -> list[tuple[str, str]]:
    """The transform keys to sort by, with directions: a minus before a name means descending."""
    names = [] if given is None else [given] if isinstance(given, str) else list(given)
    order = []
    for name in names:
        column = name.removeprefix("-") if isinstance(name, str) else name
        if column not in keys.names:
            raise BadStep(
                f"order_by names {column!r}, which is not a transform key",
                hint=f"the transform keys are {', '.join(keys.names)}",
            )
        order.append((column, "descending" if name.startswith("-") else "ascending"))
    return order


def values_filter(values: pa.Table, schema: pa.Schema) -> pc.Expression | None:
    """A filter that lets the Parquet reader skip most rows without these values; it may keep other rows.

    `values` has the column names of the files, and `schema` their types. None if a filter does not help.
    """
    kept: pc.Expression | None = None
    if values.num_rows > _MANY_ROWS:
        return None
    for name in values.column_names:
        data_type = schema.field(name).type
        # As keys, the floats 0.0 and -0.0 are equal, and so are all NaN; for Arrow they are not.
        if pa.types.is_floating(data_type) or not values.column(name).type.equals(data_type):
            continue
        distinct = values.column(name).unique()
        if len(distinct) > FEW_VALUES:
            continue
        field = pc.field(name)
        mine = field.isin(distinct.drop_null())
        mine = mine | field.is_null() if distinct.null_count else mine
        kept = mine if kept is None else kept & mine
    return kept
