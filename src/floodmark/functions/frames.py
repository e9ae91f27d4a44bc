"""Conversion between Arrow tables and frames of pandas, Arrow and Polars, and NaN in key columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.errors import BadResult, UnfitRows
from floodmark.ledger.python_values import check_numpy_times, check_same_kind
from floodmark.ledger.types import widen_decimals
from floodmark.storage.arrays import I64

FrameKind: TypeAlias = Literal["pandas", "table", "batch", "polars", "spark"]

FRAMES: dict[tuple[str, str], FrameKind] = {
    ("pandas", "DataFrame"): "pandas",
    ("pyarrow", "Table"): "table",
    ("pyarrow", "RecordBatch"): "batch",
    ("polars", "DataFrame"): "polars",
    ("pyspark", "DataFrame"): "spark",
}
_EXACT = 2**53  # integers up to this one have exact 64-bit floats

_CONVERSION_ERRORS = (pa.ArrowException, OverflowError, UnicodeError, TypeError, ValueError)


@dataclass(frozen=True)
class ReturnedFrame:
    """A frame that a function returned, as an Arrow table."""

    table: pa.Table
    index: tuple[str, ...] = ()
    """The names of a pandas index, for errors. An index is not data."""


def from_table(table: pa.Table, kind: FrameKind) -> Any:
    """Convert an Arrow table to a frame. A change to the frame does not change the table."""
    if kind == "pandas":
        return _to_pandas(table)
    if kind == "polars":
        import polars

        return polars.from_arrow(table)
    if kind == "batch":
        whole = table.combine_chunks().to_batches()
        return whole[0] if whole else pa.RecordBatch.from_pylist([], schema=table.schema)
    return table


def to_table(frame: object, function: str, output: str | None) -> ReturnedFrame:
    """Convert a returned frame to Arrow; `BadResult` if it is not a frame, `UnfitRows` if a column has no one type."""
    if isinstance(frame, pa.Table):
        return ReturnedFrame(_with_distinct_names(frame, function, output))
    if isinstance(frame, pa.RecordBatch):
        return ReturnedFrame(_with_distinct_names(pa.Table.from_batches([frame]), function, output))
    classes = base_names(type(frame))
    if ("pandas", "DataFrame") in classes:
        return _from_pandas(frame, function, output)
    if ("polars", "DataFrame") in classes:
        return ReturnedFrame(_from_polars(frame, output))
    if ("polars", "LazyFrame") in classes:
        return ReturnedFrame(_from_polars(frame.collect(), output))  # type: ignore[attr-defined]
    what = "nothing" if frame is None else f"a value of type {type(frame).__module__}.{type(frame).__qualname__}"
    hint = "Return a pandas, Polars or Arrow frame"
    raise BadResult(
        f"the function {function!r} returned {what.replace('builtins.', '')} {_for_output(output)}, not a frame",
        hint=f"{hint}; a frame without rows if there are none." if frame is None else f"{hint}.",
        function=function,
        output=output,
    )


def base_names(cls: type) -> list[tuple[str, str]]:
    """The library and name of a class and of its base classes. No library is imported for this."""
    return [(base.__module__.partition(".")[0], base.__name__) for base in cls.__mro__]


def _to_pandas(table: pa.Table) -> Any:
    # No threads: chunks are small, and the other cores work on other chunks.
    wide = [name for name, column in zip(table.column_names, table.columns, strict=True) if _loses_digits(column)]
    if not wide:
        return table.to_pandas(use_threads=False)
    import pandas

    frame: Any = table.drop_columns(wide).to_pandas(use_threads=False)
    for name in wide:
        is_unsigned = pa.types.is_unsigned_integer(table.schema.field(name).type)
        dtype: Any = pandas.UInt64Dtype() if is_unsigned else pandas.Int64Dtype()
        frame.insert(table.schema.get_field_index(name), name, dtype.__from_arrow__(table.column(name)))
    return frame


def _loses_digits(column: Any) -> bool:
    """Whether pandas would convert these integers to floats with other values, because it has no null integer."""
    if not column.null_count or not pa.types.is_integer(column.type) or column.type.bit_width < 64:
        return False
    bounds: Any = pc.min_max(column)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    return low is not None and (low < -_EXACT or high > _EXACT)


def _from_pandas(frame: Any, function: str, output: str | None) -> ReturnedFrame:
    names = list(frame.columns)
    for name in names:
        if not isinstance(name, str):
            raise BadResult(
                f"the frame that {function!r} returned {_for_output(output)} has the column name {name!r}, "
                "which is not a text",
                hint="Name the columns: pd.DataFrame(rows, columns=[…]).",
                function=function,
                output=output,
            )
    _check_distinct_names(names, function, output)
    arrays = []
    for name, series in frame.items():
        try:
            if series.dtype == object:
                check_numpy_times(series.tolist())
            array = pa.array(series, from_pandas=True)
            if series.dtype == object:
                check_same_kind(series.tolist(), array.type)
                array = widen_decimals(array)
            arrays.append(array)
        except _CONVERSION_ERRORS as error:
            raise UnfitRows(
                f"column {name!r} of the result {_for_output(output)} has values of different types: {error}",
                hint="Convert it in the function with .astype(…), or set the type: OutputSpec(…, schema=…).",
                output=output,
                column=name,
            ) from error
    index = tuple(str(name) for name in frame.index.names if name is not None)
    if not names and len(frame):
        raise BadResult(
            f"the frame that {function!r} returned {_for_output(output)} has rows but no columns",
            hint="Call .reset_index() to turn the index into columns." if index else "",
            function=function,
            output=output,
        )
    return ReturnedFrame(pa.Table.from_arrays(arrays, names), index)


def _from_polars(frame: Any, output: str | None) -> pa.Table:
    for name, dtype in frame.schema.items():
        if str(dtype) == "Object":
            raise UnfitRows(
                f"column {name!r} of the result {_for_output(output)} holds Python objects",
                hint="Cast it to a Polars type.",
                output=output,
                column=name,
            )
    table: pa.Table = frame.to_arrow()
    return table


def _with_distinct_names(table: pa.Table, function: str, output: str | None) -> pa.Table:
    _check_distinct_names(table.column_names, function, output)
    return table


def _check_distinct_names(names: list[str], function: str, output: str | None) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadResult(
            f"the frame that {function!r} returned {_for_output(output)} has two columns named {twice!r}",
            hint="Rename or drop one.",
            function=function,
            output=output,
        )


def _for_output(output: str | None) -> str:
    return "" if output is None else f"for {output!r}"


# NaN in keys

NAN = float("nan")


class KeyedChunk(Protocol):
    """Keys with their rows; `chosen` returns the parts with some of the keys."""

    @property
    def keys(self) -> pa.Table: ...
    def chosen(self, positions: I64) -> Sequence[Any]: ...


_Chunk = TypeVar("_Chunk", bound=KeyedChunk)


def split_nan_keys(chunk: _Chunk) -> Sequence[_Chunk]:
    """Split a chunk so that no part has both NaN and null in one key column. Nearly always this is the chunk itself.

    This is done for every kind of frame, because any function may return a pandas frame.
    """
    group = np.zeros(chunk.keys.num_rows, np.int64)
    for column in _floats(chunk.keys):
        if column.null_count and _has_nan(column):
            group = group * 2 + np.asarray(column.is_null())
    numbers = np.unique(group)
    if len(numbers) < 2:
        return [chunk]
    return [part for number in numbers for part in chunk.chosen(np.flatnonzero(group == number))]


def restore_nan_keys(returned: pa.Table, keys: pa.Table) -> pa.Table:
    """Replace nulls in returned keys by NaN if the given keys had NaN: pandas does not distinguish the two."""
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
