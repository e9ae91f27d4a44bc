"""Call a step's function for a chunk of keys. A failing chunk is halved until only the failing keys remain."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from floodmark.engine.task import clear_frames
from floodmark.errors import KeyFailed
from floodmark.functions import call as _call
from floodmark.functions import frames as _frames
from floodmark.functions import step_function as _function
from floodmark.functions import step_result as _returned
from floodmark.functions.call import CallFailure, call_with_halving
from floodmark.functions.failures import (
    TIMESTAMP,
    empty_failed_keys,
    error_text,
    error_type_name,
    failed_keys_schema,
    format_traceback,
)
from floodmark.functions.frames import split_nan_keys
from floodmark.functions.on_error import FailureState, OnError
from floodmark.functions.step_function import StepFunction
from floodmark.functions.step_result import OutputRows, OutputShape, ResultConverter
from floodmark.storage.arrays import I64, Hashes

_INTERNAL_FILES = (__file__, _call.__file__, _function.__file__, _frames.__file__, _returned.__file__)
"""Files whose frames a user's traceback leaves out."""

_nothing_failed = functools.lru_cache(maxsize=16)(empty_failed_keys)  # the usual result, thousands of times in a run


class CallChunk(Protocol):
    """Keys and the rows that the function gets for them; `transforms.chunks` implements it."""

    @property
    def keys(self) -> pa.Table: ...
    @property
    def hashes(self) -> Hashes: ...
    @property
    def frames(self) -> tuple[pa.Table, ...]: ...
    def chosen(self, positions: I64) -> Sequence[CallChunk]: ...
    def halves(self) -> tuple[CallChunk, CallChunk] | None: ...


@dataclass(frozen=True)
class ChunkCallResult:
    """The result of a chunk: rows per output, and the keys that failed."""

    rows: tuple[pa.Table, ...]
    """Per output, the rows cast to its layout; without a layout, in the types that a dataset would store."""
    hashes: tuple[Hashes, ...]
    """Per output, the hashes of each row's transform keys."""
    key_hashes: tuple[Hashes, ...]
    """Per output, the hashes of each row's own key: the same object as in `hashes` if the key is the transform keys.

    They do not have to be computed again. Hashes of whole rows are not included: hashing many chunks at once is faster.
    """
    failed: pa.Table
    """The failed keys, with the columns of `failed_keys_schema`. The caller sets `since` to the first failure.

    `stale` keys keep older rows, if there are any; the commit looks them up.
    """
    called: int
    """The number of keys passed to the function, repeats included."""
    calls: int


def call_chunk(
    function: StepFunction,
    chunk: CallChunk,
    outputs: Sequence[OutputShape],
    on_error: OnError,
    attempts_before: I64,
    now_ms: int,
    sleep: Callable[[float], None] = time.sleep,
) -> ChunkCallResult:
    """Call the function for all keys of a chunk, and return the results and the failed keys.

    `attempts_before` has for each key the number of runs in which it has failed. Raises `BadResult` if the result is
    wrong for any key, and `KeyFailed` at the first failing key if `on_error` ends the run.
    """
    calls = _Calls.of(function, outputs, on_error)
    if len(chunk.hashes):
        function.callable()  # if a model cannot be loaded, no key has failed
        calls.run(chunk, sleep)
    return calls.outcome(chunk, attempts_before, now_ms)


def fail_uncalled_chunk(
    function: StepFunction,
    chunk: CallChunk,
    outputs: Sequence[OutputShape],
    on_error: OnError,
    attempts_before: I64,
    now_ms: int,
    error: BaseException,
    trace: str,
) -> ChunkCallResult:
    """The result of a chunk of one key whose call did not return, for example because its worker died."""
    calls = _Calls.of(function, outputs, on_error)
    calls.fail(chunk, error, trace or format_traceback(error))
    return calls.outcome(chunk, attempts_before, now_ms)


