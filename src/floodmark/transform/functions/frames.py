"""Frames of pandas, Arrow and Polars: which one a function takes, and Arrow tables made into them and back."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from floodmark.compute.functions.parameters import scope_of
from floodmark.transform.errors import BadFunction, BadResult, UnfitValues

Kind: TypeAlias = Literal["pandas", "table", "batch", "polars", "spark"]

_FRAMES: dict[tuple[str, str], Kind] = {
    ("pandas", "DataFrame"): "pandas",
    ("pyarrow", "Table"): "table",
    ("pyarrow", "RecordBatch"): "batch",
    ("polars", "DataFrame"): "polars",
    ("pyspark", "DataFrame"): "spark",
}
_LIBRARIES = {"pd": "pandas", "pl": "polars", "pa": "pyarrow"}  # as everybody imports them
_NO_FRAMES = ("builtins", "pandas", "polars", "pyarrow", "pyspark", "numpy")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_EXACT = 2**53  # integers up to here are the same as 64-bit floats

_HANDOVER = (pa.ArrowException, OverflowError, UnicodeError, TypeError, ValueError)


@dataclass(frozen=True)
class Returned:
    """One frame that a function returned."""

    table: pa.Table
    index: tuple[str, ...] = ()
    """The names of a pandas index, which is no data; for errors."""


def kinds_of(name: str, function: Callable[..., Any], inputs: int, kwargs: Mapping[str, Any]) -> tuple[Kind, ...]:
    """The frames that a function takes, one per input, by its annotations; pandas where it has none.

    `BadFunction` if it cannot be called with so many frames and these keyword arguments.
    """
    called = _called(name, function)
    if inspect.iscoroutinefunction(called) or inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise BadFunction(
            f"the function {name!r} is async or a generator, which returns no frame",
            hint="Return frames from a plain function: asyncio.run(…), pd.concat(…).",
            function=name,
        )
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError) as error:
        raise BadFunction(
            f"the parameters of {name!r} cannot be told: {error}", hint="Wrap it in a function.", function=name
        ) from error
    own = [None] if isinstance(function, type) else []  # self
    try:
        signature.bind(*own, *[None] * inputs, **kwargs)
    except TypeError as error:
        given = "1 frame" if inputs == 1 else f"{inputs} frames"
        named = f" and kwargs {', '.join(kwargs)}" if kwargs else ""
        raise BadFunction(
            f"the function {name!r} cannot be called with {given}{named}: {error}",
            hint="It gets one frame per input, in their order, and kwargs by name.",
            function=name,
        ) from error
    parameters = list(signature.parameters.values())
    frames = [p for p in parameters if p.kind in _POSITIONAL][len(own) :]
    rest = [p for p in parameters if p.kind is p.VAR_POSITIONAL]
    chosen = (frames + rest * inputs)[:inputs]
    return tuple(frame_kind(name, p, scope_of(called)) for p in chosen)


def frame_kind(name: str, parameter: inspect.Parameter, scope: Mapping[str, Any]) -> Kind:
    """The frame that a parameter's annotation asks for; one that says nothing of frames means pandas."""
    meant = [_resolved(part, scope) if isinstance(part, str) else _named(part) for part in _parts(parameter.annotation)]
    for library, written in meant:
        if (library, written) in _FRAMES:
            return _FRAMES[library, written]
    for library, written in meant:
        if library in _NO_FRAMES and written not in ("object", "NoneType"):
            raise BadFunction(
                f"the parameter {parameter.name!r} of {name!r} is a {library}.{written}".replace("builtins.", "")
                + ", which is no frame",
                hint="Annotate it pd.DataFrame, pa.Table, pa.RecordBatch or pl.DataFrame.",
                function=name,
            )
    return "pandas"


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
    bases = _bases(type(frame))
    if ("pandas", "DataFrame") in bases:
        return _from_pandas(frame, function, output)
    if ("polars", "DataFrame") in bases:
        return Returned(_from_polars(frame, output))
    if ("polars", "LazyFrame") in bases:
        return Returned(_from_polars(frame.collect(), output))  # type: ignore[attr-defined]
    what = "nothing" if frame is None else f"a value of type {type(frame).__module__}.{type(frame).__qualname__}"
    hint = "Return a pandas, Polars or Arrow frame"
    raise BadResult(
        f"the function {function!r} returned {what.replace('builtins.', '')} {_for(output)}, not a frame",
        hint=f"{hint}; one without rows if there are none." if frame is None else f"{hint}.",
        function=function,
        output=output,
    )


def _called(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if not callable(function):
        raise BadFunction(f"{name!r} is not a function: {function!r}", function=name)
    if not isinstance(function, type):
        return function
    call: Callable[..., Any] | None = getattr(function, "__call__", None)  # noqa: B004
    if not inspect.isfunction(call):
        raise BadFunction(f"the class {name!r} has no __call__", hint="Define __call__(self, …).", function=name)
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise BadFunction(
            f"the class {name!r} cannot be made without arguments: {error}",
            hint="Give the parameters of __init__ defaults, or give an object: Model(…).",
            function=name,
        ) from error
    return call


def _parts(annotation: Any) -> Sequence[Any]:
    """An annotation and what stands inside it: unions, Annotated, Optional."""
    if annotation is inspect.Parameter.empty:
        return ()
    if isinstance(annotation, str):  # by `from __future__ import annotations`
        return [part for part in re.split(r"[|\[\],\s]+", annotation.strip("'\"")) if part]
    return annotation, *getattr(annotation, "__args__", ())


def _resolved(written: str, scope: Mapping[str, Any]) -> tuple[str, str]:
    first, *members = written.split(".")
    if first in scope:
        value = scope[first]
        for member in members:
            value = getattr(value, member, None)
        return _named(value)
    # What it names may be imported for type checkers only.
    return (_LIBRARIES.get(first, first), members[-1]) if members else ("", written)


def _named(value: object) -> tuple[str, str]:
    """The library and name of a class; those of a frame if it derives from one."""
    if not isinstance(value, type):
        return "", ""
    names = _bases(value)
    return next((name for name in names if name in _FRAMES), names[0])


def _bases(cls: type) -> list[tuple[str, str]]:
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
                hint="Convert it in the function, for instance with .astype(…).",
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
