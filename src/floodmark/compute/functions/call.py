"""Calling a function with rows: failing rows are tried again or stand alone, and the others keep their values."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from floodmark.compute.errors import FunctionFailed
from floodmark.compute.functions.results import Wanted
from floodmark.compute.functions.udf import Udf
from floodmark.engine.task import let_go
from floodmark.functions import call as _call
from floodmark.functions.call import PASSING, GaveUp, call_again, call_divided
from floodmark.functions.failures import RowError, message_of, trace_of, type_of
from floodmark.functions.on_error import Retry, is_skipped, retry_for

_OURS = (__file__, _call.__file__)  # not of interest in a user's traceback
_PYTHON_ROWS = 2**16  # rows that are Python values at the same time

_Offsets = NDArray[np.int64]
_Function = Callable[..., Any]


@dataclass(frozen=True)
class Computed:
    """The values of a column for the rows of a batch, null where the function failed and the row was skipped."""

    values: pa.Array
    errors: tuple[RowError, ...]
    called: int
    """Rows handed to the function, repeats included."""


@dataclass(frozen=True)
class Caller:
    """Computes a column's values, batch by batch."""

    udf: Udf
    column: pa.Field
    inputs: tuple[str, ...]
    sleep: Callable[[float], None] = time.sleep

    def compute(self, batch: pa.RecordBatch, offsets: _Offsets) -> Computed:
        """The values of these rows; `FunctionFailed` and `BadResult` name those that have none.

        The batch has the input columns, and the offsets of its rows ascend.
        """
        if not batch.num_rows:
            return Computed(pa.array([], self.column.type), (), 0)
        wanted = Wanted(self.column.name, self.column.type, self.column.nullable and self.udf.nullable)
        calls = _Calls(self.udf, self.column.name, wanted, offsets, self.sleep)
        calls.run(batch.select(list(dict.fromkeys(self.inputs))), self.inputs)
        values = calls.parts[0] if len(calls.parts) == 1 else pa.concat_arrays(calls.parts)
        return Computed(values, tuple(calls.errors), calls.called)


@dataclass(frozen=True)
class _Rows:
    """Neighbouring rows of a batch."""

    batch: pa.RecordBatch
    start: int
    end: int

    def halves(self) -> tuple[_Rows, _Rows] | None:
        if self.end - self.start == 1:
            return None
        middle = (self.start + self.end) // 2
        return replace(self, end=middle), replace(self, start=middle)


@dataclass
class _Calls:
    """The calls for one batch, and what has come of them so far; parts are in the order of the rows."""

    udf: Udf
    column: str
    wanted: Wanted
    offsets: _Offsets
    sleep: Callable[[float], None]
    parts: list[pa.Array] = field(default_factory=list)
    errors: list[RowError] = field(default_factory=list)
    called: int = 0

    def run(self, batch: pa.RecordBatch, inputs: tuple[str, ...]) -> None:
        function = self._function()
        match self.udf.kind:
            case "scalar":
                for start in range(0, batch.num_rows, _PYTHON_ROWS):
                    self._row_by_row(function, batch.slice(start, _PYTHON_ROWS), inputs, start)
            case "array":
                self._by_halves(lambda rows: function(*(rows.column(name) for name in inputs)), batch)
            case "batch":
                self._by_halves(function, batch)

    def _function(self) -> _Function:
        try:
            return self.udf.callable()
        except PASSING:
            raise
        except BaseException as error:
            hint = "Mend its __init__, which runs once in each worker process."
            self._fail(GaveUp(error, 1), (), "could not be started", hint)

    def _row_by_row(self, function: _Function, batch: pa.RecordBatch, inputs: tuple[str, ...], first: int) -> None:
        columns = {name: self._python_values(name, batch.column(name)) for name in batch.schema.names}
        results: list[Any] = []
        counted = 0
        keep = results.append
        for args in zip(*(columns[name] for name in inputs), strict=True):
            try:
                keep(function(*args))
                continue
            except PASSING:
                raise
            except BaseException as error:
                failed = error
            row = len(results)
            self.called += row + 1 - counted
            counted = row + 1
            result = call_again(partial(self._call_row, function, args), failed, self._rule, self.sleep, Counter())
            keep(None if isinstance(result, GaveUp) else result)
            if isinstance(result, GaveUp):
                self._skip(first + row, result)
        self.called += len(results) - counted
        self.parts.append(self.wanted.from_python(results, self.offsets[first : first + len(results)]))

    def _call_row(self, function: _Function, args: tuple[Any, ...]) -> Any:
        self.called += 1
        return function(*args)

    def _python_values(self, name: str, values: pa.Array) -> list[Any]:
        try:
            made: list[Any] = values.to_pylist()
            return made
        except (ValueError, OverflowError) as error:  # Python's times end with the year 9999, Arrow's do not
            self._fail(
                GaveUp(error, 0),
                (),
                f"cannot be called: column {name!r} has values that Python has no form for",
                hint="Take the column as an array: annotate the parameters with pa.Array.",
            )

    def _by_halves(self, function: _Function, batch: pa.RecordBatch) -> None:
        def call(rows: _Rows) -> Any:
            self.called += rows.end - rows.start
            return function(rows.batch.slice(rows.start, rows.end - rows.start))

        for rows, result in call_divided([_Rows(batch, 0, batch.num_rows)], call, self._rule, self.sleep):
            if isinstance(result, GaveUp):
                self._skip(rows.start, result)
                self.parts.append(pa.nulls(1, self.wanted.type))
            else:
                self.parts.append(self.wanted.from_arrow(result, self.offsets[rows.start : rows.end]))

    def _rule(self, error: BaseException) -> Retry | None:
        return retry_for(self.udf.on_error, error)

    def _skip(self, row: int, failed: GaveUp) -> None:
        offset = int(self.offsets[row])
        error = failed.error
        if not is_skipped(self.udf.on_error, error):
            self._fail(failed, (offset,), f"failed at offset {offset}")
        trace = trace_of(error, *_OURS)
        self.errors.append(RowError(row, offset, type_of(error), message_of(error), trace, failed.attempts))
        let_go(error)  # whose frames hold all that the task has read, and one of them the error

    def _fail(self, failed: GaveUp, offsets: tuple[int, ...], what: str, hint: str = "") -> NoReturn:
        error = failed.error
        kind, message = type_of(error), message_of(error)
        if not isinstance(error, Exception):
            hint = hint or "Let it raise an Exception instead, which on_error=[Skip(…)] can name."
        raise FunctionFailed(
            f"the function {self.udf.name!r} of column {self.column!r} {what}: {kind}: {message}",
            hint=hint or f"Fix it, or say what to do then: on_error=[Skip({type(error).__name__})].",
            column=self.column,
            offsets=offsets,
            start=int(self.offsets[0]),
            end=int(self.offsets[-1]) + 1,
            error_type=kind,
            error_message=message,
            traceback=trace_of(error, *_OURS),
            attempts=failed.attempts,
            called=self.called,
        ) from error
