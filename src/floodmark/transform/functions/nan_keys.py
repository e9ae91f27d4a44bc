"""NaN and null in transform keys: two keys to us, one and the same to pandas, so no call is given both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.storage.arrays import I64

NAN = float("nan")


class Divisible(Protocol):
    """Keys with their rows, of which some can be taken."""

    @property
    def keys(self) -> pa.Table: ...
    def chosen(self, positions: I64) -> Sequence[Any]: ...


_Chunk = TypeVar("_Chunk", bound=Divisible)


def told_apart(chunk: _Chunk) -> Sequence[_Chunk]:
    """The chunk in parts, none of which has NaN and null in one key column; nearly always it is that itself.

    A function's result may be a pandas frame whatever it takes, so it does not matter which frames it is given.
    """
    group = np.zeros(chunk.keys.num_rows, np.int64)
    for column in _floats(chunk.keys):
        if column.null_count and _has_nan(column):
            group = group * 2 + np.asarray(column.is_null())
    numbers = np.unique(group)
    if len(numbers) < 2:
        return [chunk]
    return [part for number in numbers for part in chunk.chosen(np.flatnonzero(group == number))]


def with_nans(returned: pa.Table, keys: pa.Table) -> pa.Table:
    """Keys that a function returned, where a null is the NaN that it was given and pandas has no other word for."""
    for at, name in enumerate(returned.column_names):
        column: Any = returned.column(at)
        given: Any = keys.column(name)
        if pa.types.is_floating(column.type) and column.null_count and not given.null_count and _has_nan(given):
            returned = returned.set_column(at, returned.schema.field(at), pc.fill_null(column, NAN))
    return returned


def _floats(keys: pa.Table) -> list[Any]:
    return [column for column in keys.columns if pa.types.is_floating(column.type)]


def _has_nan(column: Any) -> bool:
    return bool(pc.any(pc.is_nan(column)).as_py())
