"""Frames of pandas, Arrow and Polars: Arrow tables made into them and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from floodmark.transform.errors import BadResult, UnfitValues

Kind: TypeAlias = Literal["pandas", "table", "batch", "polars", "spark"]

FRAMES: dict[tuple[str, str], Kind] = {
    ("pandas", "DataFrame"): "pandas",
    ("pyarrow", "Table"): "table",
    ("pyarrow", "RecordBatch"): "batch",
    ("polars", "DataFrame"): "polars",
    ("pyspark", "DataFrame"): "spark",
}
_EXACT = 2**53  # integers up to here are the same as 64-bit floats

_HANDOVER = (pa.ArrowException, OverflowError, UnicodeError, TypeError, ValueError)


@dataclass(frozen=True)
class Returned:
    """One frame that a function returned."""

    table: pa.Table
    index: tuple[str, ...] = ()
    """The names of a pandas index, which is no data; for errors."""


def from_table(table: pa.Table, kind: Kind) -> Any:
    """An Arrow table as such a frame; changing it changes nothing else."""
    if kind == "pandas":
        return _to_pandas(table)
    if kind == "polars":
        import polars

        return polars.from_arrow(table)
    if kind == "batch":
        whole = table.combine_chunks().to_batches()
        return whole[0] if whole else pa.RecordBatch.from_pylist([], schema=table.schema)
    return table


def to_table(frame: object, function: str, output: str | None) -> Returned:
    """A frame that a function returned, as Arrow; `BadResult` if it is none, `UnfitValues` if a column has no type."""
    if isinstance(frame, pa.Table):
        return Returned(_distinct(frame, function, output))
    if isinstance(frame, pa.RecordBatch):
        return Returned(_distinct(pa.Table.from_batches([frame]), function, output))
    classes = bases(type(frame))
    if ("pandas", "DataFrame") in classes:
        return _from_pandas(frame, function, output)
    if ("polars", "DataFrame") in classes:
        return Returned(_from_polars(frame, output))
    if ("polars", "LazyFrame") in classes:
        return Returned(_from_polars(frame.collect(), output))  # type: ignore[attr-defined]
    what = "nothing" if frame is None else f"a value of type {type(frame).__module__}.{type(frame).__qualname__}"
    hint = "Return a pandas, Polars or Arrow frame"
    raise BadResult(
        f"the function {function!r} returned {what.replace('builtins.', '')} {_for(output)}, not a frame",
        hint=f"{hint}; one without rows if there are none." if frame is None else f"{hint}.",
        function=function,
        output=output,
    )


def bases(cls: type) -> list[tuple[str, str]]:
    """The library and name of a class and of those it derives from; no library is imported to tell them apart."""
    return [(base.__module__.partition(".")[0], base.__name__) for base in cls.__mro__]


def _to_pandas(table: pa.Table) -> Any:
    # Threads cost more than they give: chunks are small, and the other cores have chunks of their own.
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
    """Whether pandas would make floats of these integers, for want of a null, that are not the same numbers."""
    if not column.null_count or not pa.types.is_integer(column.type) or column.type.bit_width < 64:
        return False
    bounds: Any = pc.min_max(column)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    return low is not None and (low < -_EXACT or high > _EXACT)


def _from_pandas(frame: Any, function: str, output: str | None) -> Returned:
    names = list(frame.columns)
    for name in names:
        if not isinstance(name, str):
            raise BadResult(
                f"the frame that {function!r} returned {_for(output)} has a column named {name!r}, which is no text",
                hint="Name the columns: pd.DataFrame(rows, columns=[…]).",
                function=function,
                output=output,
            )
    _check_distinct(names, function, output)
    arrays = []
    for name, series in frame.items():
        try:
            arrays.append(pa.array(series, from_pandas=True))
        except _HANDOVER as error:
            raise UnfitValues(
                f"column {name!r} of the result {_for(output)} has values of no one type: {error}",
                hint="Convert it there, with .astype(…); OutputSpec(…, schema=…) says what the output holds.",
                output=output,
                column=name,
            ) from error
    index = tuple(str(name) for name in frame.index.names if name is not None)
    if not names and len(frame):
        raise BadResult(
            f"the frame that {function!r} returned {_for(output)} has rows and no columns",
            hint="An index is no data: .reset_index() makes columns of it." if index else "",
            function=function,
            output=output,
        )
    return Returned(pa.Table.from_arrays(arrays, names), index)


def _from_polars(frame: Any, output: str | None) -> pa.Table:
    for name, dtype in frame.schema.items():
        if str(dtype) == "Object":
            raise UnfitValues(
                f"column {name!r} of the result {_for(output)} holds Python objects",
                hint="Cast it to a type of Polars' own.",
                output=output,
                column=name,
            )
    table: pa.Table = frame.to_arrow()
    return table


def _distinct(table: pa.Table, function: str, output: str | None) -> pa.Table:
    _check_distinct(table.column_names, function, output)
    return table


def _check_distinct(names: list[str], function: str, output: str | None) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadResult(
            f"the frame that {function!r} returned {_for(output)} has two columns named {twice!r}",
            hint="Rename or drop one.",
            function=function,
            output=output,
        )


def _for(output: str | None) -> str:
    return "" if output is None else f"for {output!r}"
