"""Calling a function with rows: failing rows are tried again or stand alone, and the others keep their values."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from floodmark.compute.errors import FunctionFailed
from floodmark.compute.functions.failures import RowError, message_of, trace_of, type_of
from floodmark.compute.functions.on_error import Retry, is_skipped, retry_for
from floodmark.compute.functions.results import Wanted
from floodmark.compute.functions.udf import Udf
from floodmark.engine.task import let_go

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
class _GaveUp:
    """The last error of rows that were called as often as the rules want."""

    error: Exception
    attempts: int


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
        except MemoryError:
            raise
        except Exception as error:
            hint = "Mend its __init__, which runs once in each worker process."
            self._fail(_GaveUp(error, 1), (), "could not be started", hint)

    def _row_by_row(self, function: _Function, batch: pa.RecordBatch, inputs: tuple[str, ...], first: int) -> None:
        columns = {name: self._python_values(name, batch.column(name)) for name in batch.schema.names}
        results: list[Any] = []
        counted = 0
        keep = results.append
        for args in zip(*(columns[name] for name in inputs), strict=True):
            try:
                keep(function(*args))
            except MemoryError:
                raise
            except Exception as error:
                row = len(results)
                self.called += row + 1 - counted
                counted = row + 1
                result = self._again(partial(function, *args), 1, error, Counter())
                keep(None if isinstance(result, _GaveUp) else result)
                if isinstance(result, _GaveUp):
                    self._skip(first + row, result)
        self.called += len(results) - counted
        self.parts.append(self.wanted.from_python(results, self.offsets[first : first + len(results)]))

    def _python_values(self, name: str, values: pa.Array) -> list[Any]:
        try:
            made: list[Any] = values.to_pylist()
            return made
        except (ValueError, OverflowError) as error:  # Python's times end with the year 9999, Arrow's do not
            self._fail(
                _GaveUp(error, 0),
                (),
                f"cannot be called: column {name!r} has values that Python has no form for",
                hint="Take the column as an array: annotate the parameters with pa.Array.",
            )

    def _by_halves(self, function: _Function, batch: pa.RecordBatch) -> None:
        # Rows that wait, the next ones last, and how often each rule has been used up on the way to them.
        waiting: list[tuple[int, int, Counter[Retry]]] = [(0, batch.num_rows, Counter())]
        while waiting:
            start, end, spent = waiting.pop()
            rows = batch.slice(start, end - start)
            self.called += end - start
            try:
                result = function(rows)
            except MemoryError:
                raise
            except Exception as error:
                # Many rows that failed again and again are not the better for it when halved; a row that
                # stands alone gets every call that the rule gives it.
                alone = end - start == 1
                result = self._again(partial(function, rows), end - start, error, Counter() if alone else spent)
                if isinstance(result, _GaveUp) and alone:
                    self._skip(start, result)
                    self.parts.append(pa.nulls(1, self.wanted.type))
                    continue
                if isinstance(result, _GaveUp):
                    middle = (start + end) // 2
                    waiting += [(middle, end, spent.copy()), (start, middle, spent.copy())]
                    continue
            self.parts.append(self.wanted.from_arrow(result, self.offsets[start:end]))

    def _again(self, call: Callable[[], Any], rows: int, error: Exception, spent: Counter[Retry]) -> Any:
        """What the call returns when it is repeated as its errors' rules say, or that it was given up."""
        attempts = 1
        try:
            while True:
                retry = retry_for(self.udf.on_error, error)
                if retry is not None:
                    spent[retry] += 1
                if retry is None or spent[retry] >= retry.attempts:
                    return _GaveUp(error, attempts)
                self.sleep(retry.pause(spent[retry]))
                attempts += 1
                self.called += rows
                try:
                    return call()
                except MemoryError:
                    raise
                except Exception as repeated:
                    error = repeated
        finally:
            del error  # which has this frame in its traceback

    def _skip(self, row: int, failed: _GaveUp) -> None:
        offset = int(self.offsets[row])
        error = failed.error
        if not is_skipped(self.udf.on_error, error):
            self._fail(failed, (offset,), f"failed at offset {offset}")
        trace = trace_of(error, __file__)
        self.errors.append(RowError(row, offset, type_of(error), message_of(error), trace, failed.attempts))
        let_go(error)  # whose frames hold all that the task has read, and one of them the error

    def _fail(self, failed: _GaveUp, offsets: tuple[int, ...], what: str, hint: str = "") -> NoReturn:
        error = failed.error
        kind, message = type_of(error), message_of(error)
        raise FunctionFailed(
            f"the function {self.udf.name!r} of column {self.column!r} {what}: {kind}: {message}",
            hint=hint or f"Mend it, or say what to do then: on_error=[Skip({type(error).__name__})].",
            column=self.column,
            offsets=offsets,
            start=int(self.offsets[0]),
            end=int(self.offsets[-1]) + 1,
            error_type=kind,
            error_message=message,
            traceback=trace_of(error, __file__),
            attempts=failed.attempts,
            called=self.called,
        ) from error
