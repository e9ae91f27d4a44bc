"""Transform keys of different inputs brought to one type, so that equal values are equal keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.storage.arrays import Mask
from floodmark.transform.errors import BadKeys


def common_type(name: str, known: Sequence[tuple[str, pa.DataType]]) -> pa.DataType:
    """The type that holds the values of all these columns; refused where one value would have two forms."""
    owner, found = known[0]
    for other, data_type in known[1:]:
        if found.equals(data_type):
            continue
        together = _together(found, data_type)
        if together is None:
            raise BadKeys(
                f"the transform key {name!r} is {found} in {owner!r} and {data_type} in {other!r}",
                hint="a key must have one kind of values in all inputs: cast one of them where it is written",
            )
        found = together
    return found


def _together(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    is_kin = [pa.types.is_integer, pa.types.is_floating, _is_text, pa.types.is_timestamp, pa.types.is_decimal]
    if not any(kin(one) and kin(other) for kin in is_kin):
        return None
    try:
        fields = [pa.schema([pa.field("key", t)]) for t in (one, other)]
        unified = pa.unify_schemas(fields, promote_options="permissive").field(0).type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None
    return unified


def _is_text(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(data_type) or pa.types.is_large_string(data_type))


def cast_exactly(column: Any, field: pa.Field, owner: str) -> Any:
    """The values as the key's type; `BadKeys` when one of them does not fit."""
    if column.type.equals(field.type):
        return column
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BadKeys(
            f"values of {owner!r} for the transform key {field.name!r} do not fit its type {field.type}: {error}",
            hint="the type is that of the output, or holds those of all inputs: cast the column where it is written",
        ) from error


def cast_where_it_fits(columns: Sequence[Any], fields: Sequence[pa.Field]) -> tuple[list[Any], Mask]:
    """The values as other types, and in which rows all of them still are what they were."""
    fits: Mask = np.ones(len(columns[0]) if columns else 0, np.bool_)
    cast = []
    for column, field in zip(columns, fields, strict=True):
        if column.type.equals(field.type):
            cast.append(column)
            continue
        made = _cast_or_null(column, field.type)
        back = made.cast(column.type, safe=False)
        same = pc.or_(pc.is_null(column), pc.fill_null(pc.equal(back, column), False))  # null stays null
        if pa.types.is_floating(column.type):
            same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(back), pc.is_nan(column)), False))
        fits &= np.asarray(same.to_numpy(zero_copy_only=False) if isinstance(same, pa.Array) else same.to_numpy())
        cast.append(made)
    return cast, fits


def _cast_or_null(column: Any, data_type: pa.DataType) -> Any:
    """The values as another type; bytes of another length than it has cannot be cast at all, and become null."""
    if pa.types.is_fixed_size_binary(data_type):
        fits = pc.equal(pc.binary_length(column), data_type.byte_width)
        column = pc.if_else(fits, column, pa.scalar(None, column.type))
    return column.cast(data_type, safe=False)
