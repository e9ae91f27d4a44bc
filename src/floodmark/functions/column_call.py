"""Call a column's function for a batch of rows. Failing rows are retried or isolated; other rows keep their values."""

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

from floodmark.engine.task import clear_frames
from floodmark.errors import FunctionFailed
from floodmark.functions import call as _call
from floodmark.functions.call import RERAISED_ERRORS, CallFailure, call_with_halving, retry_call
from floodmark.functions.failures import RowError, error_text, error_type_name, format_traceback
from floodmark.functions.on_error import Retry, is_skipped, retry_for
from floodmark.functions.udf import Udf
from floodmark.functions.udf_result import ResultColumn

_INTERNAL_FILES = (__file__, _call.__file__)  # files whose frames a user's traceback leaves out
_PYTHON_ROWS = 2**16  # rows that are converted to Python values at a time

_Offsets = NDArray[np.int64]
_Function = Callable[..., Any]


@dataclass(frozen=True)
class BatchValues:
    """The values of a column for the rows of a batch; null for a row that failed and was skipped."""

    values: pa.Array
    errors: tuple[RowError, ...]
    called: int
    """The number of rows passed to the function, repeats included."""


@dataclass(frozen=True)
class ColumnCaller:
    """Computes a column's values, batch by batch."""

    udf: Udf
    column: pa.Field
    inputs: tuple[str, ...]
    sleep: Callable[[float], None] = time.sleep

    def compute(self, batch: pa.RecordBatch, offsets: _Offsets) -> BatchValues:
        """Compute the values of these rows; `FunctionFailed` and `BadResult` name the rows that failed.

        The batch has the input columns, and the offsets of its rows are ascending.
        """
        if not batch.num_rows:
            return BatchValues(pa.array([], self.column.type), (), 0)
        result_type = ResultColumn(self.column.name, self.column.type, self.column.nullable and self.udf.nullable)
        calls = _Calls(self.udf, self.column.name, result_type, offsets, self.sleep)
        calls.run(batch.select(list(dict.fromkeys(self.inputs))), self.inputs)
        values = calls.parts[0] if len(calls.parts) == 1 else pa.concat_arrays(calls.parts)
        return BatchValues(values, tuple(calls.errors), calls.called)


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
    """The calls for one batch and their results so far. `parts` are in row order."""

    udf: Udf
    column: str
    result_type: ResultColumn
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
        except RERAISED_ERRORS:
            raise
        except BaseException as error:
            hint = "Fix its __init__, which runs once in each worker process."
            self._fail(CallFailure(error, 1), (), "could not be started", hint)

    def _row_by_row(self, function: _Function, batch: pa.RecordBatch, inputs: tuple[str, ...], first: int) -> None:
        columns = {name: self._python_values(name, batch.column(name)) for name in batch.schema.names}
        results: list[Any] = []
        counted = 0
        append = results.append
        for args in zip(*(columns[name] for name in inputs), strict=True):
            try:
                append(function(*args))
                continue
            except RERAISED_ERRORS:
                raise
            except BaseException as error:
                failed = error
            row = len(results)
            self.called += row + 1 - counted
            counted = row + 1
            result = retry_call(partial(self._call_row, function, args), failed, self._retry, self.sleep, Counter())
            append(None if isinstance(result, CallFailure) else result)
            if isinstance(result, CallFailure):
                self._skip(first + row, result)
        self.called += len(results) - counted
        self.parts.append(self.result_type.from_python(results, self.offsets[first : first + len(results)]))

    def _call_row(self, function: _Function, args: tuple[Any, ...]) -> Any:
        self.called += 1
        return function(*args)

    def _python_values(self, name: str, values: pa.Array) -> list[Any]:
        try:
            converted: list[Any] = values.to_pylist()
            return converted
        except (ValueError, OverflowError) as error:  # Python's times end with the year 9999, Arrow's do not
            self._fail(
                CallFailure(error, 0),
                (),
                f"cannot be called: column {name!r} has values that Python cannot represent",
                hint="Take the column as an array: annotate the parameters with pa.Array.",
            )

    def _by_halves(self, function: _Function, batch: pa.RecordBatch) -> None:
        def call(rows: _Rows) -> Any:
            self.called += rows.end - rows.start
            return function(rows.batch.slice(rows.start, rows.end - rows.start))

        for rows, result in call_with_halving([_Rows(batch, 0, batch.num_rows)], call, self._retry, self.sleep):
            if isinstance(result, CallFailure):
                self._skip(rows.start, result)
                self.parts.append(pa.nulls(1, self.result_type.type))
            else:
                self.parts.append(self.result_type.from_arrow(result, self.offsets[rows.start : rows.end]))

    def _retry(self, error: BaseException) -> Retry | None:
        return retry_for(self.udf.on_error, error)

    def _skip(self, row: int, failed: CallFailure) -> None:
        offset = int(self.offsets[row])
        error = failed.error
        if not is_skipped(self.udf.on_error, error):
            self._fail(failed, (offset,), f"failed at offset {offset}")
        trace = format_traceback(error, *_INTERNAL_FILES)
        self.errors.append(RowError(row, offset, error_type_name(error), error_text(error), trace, failed.attempts))
        clear_frames(error)  # its frames reference all the data of the task, and one references the error

    def _fail(self, failed: CallFailure, offsets: tuple[int, ...], what: str, hint: str = "") -> NoReturn:
        error = failed.error
        kind, message = error_type_name(error), error_text(error)
        if not isinstance(error, Exception):
            hint = hint or "Raise an Exception instead, which on_error=[Skip(…)] can name."
        raise FunctionFailed(
            f"the function {self.udf.name!r} of column {self.column!r} {what}: {kind}: {message}",
            hint=hint or f"Fix it, or skip such rows: on_error=[Skip({type(error).__name__})].",
            column=self.column,
            offsets=offsets,
            start=int(self.offsets[0]),
            end=int(self.offsets[-1]) + 1,
            error_type=kind,
            error_message=message,
            traceback=format_traceback(error, *_INTERNAL_FILES),
            attempts=failed.attempts,
            called=self.called,
        ) from error
