"""Calling a step's function for a chunk of keys: a chunk that fails is halved until the failing keys stand alone."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from floodmark.compute.functions.failures import message_of, trace_of, type_of
from floodmark.compute.functions.on_error import Retry
from floodmark.ledger.keys.records import I64, Hashes
from floodmark.transform.errors import BadResult, KeyFailed
from floodmark.transform.functions import frames as _frames
from floodmark.transform.functions import function as _function
from floodmark.transform.functions import returned as _returned
from floodmark.transform.functions.function import StepFunction
from floodmark.transform.functions.matching import find
from floodmark.transform.functions.nan_keys import told_apart
from floodmark.transform.functions.on_error import OnError, State
from floodmark.transform.functions.returned import Fitting, OutputRows, OutputShape
from floodmark.transform.meta.failed import MOMENT, failed_schema, no_failures

_OURS = (__file__, _function.__file__, _frames.__file__, _returned.__file__)  # not of interest in a user's traceback

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


@dataclass(frozen=True)
class _Failure:
    chunk: Chunk
    error: BaseException
    trace: str = ""  # where it was raised, if the error itself does not know


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
    calls = _Calls(function, tuple(Fitting(function.name, output) for output in outputs), on_error, sleep)
    if len(chunk.hashes):
        function.callable()  # a model that cannot be loaded is no fault of any key
        calls.run(chunk)
    rows = [fitting.joined([part[i] for part in calls.done]) for i, fitting in enumerate(calls.fittings)]
    return Called(
        rows=tuple(each.table for each in rows),
        hashes=tuple(each.transform for each in rows),
        key_hashes=tuple(each.key for each in rows),
        failed=_failed_table(calls.failed, chunk, outputs, on_error, attempts_before, now_ms),
        called=calls.called,
        calls=calls.calls,
    )


@dataclass
class _Calls:
    function: StepFunction
    fittings: tuple[Fitting, ...]
    on_error: OnError
    sleep: Callable[[float], None]
    done: list[tuple[OutputRows, ...]] = field(default_factory=list)
    failed: list[_Failure] = field(default_factory=list)
    called: int = 0
    calls: int = 0

    def run(self, chunk: Chunk) -> None:
        # Chunks that wait, the next one last, and how often each rule has been used up on the way to them.
        waiting: list[tuple[Chunk, Counter[Retry]]] = [(part, Counter()) for part in reversed(told_apart(chunk))]
        while waiting:
            part, spent = waiting.pop()
            # Many keys that failed again and again are not the better for it when halved; a key that stands alone
            # gets every call that the rule gives it.
            outcome = self._until_given_up(part, Counter() if len(part.hashes) == 1 else spent)
            if not isinstance(outcome, BaseException):
                self.done.append(outcome)
            elif (halves := part.halves()) is not None:
                waiting += [(halves[1], spent.copy()), (halves[0], spent.copy())]
            elif self.on_error.ends_run(outcome):
                raise _ended(self.function, _Failure(part, outcome)) from outcome
            else:
                self.failed.append(_Failure(part, outcome))

    def _until_given_up(self, chunk: Chunk, spent: Counter[Retry]) -> tuple[OutputRows, ...] | BaseException:
        """The rows, or the last error when the function has been called as often as its errors' rules say."""
        while True:
            try:
                return self._call(chunk)
            except (MemoryError, KeyboardInterrupt, BadResult):
                raise
            except BaseException as error:  # sys.exit() in a library, too, is a failure of the key
                retry = self.on_error.again(error)
                if retry is not None:
                    spent[retry] += 1
                if retry is None or spent[retry] >= retry.attempts:
                    return error
                pause = retry.pause(spent[retry])
            self.sleep(pause)

    def _call(self, chunk: Chunk) -> tuple[OutputRows, ...]:
        self.calls += 1
        self.called += len(chunk.hashes)
        results = self.function.returned(chunk.frames, [fitting.output.name for fitting in self.fittings])
        pairs = zip(self.fittings, results, strict=True)
        return tuple(fitting.rows(result, chunk.keys, chunk.hashes) for fitting, result in pairs)


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
    failure = _Failure(chunk, error, trace)
    if on_error.ends_run(error):
        raise _ended(function, failure) from error
    rows = [Fitting(function.name, output).no_rows() for output in outputs]
    return Called(
        rows=tuple(each.table for each in rows),
        hashes=tuple(each.transform for each in rows),
        key_hashes=tuple(each.key for each in rows),
        failed=_failed_table([failure], chunk, outputs, on_error, attempts_before, now_ms),
        called=0,
        calls=0,
    )


def _ended(function: StepFunction, failure: _Failure) -> KeyFailed:
    key = failure.chunk.keys.to_pylist()[0]
    kind, message = type_of(failure.error), message_of(failure.error)
    shown = ", ".join(f"{name}={value!r}" for name, value in key.items())
    return KeyFailed(
        f"the function {function.name!r} failed for {shown}: {kind}: {message}",
        hint='Mend it, or let the other keys go on: on_error="retry" or "skip".',
        function=function.name,
        key=key,
        error_type=kind,
        error_message=message,
        traceback=_trace(failure),
    )


def _trace(failure: _Failure) -> str:
    return failure.trace or trace_of(failure.error, *_OURS)


def _failed_table(
    failed: list[_Failure],
    chunk: Chunk,
    outputs: Sequence[OutputShape],
    on_error: OnError,
    attempts_before: I64,
    now_ms: int,
) -> pa.Table:
    if not failed:
        return _nothing_failed(outputs[0].keys)
    hashes = Hashes.joined([failure.chunk.hashes for failure in failed])
    at = find(hashes, chunk.hashes)
    attempts = attempts_before[at] + 1
    errors = [failure.error for failure in failed]
    states: list[tuple[State, int | None]] = [
        on_error.after(int(n), now_ms, error) for n, error in zip(attempts, errors, strict=True)
    ]
    now = pa.array(np.full(len(failed), now_ms, np.int64)).cast(MOMENT)
    facts = [
        pa.array(hashes.high),
        pa.array(hashes.low),
        pa.array([type_of(error) for error in errors], pa.string()),
        pa.array([message_of(error) for error in errors], pa.string()),
        pa.array([_trace(failure) for failure in failed], pa.string()),
        pa.array(attempts, pa.int32()),
        now,
        now,
        pa.array([state for state, _ in states], pa.string()),
        pa.array([due for _, due in states], pa.int64()).cast(MOMENT),
    ]
    keys = chunk.keys.take(pa.array(at)).combine_chunks()
    return pa.Table.from_arrays([*keys.columns, *facts], schema=failed_schema(outputs[0].keys))
