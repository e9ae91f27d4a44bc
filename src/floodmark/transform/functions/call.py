"""Calling a step's function for a chunk of keys: a chunk that fails is halved until the failing keys stand alone."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from floodmark.engine.task import let_go
from floodmark.functions import call as _call
from floodmark.functions.call import GaveUp, call_divided
from floodmark.functions.failures import message_of, trace_of, type_of
from floodmark.functions.on_error import OnError, State
from floodmark.storage.arrays import I64, Hashes
from floodmark.transform.errors import KeyFailed
from floodmark.transform.functions import frames as _frames
from floodmark.transform.functions import function as _function
from floodmark.transform.functions import returned as _returned
from floodmark.transform.functions.function import StepFunction
from floodmark.transform.functions.nan_keys import told_apart
from floodmark.transform.functions.returned import Fitting, OutputRows, OutputShape
from floodmark.transform.meta.failed import MOMENT, failed_schema, no_failures

_OURS = (__file__, _call.__file__, _function.__file__, _frames.__file__, _returned.__file__)
"""Files whose frames a user's traceback leaves out."""

_nothing_failed = functools.lru_cache(maxsize=16)(no_failures)  # the usual answer, a thousand times a run


class Chunk(Protocol):
    """Keys and the rows that the function gets for them; `transform.chunks` has it."""

    @property
    def keys(self) -> pa.Table: ...
    @property
    def hashes(self) -> Hashes: ...
    @property
    def frames(self) -> tuple[pa.Table, ...]: ...
    def chosen(self, positions: I64) -> Sequence[Chunk]: ...
    def halves(self) -> tuple[Chunk, Chunk] | None: ...


@dataclass(frozen=True)
class Called:
    """What came of a chunk: rows per output, and the keys that failed."""

    rows: tuple[pa.Table, ...]
    """Per output, cast to its layout; before there is one, in the types that a dataset would keep."""
    hashes: tuple[Hashes, ...]
    """Per output, of each row's transform keys."""
    key_hashes: tuple[Hashes, ...]
    """Per output, of each row's own key: the same object as in `hashes` where the key is the transform keys.

    Nobody needs to hash them again. Hashes of whole rows are best taken of many chunks at once.
    """
    failed: pa.Table
    """With the columns of `failed_schema`; `since` is now, for those who know better to set back."""
    called: int
    """Keys handed to the function, repeats included."""
    calls: int


def call_chunk(
    function: StepFunction,
    chunk: Chunk,
    outputs: Sequence[OutputShape],
    on_error: OnError,
    attempts_before: I64,
    now_ms: int,
    sleep: Callable[[float], None] = time.sleep,
) -> Called:
    """The function's results for all keys of a chunk that have one.

    `attempts_before` says for each key in how many runs it has failed so far. `BadResult` if what the function
    returns can never be right, `KeyFailed` at the first failing key if `on_error` says so.
    """
    calls = _Calls.of(function, outputs, on_error)
    if len(chunk.hashes):
        function.callable()  # a model that cannot be loaded is no fault of any key
        calls.run(chunk, sleep)
    return calls.outcome(chunk, attempts_before, now_ms)


def not_called(
    function: StepFunction,
    chunk: Chunk,
    outputs: Sequence[OutputShape],
    on_error: OnError,
    attempts_before: I64,
    now_ms: int,
    error: BaseException,
    trace: str,
) -> Called:
    """A chunk of one key that failed before its call could return, such as by the death of its worker."""
    calls = _Calls.of(function, outputs, on_error)
    calls.fail(chunk, error, trace or trace_of(error))
    return calls.outcome(chunk, attempts_before, now_ms)


@dataclass(frozen=True)
class _Failure:
    chunk: Chunk
    error: BaseException
    trace: str