@dataclass(frozen=True)
class _Failure:
    chunk: CallChunk
    error: BaseException
    trace: str


@dataclass
class _Calls:
    """The calls for one chunk and their results so far."""

    function: StepFunction
    fittings: tuple[ResultConverter, ...]
    on_error: OnError
    done: list[tuple[OutputRows, ...]] = field(default_factory=list)
    failed: list[_Failure] = field(default_factory=list)
    called: int = 0
    calls: int = 0

    @staticmethod
    def of(function: StepFunction, outputs: Sequence[OutputShape], on_error: OnError) -> _Calls:
        return _Calls(function, tuple(ResultConverter(function.name, output) for output in outputs), on_error)

    def run(self, chunk: CallChunk, sleep: Callable[[float], None]) -> None:
        for part, outcome in call_with_halving(split_nan_keys(chunk), self._call, self.on_error.again, sleep):
            if isinstance(outcome, CallFailure):
                self.fail(part, outcome.error, format_traceback(outcome.error, *_INTERNAL_FILES))
                clear_frames(outcome.error)
            else:
                self.done.append(outcome)

    def _call(self, chunk: CallChunk) -> tuple[OutputRows, ...]:
        self.calls += 1
        self.called += len(chunk.hashes)
        results = self.function.call_frames(chunk.frames, [fitting.output.name for fitting in self.fittings])
        pairs = zip(self.fittings, results, strict=True)
        return tuple(fitting.rows(result, chunk.keys, chunk.hashes) for fitting, result in pairs)

    def fail(self, chunk: CallChunk, error: BaseException, trace: str) -> None:
        """Record the failure of a chunk of one key, or end the run."""
        if not self.on_error.ends_run(error):
            self.failed.append(_Failure(chunk, error, trace))
            return
        key = chunk.keys.to_pylist()[0]
        kind, message = error_type_name(error), error_text(error)
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

    def outcome(self, chunk: CallChunk, attempts_before: I64, now_ms: int) -> ChunkCallResult:
        """The result of all calls for a chunk."""
        rows = [fitting.joined([part[i] for part in self.done]) for i, fitting in enumerate(self.fittings)]
        return ChunkCallResult(
            rows=tuple(each.table for each in rows),
            hashes=tuple(each.transform for each in rows),
            key_hashes=tuple(each.key for each in rows),
            failed=self._failed_table(chunk, attempts_before, now_ms),
            called=self.called,
            calls=self.calls,
        )

    def _failed_table(self, chunk: CallChunk, attempts_before: I64, now_ms: int) -> pa.Table:
        keys_schema = self.fittings[0].output.keys
        if not self.failed:
            return _nothing_failed(keys_schema)
        hashes = Hashes.joined([failure.chunk.hashes for failure in self.failed])
        at = hashes.positions_in(chunk.hashes)
        attempts = attempts_before[at] + 1
        errors = [failure.error for failure in self.failed]
        states: list[tuple[FailureState, int | None]] = [
            self.on_error.after(int(n), now_ms, error) for n, error in zip(attempts, errors, strict=True)
        ]
        now = pa.array(np.full(len(self.failed), now_ms, np.int64)).cast(TIMESTAMP)
        facts = [
            pa.array(hashes.high),
            pa.array(hashes.low),
            pa.array([error_type_name(error) for error in errors], pa.string()),
            pa.array([error_text(error) for error in errors], pa.string()),
            pa.array([failure.trace for failure in self.failed], pa.string()),
            pa.array(attempts, pa.int32()),
            now,
            now,
            pa.array([state for state, _ in states], pa.string()),
            pa.array([due for _, due in states], pa.int64()).cast(TIMESTAMP),
            pa.array([state != "skipped" for state, _ in states], pa.bool_()),
        ]
        keys = chunk.keys.take(pa.array(at)).combine_chunks()
        return pa.Table.from_arrays([*keys.columns, *facts], schema=failed_keys_schema(keys_schema))