@dataclass
class _Calls:
    """The calls for one chunk, and what has come of them so far."""

    function: StepFunction
    fittings: tuple[Fitting, ...]
    on_error: OnError
    done: list[tuple[OutputRows, ...]] = field(default_factory=list)
    failed: list[_Failure] = field(default_factory=list)
    called: int = 0
    calls: int = 0

    @staticmethod
    def of(function: StepFunction, outputs: Sequence[OutputShape], on_error: OnError) -> _Calls:
        return _Calls(function, tuple(Fitting(function.name, output) for output in outputs), on_error)

    def run(self, chunk: Chunk, sleep: Callable[[float], None]) -> None:
        for part, outcome in call_divided(told_apart(chunk), self._call, self.on_error.again, sleep):
            if isinstance(outcome, GaveUp):
                self.fail(part, outcome.error, trace_of(outcome.error, *_OURS))
                let_go(outcome.error)
            else:
                self.done.append(outcome)

    def _call(self, chunk: Chunk) -> tuple[OutputRows, ...]:
        self.calls += 1
        self.called += len(chunk.hashes)
        results = self.function.returned(chunk.frames, [fitting.output.name for fitting in self.fittings])
        pairs = zip(self.fittings, results, strict=True)
        return tuple(fitting.rows(result, chunk.keys, chunk.hashes) for fitting, result in pairs)

    def fail(self, chunk: Chunk, error: BaseException, trace: str) -> None:
        """Note the failure of a chunk of one key, or end the run."""
        if not self.on_error.ends_run(error):
            self.failed.append(_Failure(chunk, error, trace))
            return
        key = chunk.keys.to_pylist()[0]
        kind, message = type_of(error), message_of(error)
        shown = ", ".join(f"{name}={value!r}" for name, value in key.items())
        raise KeyFailed(
            f"the function {self.function.name!r} failed for {shown}: {kind}: {message}",
            hint='Fix it, or let the other keys go on: on_error="retry" or "skip".',
            function=self.function.name,
            key=key,
            error_type=kind,
            error_message=message,
            traceback=trace,
        ) from error

    def outcome(self, chunk: Chunk, attempts_before: I64, now_ms: int) -> Called:
        """What came of all keys of a chunk."""
        rows = [fitting.joined([part[i] for part in self.done]) for i, fitting in enumerate(self.fittings)]
        return Called(
            rows=tuple(each.table for each in rows),
            hashes=tuple(each.transform for each in rows),
            key_hashes=tuple(each.key for each in rows),
            failed=self._failed_table(chunk, attempts_before, now_ms),
            called=self.called,
            calls=self.calls,
        )

    def _failed_table(self, chunk: Chunk, attempts_before: I64, now_ms: int) -> pa.Table:
        keys_schema = self.fittings[0].output.keys
        if not self.failed:
            return _nothing_failed(keys_schema)
        hashes = Hashes.joined([failure.chunk.hashes for failure in self.failed])
        at = hashes.positions_in(chunk.hashes)
        attempts = attempts_before[at] + 1
        errors = [failure.error for failure in self.failed]
        states: list[tuple[State, int | None]] = [
            self.on_error.after(int(n), now_ms, error) for n, error in zip(attempts, errors, strict=True)
        ]
        now = pa.array(np.full(len(self.failed), now_ms, np.int64)).cast(MOMENT)
        facts = [
            pa.array(hashes.high),
            pa.array(hashes.low),
            pa.array([type_of(error) for error in errors], pa.string()),
            pa.array([message_of(error) for error in errors], pa.string()),
            pa.array([failure.trace for failure in self.failed], pa.string()),
            pa.array(attempts, pa.int32()),
            now,
            now,
            pa.array([state for state, _ in states], pa.string()),
            pa.array([due for _, due in states], pa.int64()).cast(MOMENT),
        ]
        keys = chunk.keys.take(pa.array(at)).combine_chunks()
        return pa.Table.from_arrays([*keys.columns, *facts], schema=failed_schema(keys_schema))
